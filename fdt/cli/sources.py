"""Where the values of options come from besides the command line: the environment, the project's file, the user's file.

The project's is `fdt.toml`, or the table `[tool.fdt]` of `pyproject.toml`, of the working directory, which may be a clone of
somebody else's: it sets how training goes (`Description.of_training`) and nothing else. The user's, `fdt.toml` in
`fdt.base.user_folder.config_folder()`, sets everything. FDT_CONFIG names another one in place of both, or none if it is empty.

What stands at a file's top holds for every command that has the option, what stands in `[run]` for `fdt run` alone.
"""

import argparse
import difflib
import functools
import itertools
import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdt.base import user_folder
from fdt.base.config import NO_WALLS, OFF
from fdt.cli.options import COMMANDS, Config, Description, Options, described

CONFIG = "FDT_CONFIG"
_NAME = "fdt.toml"


class SourceError(Exception):
    """A value that cannot be meant."""


@dataclass(frozen=True)
class Found:
    """A value, as it was written there and as it is read.

    Attributes:
        origin: Where, for people.
    """

    value: Any
    text: str
    origin: str


@dataclass(frozen=True)
class File:
    """A configuration file.

    Attributes:
        path: Where.
        tables: What it says.
        of_project: Whether it is the project's, and not the user's.
    """

    path: Path
    tables: Mapping[str, Any]
    of_project: bool

    def find(self, command: str, name: str, about: Description) -> tuple[Any, str] | None:
        """Returns what it says of a command's option, and where."""
        if about.of_training or not self.of_project:
            for table, heading in ((self.tables.get(command, {}), f"[{command}] "), (self.tables, "")):
                if name in table:
                    return table[name], f"{self.path}: {heading}{name}"
        return None


def read(kind: type[Options], modes: Sequence[str], skipped: Collection[str] = ()) -> dict[str, Found]:
    """Returns of each option of a command that is set somewhere what is said first, by its field's name.

    Args:
        kind: The command's options.
        modes: That there are.
        skipped: Options, as written on the command line, that are not looked for.

    Raises:
        SourceError: A value is wrong, or a file is.
    """
    found: dict[str, Found] = {}
    wanted = [each for each in described(kind) if each[3].may_be_set and f"--{each[1]}" not in skipped]
    files = _files() if wanted else []
    for field, name, _, about in wanted:
        places = (_in_environment(name), *(file.find(kind.__name__.lower(), name, about) for file in files))
        first = next(filter(None, places), None)
        if first is not None:
            found[field] = _checked(first[0], first[1], name, about, choices(about, modes))
    return found


def choices(about: Description, modes: Sequence[str]) -> Sequence[str]:
    """Returns an option's choices where only these modes are."""
    if "sync" not in about.choices:
        return about.choices
    return (*modes, "both") if "both" in about.choices and len(modes) > 1 else tuple(modes)


def variable(name: str) -> str:
    """Returns an option's variable in the environment."""
    return f"FDT_{name.upper().replace('-', '_')}"


