"""Which names and expressions are numbers that Python computes."""

import ast
from collections.abc import Callable

from fdt.outline.names import SCOPES, inside

# Of Python's own, what makes numbers of numbers.
_PURE = frozenset({"min", "max", "abs", "int", "float", "round", "pow", "bool"})


def is_number(node: ast.AST, known: set[str]) -> bool:
    """Whether an expression is a number, if these names are."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return True
    return of_numbers(node, lambda leaf: isinstance(leaf, ast.Name) and leaf.id in known)


def of_numbers(node: ast.AST, is_leaf: Callable[[ast.AST], bool]) -> bool:
    """Whether an expression computes with constants and leaves alone, and nothing but numbers if these are numbers."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool | int | float)
    if isinstance(node, ast.BinOp):
        parts: list[ast.expr] = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.BoolOp):
        parts = node.values
    elif isinstance(node, ast.Call) and not node.keywords and _is_pure(node.func):
        parts = node.args
    else:
        return is_leaf(node)
    return all(of_numbers(part, is_leaf) for part in parts)


def _is_pure(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return isinstance(function.value, ast.Name) and function.value.id == "math"
    return isinstance(function, ast.Name) and function.id in _PURE


def known_numbers(scope: ast.Module | ast.FunctionDef) -> set[str]:
    """Returns the names of a scope that are bound to numbers wherever it binds them."""
    bound = _bindings(scope)
    known = set(bound)
    while True:
        kept = {name for name in known if all(value is not None and is_number(value, known) for value in bound[name])}
        if kept == known:
            return known
        known = kept


_NUMBER = ast.Constant(0)


def _bindings(scope: ast.Module | ast.FunctionDef) -> dict[str, list[ast.expr | None]]:
    """Returns for each name what it is bound to; None for what is not looked into."""
    bound: dict[str, list[ast.expr | None]] = {}

    def bind(target: ast.AST, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for each, its in zip(target.elts, value.elts, strict=True):
                bind(each, its)
            return
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound.setdefault(node.id, []).append(value if node is target else None)

    def of_loop(loop: ast.For) -> None:
        called = loop.iter.func.id if isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Name) else ""
        if called == "range":
            bind(loop.target, _NUMBER)
        elif called == "enumerate" and isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2:
            bind(loop.target.elts[0], _NUMBER)
            bind(loop.target.elts[1], None)
        else:
            bind(loop.target, None)

    for statement in scope.body:
        for node in inside(statement):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    bind(target, node.value)
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                bind(node.target, node.value)
            elif isinstance(node, ast.For):
                of_loop(node)
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound.setdefault(node.id, [])
            elif isinstance(node, ast.Global | ast.Nonlocal):
                # Others may bind it.
                for name in node.names:
                    bound.setdefault(name, []).append(None)
            elif isinstance(node, SCOPES) and not isinstance(node, ast.Lambda):
                bound.setdefault(node.name, []).append(None)
    return _counted(scope, bound)


def _counted(
    scope: ast.Module | ast.FunctionDef, bound: dict[str, list[ast.expr | None]]
) -> dict[str, list[ast.expr | None]]:
    """Leaves out names that are also bound in ways that are not listed: by `with`, `import`, patterns, other functions."""
    stores: dict[str, int] = {}
    for statement in scope.body:
        for node in inside(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                stores[node.id] = stores.get(node.id, 0) + 1
    declared = {n for node in ast.walk(scope) if isinstance(node, ast.Global | ast.Nonlocal) for n in node.names}
    arguments = (
        {node.arg for node in ast.walk(scope.args) if isinstance(node, ast.arg)} if hasattr(scope, "args") else set()
    )
    return {
        name: values
        for name, values in bound.items()
        if len(values) == stores.get(name, 0) and name not in declared and name not in arguments
    }
