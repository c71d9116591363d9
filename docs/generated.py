"""What the documentation takes from the code: the commands, the report's fields, the errors (a hook of MkDocs)."""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fdt.cli.command_line import build_parser
from fdt.cli.options import MODES

_MARKER = re.compile(r"<!-- generated: (\w+) -->")
_REPORT = Path(__file__).parents[1] / "fdt" / "client" / "report.schema.json"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Puts what is generated where a page asks for it.

    Raises:
        KeyError: Nothing is generated under that name.
    """
    return _MARKER.sub(lambda found: "\n".join(_PARTS[found[1]]()), markdown)


def _commands() -> Iterator[str]:
    _, commands = build_parser("fdt", tuple(MODES))
    for name, parser in commands.items():
        yield f"## fdt {name}\n"
        yield f"{parser.description}\n"
        yield f"    {' '.join(parser.format_usage().removeprefix('usage: ').split())}\n" if parser.usage else ""
        for group in parser._action_groups:
            options = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
            if options:
                yield from _table(group.title or "", options)
        yield f"{parser.epilog}\n" if parser.epilog else ""


def _table(title: str, options: list[argparse.Action]) -> Iterator[str]:
    yield f"| {title} | |\n|---|---|"
    for action in options:
        written = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        value = f" {action.metavar}" if action.option_strings and action.metavar else ""
        if action.choices and not action.metavar:
            value = " " + "\\|".join(map(str, action.choices))
        yield f"| `{written}{value}` | {_escaped((action.help or '') % _defaults(action))} |".replace("\\|", "&#124;")
    yield ""


def _defaults(action: argparse.Action) -> dict[str, Any]:
    return {**vars(action), "prog": "fdt"}


def _escaped(text: str) -> str:
    return text.replace("|", "&#124;").replace("<", "&lt;")


def _report() -> Iterator[str]:
    schema = json.loads(_REPORT.read_text())
    yield from _fields("The report", schema, schema)
    for name, definition in schema["$defs"].items():
        yield from _fields(name, definition, schema)


def _fields(title: str, definition: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    yield f"## {title}\n\n{definition.get('description', '')}\n"
    yield "| field | type | |\n|---|---|---|"
    for name, field in definition["properties"].items():
        yield f"| `{name}` | {_type(field)} | {_escaped(field.get('description', ''))} |"
    yield ""


def _type(field: dict[str, Any]) -> str:
    """Returns a field's type as a person writes it."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_type(each) for each in field["anyOf"])
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    types = field.get("type", "any")
    return types if isinstance(types, str) else " or ".join(types)


def _errors() -> Iterator[str]:
    yield "::: fdt.errors\n    options: {filters: ['!^named$', '!^_']}"


_PARTS = {"commands": _commands, "report": _report, "errors": _errors}
