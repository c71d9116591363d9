"""Describes one option of a command: a dataclass field with a name, a type and a default, and what `Description` has."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

_ASYNCHRONOUS = "asynchronous training"


@dataclass
class Options(argparse.Namespace):
    """The parsed options of a command."""

    epilog: ClassVar[str | None] = None


@dataclass(frozen=True)
class Description:
    """The properties of an option besides its name, type and default, which its field has.

    Attributes:
        help: One sentence for `--help`.
        metavar: The value's name in `--help`.
        parse: Converts text to the value; raises `argparse.ArgumentTypeError`. None for a switch, which has no value.
        choices: The allowed values; empty for any.
        group: Its heading in `--help`; "" for none.
        name: The option's name if it cannot be the field's (`else`).
        is_repeated: Whether it may be given several times; its value is a tuple.
        is_positional: Whether it is a positional argument.
        is_typed: Whether it can be set on the command line only.
        is_left_away: Whether a positional argument is optional.
        for_runtime: Whether it is passed as text to the runtime, which checks it (`fdt.worker.runtime.Launcher`).
        of_training: Whether a project's file may set it. A project may come from somebody else, so this is True only for
            options of the training itself: none that choose a machine, a secret, a sandbox, or files to read or write.
    """

    help: str
    metavar: str | None = None
    parse: Callable[[str], Any] | None = str
    choices: Sequence[str] = ()
    group: str = ""
    name: str = ""
    is_repeated: bool = False
    is_positional: bool = False
    is_typed: bool = False
    is_left_away: bool = False
    for_runtime: bool = False
    of_training: bool = False

    @property
    def may_be_set(self) -> bool:
        """Whether the environment or a file may set it."""
        return not (self.is_typed or self.is_positional)


def option(
    default: Any, help: str, metavar: str | None = None, parse: Callable[[str], Any] | None = str, **more: Any
) -> Any:
    """Makes a field of an option; see `Description`."""
    return dataclasses.field(default=default, metadata={"option": Description(help, metavar, parse, **more)})


def training_option(*about: Any, **more: Any) -> Any:
    """Makes a field of an option that a project's file may set, too."""
    return option(*about, of_training=True, **more)


def switch(help: str, **more: Any) -> Any:
    """Makes a field of an option without a value."""
    return option(False, help, None, None, **more)


def of_runtime(metavar: str, help: str, group: str = _ASYNCHRONOUS) -> Any:
    """Makes a field of an option that a runtime reads."""
    return option(None, help, metavar, group=group, for_runtime=True, of_training=True)


def described(kind: type[Options]) -> list[tuple[str, str, Any, Description]]:
    """Returns for each option of a command the field's name, the option's name, the default and the description."""
    found = []
    for field in dataclasses.fields(kind):
        description = field.metadata.get("option")
        if description is not None:
            found.append((field.name, description.name or field.name.replace("_", "-"), field.default, description))
    return found
