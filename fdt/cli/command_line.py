"""Parses the command line that `fdt.cli.options` describes."""

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fdt import __version__
from fdt.cli import combinations, sources
from fdt.cli.option_fields import Description, Options, described
from fdt.cli.options import COMMANDS, MODES, OfScript, Serve

_ELSEWHERE = (
    "Options may be set in the environment (FDT_WORKERS=4) and in files too; `fdt config` tells where they are."
)


class Parser(argparse.ArgumentParser):
    """A parser whose error messages begin with `fdt:`, as all messages of FDT do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.format_usage()}fdt: {message}\n")

    def unknown(self, what: str, given: str, known: Iterable[str]) -> NoReturn:
        """Exits with an error about an unknown name, and suggests a similar one."""
        alike = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
        meant = f" Did you mean {alike[0]}?" if alike else ""
        self.error(f"unknown {what} {given!r}.{meant}")

    def options(self) -> list[str]:
        """Returns all options as written on the command line."""
        return [text for action in self._actions for text in action.option_strings]


def parse(program: str, modes: tuple[str, ...], argv: Sequence[str], kind: type[Parser] = Parser) -> Options:
    """Parses a command line; options that it lacks come from the environment and configuration files.

    Exits as argparse does (SystemExit) if something is wrong, or help is requested.

    Returns:
        The command's options: an instance of one of `fdt.cli.options.COMMANDS`.
    """
    parser, commands = build_parser(program, modes, kind)
    ours, scheduler_args = _cut(argv)
    ours, script, arguments = _split(commands, ours)
    if ours and not ours[0].startswith("-") and ours[0] not in commands:
        parser.unknown("command", ours[0], commands)
    given, rest = parser.parse_known_args(ours)
    name = vars(given).pop("command")
    command = commands[name]
    if rest:
        if rest[0].startswith("-"):
            command.unknown("option", rest[0].split("=")[0], command.options())
        command.error(f"expected no argument here. Received: {rest[0]!r}")
    options = _filled(command, name, modes, vars(given))
    _check(command, options, script, arguments, scheduler_args)
    if isinstance(options, Serve):
        options.mode = options.mode or modes[0]
    elif "command_line" in vars(options):
        vars(options)["command_line"] = tuple(argv)
    return options


def _filled(command: Parser, name: str, modes: tuple[str, ...], given: dict[str, Any]) -> Options:
    """Returns the options' values: from the command line, else the environment, else a file, else the default."""
    kind, values = COMMANDS[name], dict(given)
    try:
        for field, found in sources.read(
            kind, modes, skipped=combinations.NOT_OF_HOSTS if "join" in given else ()
        ).items():
            values.setdefault(field, found.value)
    except sources.SourceError as error:
        command.error(str(error))
    if name != "serve" and any(field == "mode" for field, *_ in described(kind)):
        values.setdefault("mode", modes[0])
    options = kind(**{field: tuple(value) if isinstance(value, list) else value for field, value in values.items()})
    options.command = name
    return options


def _check(
    command: Parser, options: Options, script: str | None, arguments: Sequence[str], scheduler_args: tuple[str, ...]
) -> None:
    if isinstance(options, OfScript):
        combinations.check_script(command, options, script, arguments)
    if isinstance(options, Serve):
        options.scheduler_args = scheduler_args
    checks = {
        "run": combinations.check_run,
        "predict": combinations.check_predict,
        "serve": combinations.check_serve,
        "token": combinations.check_token,
    }
    if options.command in checks:
        checks[options.command](command, options)


def misplaced(options: argparse.Namespace, source: str) -> str | None:
    """Returns a warning if an option of FDT follows the script and the script's text does not mention it, otherwise None.

    Args:
        options: The result of `parse`.
        source: The script's text.
    """
    known = [f"--{name}" for _, name, _, about in described(COMMANDS[options.command]) if not about.is_positional]
    for argument in options.arguments:
        flag = argument.split("=")[0]
        if flag in known and flag[2:] not in source and flag[2:].replace("-", "_") not in source:
            return (
                f"{argument} follows the script, so it goes to the script, which does not mention it; options of fdt come "
                f"before the script: fdt {options.command} {flag} ... {options.script}"
            )
    return None


