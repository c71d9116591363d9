"""Reads options from the environment, the project's file and the user's file, in this order of precedence.

The project's file is `fdt.toml`, or the table `[tool.fdt]` of `pyproject.toml`, in the working directory. It may set only
options of the training itself (`Description.of_training`), since the project may come from somebody else. The user's file,
`fdt.toml` in `fdt.base.user_folder.config_folder()`, may set every option. FDT_CONFIG names a file that replaces both; if it
is empty, no file is read.

Options at a file's top level apply to every command that has them, options in `[run]` to `fdt run` only.
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
from fdt.cli.option_fields import Description, Options, described
from fdt.cli.options import COMMANDS, Config

CONFIG = "FDT_CONFIG"
_NAME = "fdt.toml"


class SourceError(Exception):
    """A value or a file is invalid."""


@dataclass(frozen=True)
class Found:
    """An option's value from one source.

    Attributes:
        value: The parsed value.
        text: The value as text.
        origin: Where it is set, for messages.
    """

    value: Any
    text: str
    origin: str


@dataclass(frozen=True)
class File:
    """A configuration file.

    Attributes:
        path: The file.
        tables: Its content.
        of_project: Whether it is the project's file, not the user's.
    """

    path: Path
    tables: Mapping[str, Any]
    of_project: bool

    def find(self, command: str, name: str, about: Description) -> tuple[Any, str] | None:
        """Returns the file's value for a command's option, and where it is set; None if the file does not set it."""
        if about.of_training or not self.of_project:
            for table, heading in ((self.tables.get(command, {}), f"[{command}] "), (self.tables, "")):
                if name in table:
                    return table[name], f"{self.path}: {heading}{name}"
        return None


def read(kind: type[Options], modes: Sequence[str], skipped: Collection[str] = ()) -> dict[str, Found]:
    """Returns the options of a command that are set in these sources, by field name. Earlier sources take precedence.

    Args:
        kind: The command's options.
        modes: The available modes.
        skipped: Options that are not read, as written on the command line.

    Raises:
        SourceError: A value or a file is invalid.
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
    """Returns an option's choices if only these modes are available."""
    if "sync" not in about.choices:
        return about.choices
    return (*modes, "both") if "both" in about.choices and len(modes) > 1 else tuple(modes)


def variable(name: str) -> str:
    """Returns the name of an option's environment variable."""
    return f"FDT_{name.upper().replace('-', '_')}"


def cleared(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment that sets no options, except the variable that switches the sandbox off."""
    ours = {variable(name) for name in names(None)} - {NO_WALLS}
    return {name: value for name, value in environment.items() if name not in ours} | {CONFIG: ""}


def _in_environment(name: str) -> tuple[Any, str] | None:
    text = os.environ.get(variable(name))
    return (text, variable(name)) if text else None


def _checked(written: Any, origin: str, name: str, about: Description, choices: Sequence[str]) -> Found:
    """Parses a value as argparse would on the command line."""
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
    """Returns the path of the user's file, which may not exist."""
    return user_folder.config_folder() / _NAME


def _files() -> list[File]:
    """Returns the files that set options, in the order of precedence."""
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
        # Other users of this machine must not set options of this user's runs.
        if path.stat().st_uid not in (0, os.geteuid()):
            raise SourceError(
                f"{path} belongs to another user: it is not read. Copy it, or set {CONFIG}= to read no file"
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
    """Returns the options of a command, or of all commands, that may be set outside the command line.

    Args:
        command: The command's name; None for all commands.
        of_training: Whether to return only options that a project's file may set.
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
                    f"{path}: {key!r}{heading} cannot be set by a project's file: only the user decides where a run goes, with "
                    "which secret and sandbox, and which files it reads or writes. Expected only options of the training, such "
                    f"as mode. Give --{key} on the command line, set {variable(key)}, or write it into {user_file()}"
                )


def show(options: Config, modes: Sequence[str]) -> list[str]:
    """Returns the output of `fdt config`, a line for each option.

    Raises:
        SourceError: A value or a file is invalid, or the command is unknown.
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
