"""Finds the names that a part of a program reads and writes in its scope."""

import ast
import dataclasses
from collections.abc import Iterable, Iterator

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Methods of lists that add items.
FILLS = frozenset({"append", "extend", "insert"})
# Nodes with names of their own.
SCOPES = (*_FUNCTIONS, ast.ClassDef)


@dataclasses.dataclass
class Names:
    """Names of a part of a program.

    Attributes:
        reads: Names that it reads, including those that functions in it read from the enclosing scope.
        writes: Names that it writes or deletes.
        later: Names among `reads` that functions in it read, since these may be called later.
    """

    reads: set[str] = dataclasses.field(default_factory=set)
    writes: set[str] = dataclasses.field(default_factory=set)
    later: set[str] = dataclasses.field(default_factory=set)


def names(nodes: ast.AST | Iterable[ast.AST]) -> Names:
    """Returns the names of nodes of one scope."""
    found = Names()
    for node in [nodes] if isinstance(nodes, ast.AST) else nodes:
        _collect(node, found)
    return found


def _collect(node: ast.AST, found: Names) -> None:
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Store):
            # `del` needs the name to be bound.
            found.reads.add(node.id)
        if not isinstance(node.ctx, ast.Load):
            found.writes.add(node.id)
    elif isinstance(node, ast.AugAssign):
        # The target of `+=` is read too, though its context is Store.
        found.reads |= {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
        _collect(node.target, found)
        _collect(node.value, found)
    elif isinstance(node, _COMPREHENSIONS):
        inner = names(ast.iter_child_nodes(node))
        own = set[str]().union(*(names(generator.target).writes for generator in node.generators))
        found.reads |= inner.reads - own
        found.later |= inner.later - own
        # A walrus binds its name in the enclosing scope.
        found.writes |= inner.writes - own
    elif isinstance(node, SCOPES):
        free = free_names(node)
        found.reads |= free
        found.later |= free
        if not isinstance(node, ast.Lambda):
            found.writes.add(node.name)
    elif isinstance(node, ast.ExceptHandler):
        found.writes |= {node.name} if node.name else set()
        _collect_all(ast.iter_child_nodes(node), found)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        found.writes |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    elif isinstance(node, ast.MatchAs | ast.MatchStar):
        found.writes |= {node.name} if node.name else set()
        _collect_all(ast.iter_child_nodes(node), found)
    else:
        _collect_all(ast.iter_child_nodes(node), found)


def _collect_all(nodes: Iterable[ast.AST], found: Names) -> None:
    for node in nodes:
        _collect(node, found)


def free_names(scope: ast.AST) -> set[str]:
    """Returns the names that a function, lambda or class reads from the enclosing scope, also in defaults and decorators."""
    if isinstance(scope, ast.ClassDef):
        outside = names([*scope.bases, *(k.value for k in scope.keywords), *scope.decorator_list])
        return outside.reads | names(scope.body).reads
    assert isinstance(scope, _FUNCTIONS)
    arguments = scope.args
    defaults = [d for d in (*arguments.defaults, *arguments.kw_defaults) if d is not None]
    outside = names([*defaults, *getattr(scope, "decorator_list", [])])
    body = names(scope.body)
    declared = declarations(scope.body) if isinstance(scope.body, list) else set()
    own = (body.writes - declared) | {each.arg for each in ast.walk(arguments) if isinstance(each, ast.arg)}
    return outside.reads | (body.reads - own) | declared


def declarations(body: Iterable[ast.stmt]) -> set[str]:
    """Returns the names that a function declares as another scope's (`global`, `nonlocal`)."""
    found: set[str] = set()
    for statement in statements(body):
        if isinstance(statement, ast.Global | ast.Nonlocal):
            found |= set(statement.names)
    return found


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields all statements of a scope, including nested ones, but not those of functions and classes in it."""
    for statement in body:
        yield statement
        if not isinstance(statement, SCOPES):
            for suite in suites(statement):
                yield from statements(suite)


def suites(statement: ast.AST) -> list[list[ast.stmt]]:
    """Returns the lists of statements in a compound statement."""
    found = [getattr(statement, field, None) for field in ("body", "orelse", "finalbody")]
    inner = [suite for suite in found if isinstance(suite, list) and suite]
    for field in ("handlers", "cases"):
        inner += [each.body for each in getattr(statement, field, [])]
    return inner


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yields a node and all nodes below it, except those inside functions and classes."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, SCOPES):
            yield from inside(child)


def root_name(node: ast.AST) -> str | None:
    """Returns the name at the root of an expression of attributes and subscripts."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def changed_parts(nodes: Iterable[ast.AST]) -> set[str]:
    """Returns the names of lists and dicts whose items statements set."""
    found = (node for each in nodes for node in inside(each))
    parts = (node for node in found if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load))
    return {name for name in map(root_name, parts) if name is not None}


def filled(nodes: Iterable[ast.AST]) -> set[str]:
    """Returns the names of lists to which statements add items by a method."""
    calls = (node.func for each in nodes for node in inside(each) if isinstance(node, ast.Call))
    lists = (f.value for f in calls if isinstance(f, ast.Attribute) and f.attr in FILLS)
    return {each.id for each in lists if isinstance(each, ast.Name)}