def cleared(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which only a command line says anything of options, but for walls that must not stand."""
    ours = {variable(name) for name in names(None)} - {NO_WALLS}
    return {name: value for name, value in environment.items() if name not in ours} | {CONFIG: ""}


def _in_environment(name: str) -> tuple[Any, str] | None:
    text = os.environ.get(variable(name))
    return (text, variable(name)) if text else None


def _checked(written: Any, origin: str, name: str, about: Description, choices: Sequence[str]) -> Found:
    """Reads a value as argparse reads the command line's."""
    if about.is_repeated:
        texts = [written] if isinstance(written, str) else written
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise SourceError(f"{origin}: expected a list of texts. Received: {written}")
        return Found(tuple(texts), str(texts), origin)
    if about.parse is None:
        is_on = written if isinstance(written, bool) else str(written).lower() not in OFF
        return Found(is_on, str(is_on).lower(), origin)
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        raise SourceError(f"{origin}: expected what --{name} takes. Received: {written}")
    if choices and str(written) not in choices:
        raise SourceError(f"{origin}: expected one of {', '.join(choices)}. Received: {written}")
    try:
        return Found(about.parse(str(written)), str(written), origin)
    except argparse.ArgumentTypeError as error:
        raise SourceError(f"{origin}: {error}") from error


def user_file() -> Path:
    """Returns the user's own file, which need not be there."""
    return user_folder.config_folder() / _NAME


def _files() -> list[File]:
    """Returns those that say something, the first first to be asked."""
    named = os.environ.get(CONFIG)
    if named is not None:
        return [_loaded(Path(named), of_project=False)] if named else []
    users = user_file()
    found: list[File] = []
    projects = [path for path in (Path(_NAME), Path("pyproject.toml")) if path.absolute() != users]
    for paths, of_project in ((projects, True), ([users], False)):
        files = (_loaded(path, of_project) for path in paths if path.is_file())
        found += itertools.islice((file for file in files if file.tables), 1)
    return found


def _loaded(path: Path, of_project: bool) -> File:
    tables = _tables(path)
    _check_names(path, tables, of_project)
    return File(path, tables, of_project)


def _tables(path: Path) -> dict[str, Any]:
    try:
        # Another user of this machine says nothing of this one's runs.
        if path.stat().st_uid not in (0, os.geteuid()):
            raise SourceError(
                f"{path} belongs to another user: it is not read. Copy it, or set {CONFIG}= to go without"
            )
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read {path}: {error}") from error
    found = tables.get("tool", {}).get("fdt", {}) if path.name == "pyproject.toml" else tables
    if not isinstance(found, dict):
        raise SourceError(f"{path}: expected a table [tool.fdt]. Received: {found}")
    return found


@functools.cache
def names(command: str | None, of_training: bool = False) -> frozenset[str]:
    """Returns the options of a command, or of any, that may be set elsewhere.

    Args:
        command: Its name; None for all commands.
        of_training: Only those that a project's file may set.
    """
    return frozenset(
        name
        for kind in (COMMANDS.values() if command is None else [COMMANDS[command]])
        for _, name, _, about in described(kind)
        if about.may_be_set and (about.of_training or not of_training)
    )


def _check_names(path: Path, tables: Mapping[str, Any], of_project: bool) -> None:
    for name, value in tables.items():
        command = name if isinstance(value, dict) and name in COMMANDS else None
        for key in [name] if command is None else value:
            known = names(command) | (set(COMMANDS) if command is None else set())
            heading = "" if command is None else f" in [{command}]"
            if key not in known:
                alike = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
                meant = f" Did you mean {alike[0]}?" if alike else ""
                raise SourceError(f"{path}: unknown option {key!r}{heading}.{meant}")
            if of_project and key not in names(command, of_training=True):
                raise SourceError(
                    f"{path}: {key!r}{heading} is not a project's to set: where a run goes, with which secret and behind which "
                    "walls, and which files are read or written is the user's. Expected only how training goes, such as mode "
                    f"and workers. Give --{key} on the command line, set {variable(key)}, or write it into {user_file()}"
                )


def show(options: Config, modes: Sequence[str]) -> list[str]:
    """Returns what `fdt config` prints, a line for each option.

    Raises:
        SourceError: See `read`; or the command is none.
    """
    if options.of and options.of not in COMMANDS:
        raise SourceError(f"expected a command: {', '.join(COMMANDS)}. Received: {options.of}")
    rows = [
        (f"{command}.{name}", found.text, found.origin)
        for command in ([options.of] if options.of else COMMANDS)
        for name, found in _all(command, modes, with_defaults=bool(options.of))
    ]
    if not rows:
        silent = "".join(f", and nothing in {file.path}" for file in _files())
        return [f"nothing is set: no FDT_* of ours in the environment{silent}"]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return [f"{name:{widths[0]}}  {text:{widths[1]}}  {origin}" for name, text, origin in rows]


def _all(command: str, modes: Sequence[str], with_defaults: bool) -> list[tuple[str, Found]]:
    kind, rows = COMMANDS[command], []
    found = read(kind, modes)
    for field, name, default, about in described(kind):
        if field in found:
            rows.append((name, found[field]))
        elif with_defaults and about.may_be_set:
            text = modes[0] if name == "mode" else "-" if default in (None, ()) else str(default).lower()
            rows.append((name, Found(default, text, "default")))
    return rows
