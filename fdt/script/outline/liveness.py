"""Finds the names that are read later, before they are written again (backward analysis over structured statements)."""

import ast
from collections.abc import Sequence

from fdt.script.outline.names import SCOPES, declarations, names, statements, suites

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Liveness:
    """The names that are read after each statement of a scope.

    Attributes:
        at_start: Names that the scope reads before it writes them.
    """

    def __init__(self, body: Sequence[ast.stmt], at_end: set[str]) -> None:
        """Analyses a scope.

        Args:
            body: Its statements.
            at_end: Names that are read after its end.
        """
        self._after: dict[ast.stmt, set[str]] = {}
        # Functions inside the scope may be called at any time; declared names (`global`, `nonlocal`) are of other scopes, too.
        self._always = names(body).later | declarations(body)
        self._at_end = at_end | self._always
        # In a `try`, any statement may be followed by the handlers.
        self._handled: set[str] = set()
        self._loops: list[tuple[set[str], set[str]]] = []
        self.at_start = self._suite(body, self._at_end)

    def after(self, statement: ast.stmt) -> set[str]:
        """Returns the names that are read after a statement."""
        return self._after[statement] | self._always

    def _suite(self, body: Sequence[ast.stmt], live: set[str]) -> set[str]:
        for statement in reversed(body):
            self._after[statement] = self._after.get(statement, set()) | live | self._handled
            live = self._before(statement, live | self._handled)
        return live

    def _before(self, statement: ast.stmt, live: set[str]) -> set[str]:
        if isinstance(statement, _LOOPS):
            return self._loop(statement, live)
        if isinstance(statement, ast.If):
            return names(statement.test).reads | self._suite(statement.body, live) | self._suite(statement.orelse, live)
        if isinstance(statement, ast.With | ast.AsyncWith):
            inner = self._suite(statement.body, live)
            for item in reversed(statement.items):
                inner = (inner - names(item).writes) | names(item).reads
            # If the context suppresses an error of the block, execution continues after it.
            return inner | (live if _suppresses(statement) else set())
        if isinstance(statement, ast.Try | ast.TryStar):
            return self._try(statement, live)
        if isinstance(statement, ast.Return | ast.Raise):
            return self._at_end | self._handled | names(statement).reads
        if isinstance(statement, ast.Break) and self._loops:
            return self._loops[-1][1]
        if isinstance(statement, ast.Continue) and self._loops:
            return self._loops[-1][0]
        if suites(statement) and not isinstance(statement, SCOPES):
            # Other compound statements (match) are treated conservatively.
            return live | names(statement).reads | set().union(*(self._suite(s, live) for s in suites(statement)))
        found = names(statement)
        kept = found.writes if not isinstance(statement, ast.AugAssign) else set()
        return (live - kept) | found.reads

    def _loop(self, loop: ast.For | ast.AsyncFor | ast.While, live: set[str]) -> set[str]:
        test = loop.test if isinstance(loop, ast.While) else loop.target
        at_end = self._suite(loop.orelse, live)
        head = at_end | names(test).reads
        while True:
            self._loops.append((head, live))
            body = self._suite(loop.body, head)
            self._loops.pop()
            if not isinstance(loop, ast.While):
                body = body - names(loop.target).writes
            grown = head | body
            if grown == head:
                break
            head = grown
        return head if isinstance(loop, ast.While) else head | names(loop.iter).reads

    def _try(self, statement: ast.Try | ast.TryStar, live: set[str]) -> set[str]:
        last = self._suite(statement.finalbody, live)
        handlers = set[str]().union(
            *(names(handler.type).reads if handler.type else set() for handler in statement.handlers),
            *(self._suite(handler.body, last) for handler in statement.handlers),
        )
        outer, self._handled = self._handled, self._handled | handlers | last
        body = self._suite(statement.body, self._suite(statement.orelse, last))
        self._handled = outer
        return body | handlers | last


def _suppresses(statement: ast.With | ast.AsyncWith) -> bool:
    called = {node.func for item in statement.items for node in ast.walk(item) if isinstance(node, ast.Call)}
    return any("suppress" in ast.unparse(function) for function in called)


def read_by_functions(body: Sequence[ast.stmt]) -> set[str]:
    """Returns the names of a module's scope that its functions and classes read."""
    found: set[str] = set()
    for statement in statements(body):
        found |= names(statement).later
    return found
