"""Where the values of options come from besides the command line: the environment, and a file.

The file is `fdt.toml`, or the table `[tool.fdt]` of `pyproject.toml`, of the working directory; FDT_CONFIG names another one,
or none if it is empty. What stands at its top holds for every command that has the option, what stands in `[run]` for `fdt run`
alone.
"""

import argparse
import difflib
import functools
import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdt.base.config import NO_WALLS, OFF
from fdt.cli.options import COMMANDS, Config, Description, Options, described

CONFIG = "FDT_CONFIG"


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
    path, tables = _file() if wanted else (None, {})
    for field, name, _, about in wanted:
        written = _in_environment(name) or _in_file(path, tables, kind.__name__.lower(), name)
        if written is not None:
            found[field] = _checked(written[0], written[1], name, about, choices(about, modes))
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


def _in_file(path: Path | None, tables: Mapping[str, Any], command: str, name: str) -> tuple[Any, str] | None:
    for table, heading in ((tables.get(command, {}), f"[{command}] "), (tables, "")):
        if name in table:
            return table[name], f"{path}: {heading}{name}"
    return None


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


def _file() -> tuple[Path | None, Mapping[str, Any]]:
    named = os.environ.get(CONFIG)
    for path in [Path(named)] if named else [] if named == "" else [Path("fdt.toml"), Path("pyproject.toml")]:
        if not named and not path.is_file():
            continue
        tables = _loaded(path)
        if path.name == "pyproject.toml":
            tables = tables.get("tool", {}).get("fdt", {})
        if tables:
            _check_names(path, tables)
            return path, tables
    return None, {}


def _loaded(path: Path) -> dict[str, Any]:
    try:
        # It names pools, and files with tokens: another user of this machine may not.
        if path.stat().st_uid not in (0, os.geteuid()):
            raise SourceError(
                f"{path} belongs to another user: it is not read. Copy it, or set {CONFIG}= to go without"
            )
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read {path}: {error}") from error


@functools.cache
def names(command: str | None) -> frozenset[str]:
    """Returns the options of a command, or of any, that may be set elsewhere."""
    kinds = COMMANDS.values() if command is None else [COMMANDS[command]]
    return frozenset(name for kind in kinds for _, name, _, about in described(kind) if about.may_be_set)


def _check_names(path: Path, tables: Mapping[str, Any]) -> None:
    for name, value in tables.items():
        in_command = isinstance(value, dict) and name in COMMANDS
        for key, known in (
            [(key, names(name)) for key in value] if in_command else [(name, names(None) | set(COMMANDS))]
        ):
            if key not in known:
                alike = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
                meant = f" Did you mean {alike[0]}?" if alike else ""
                raise SourceError(f"{path}: unknown option {key!r}{f' in [{name}]' if in_command else ''}.{meant}")


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
        path, _ = _file()
        return [
            f"nothing is set: no FDT_* of ours in the environment{'' if path is None else f', and nothing in {path}'}"
        ]
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