def _cut(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Splits a command line of `serve` at "--": the arguments after it go to a scheduler."""
    argv = list(argv)
    if argv[:1] != ["serve"] or "--" not in argv:
        return argv, ()
    at = argv.index("--")
    return argv[:at], tuple(argv[at + 1 :])


def _split(commands: dict[str, Parser], argv: list[str]) -> tuple[list[str], str | None, list[str]]:
    """Splits a command line at SCRIPT, so that FDT does not parse the script's arguments.

    Returns:
        The arguments for argparse, the script (None if there is none), and its arguments.
    """
    if not argv or argv[0] not in commands or not issubclass(COMMANDS[argv[0]], OfScript):
        return argv, None, []
    valued = {text for action in commands[argv[0]]._actions if action.nargs != 0 for text in action.option_strings}
    index = 1
    while index < len(argv) and argv[index].startswith("-") and argv[index] not in ("-", "--", "-m", "-c"):
        index += 2 if argv[index] in valued else 1
    rest = argv[index + 1 :] if argv[index : index + 1] == ["--"] else argv[index:]
    return argv[:index], rest[0] if rest else None, rest[1:]


def build_parser(
    program: str, modes: tuple[str, ...], parser_kind: type[Parser] = Parser
) -> tuple[Parser, dict[str, Parser]]:
    """Makes the parser, and its commands' parsers by name. What they return holds only the options that were given."""
    parser = parser_kind(
        prog=program, description="Trains an unmodified TensorFlow script on several workers.", allow_abbrev=False,
        epilog=_ELSEWHERE,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"{program} {__version__}")
    kinds = parser.add_subparsers(metavar="COMMAND", required=True)
    commands: dict[str, Parser] = {}
    for name, kind in COMMANDS.items():
        if (name == "verify" and "sync" not in modes) or (name == "compare" and len(modes) < 2):
            continue
        usage = f"{program} {name} [OPTIONS] SCRIPT [ARGS...]" if issubclass(kind, OfScript) else None
        commands[name] = kinds.add_parser(
            name, help=kind.__doc__, description=kind.__doc__, usage=usage,
            epilog=" ".join(filter(None, (kind.epilog, _ELSEWHERE if sources.names(name) else ""))), allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )  # fmt: skip
        commands[name].set_defaults(command=name)
        _add(commands[name], kind, modes)
    return parser, commands


def _add(parser: Parser, kind: type[Options], modes: tuple[str, ...]) -> None:
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for field, name, _, about in described(kind):
        if about.group not in groups:
            groups[about.group] = parser.add_argument_group(about.group)
        _add_one(groups[about.group], field, name, about, sources.choices(about, modes))


def _add_one(
    parser: argparse._ActionsContainer, field: str, name: str, about: Description, choices: Sequence[str]
) -> None:
    details: dict[str, Any] = {"help": about.help}
    if about.parse is None:
        details["action"] = "store_true"
    else:
        details |= {"type": about.parse, "metavar": about.metavar, "choices": choices or None}
    if about.is_repeated:
        details["action"] = "append"
    if about.is_positional:
        parser.add_argument(field, nargs="?" if about.is_left_away else None, **details)
    else:
        parser.add_argument(f"--{name}", dest=field, **details)


def completion_file(program: str, shell: str) -> str:
    """Returns the content of a file that makes a shell complete a program's commands and options.

    Raises:
        UsageError: shtab is not installed.
    """
    from fdt.errors import UsageError

    try:
        import shtab
    except ImportError as error:
        raise UsageError("completion is written by shtab: pip install 'fdt[completion]'") from error
    parser, commands = build_parser(program, tuple(MODES))
    for command in commands.values():
        for action in command._actions:
            if action.type is Path:
                vars(action)["complete"] = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
    return shtab.complete(parser, shell)


def say(line: str) -> None:
    """Prints one line on standard error."""
    from fdt.base.printable import printable_lines

    print(f"fdt: {printable_lines(line)}", file=sys.stderr, flush=True)
