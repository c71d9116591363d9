"""Registers the steps of a script's files, and passes those that the script reaches to a runner."""

import ast
import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fdt.script.outline.rewriting import RUN, Site, outlined


class Runner(Protocol):
    """Runs steps in place of the script's own statements."""

    def step(
        self, site: Site, function: Callable[..., Any], names: Mapping[str, Any], numbers: Sequence[Callable[[], Any]]
    ) -> dict[str, Any] | None:
        """Runs a step that the script has reached.

        Args:
            site: The step's place.
            function: The step as a function of `site.reads` and then of `site.numbers`; returns the names that it has
                bound, with their values.
            names: The local names of the enclosing code.
            numbers: Functions that compute the numbers; their results need not be numbers.

        Returns:
            Names and their values afterwards; None if the script must run the step itself.
        """

    def problem(self, file: str, line: int) -> str | None:
        """Returns why the script itself runs the step around a line; None if the runner runs it."""


class Sites:
    """The steps of all files that were compiled."""

    def __init__(self) -> None:
        self._sites: list[Site] = []
        self.runner: Runner | None = None

    def compiled(self, source: bytes, file: str) -> Any:
        """Returns a file's code, with its steps outlined; None if there are none."""
        if b"GradientTape" not in source and b"minimize" not in source:
            return None
        try:
            tree = ast.parse(source, file)
        except SyntaxError:
            # Python raises the error itself, when it compiles the file.
            return None
        before = len(self._sites)
        outlined(tree, file, self._register)
        if all(site.problem for site in self._sites[before:]):
            return None
        setattr(builtins, RUN, self._come_to)
        return compile(tree, file, "exec", dont_inherit=True)

    def has(self, file: str) -> bool:
        """Whether a file has steps."""
        return any(site.file == file for site in self._sites)

    def problem(self, file: str, line: int) -> str | None:
        """Returns a sentence on why the step around a line cannot be a function; None if no reason is known."""
        sites = [site for site in self._sites if site.file == file and site.line <= line <= site.end_line]
        problems = [site.problem for site in sites if site.problem]
        if problems:
            return f"The step cannot be outlined: line {problems[0][0]}: {problems[0][1]}."
        found = None if self.runner is None else self.runner.problem(file, line)
        return None if found is None else f"The step cannot be outlined: {found}."

    def _register(self, site: Site) -> int:
        self._sites.append(site)
        return len(self._sites) - 1

    def _come_to(self, number: int, function: Any, names: Mapping[str, Any], numbers: Sequence[Any]) -> Any:
        runner = self.runner
        return None if runner is None else runner.step(self._sites[number], function, names, numbers)


# One for the process, which runs one script.
SITES = Sites()
