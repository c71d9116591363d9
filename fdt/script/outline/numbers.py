"""Finds names and expressions that are Python's numbers: computed or looked up by Python, or drawn at random."""

import ast
from collections.abc import Callable, Iterable
from typing import Literal

from fdt.script.outline.names import SCOPES, inside, root_name

# Kinds of expressions: computed from numbers, an attribute, possibly drawn at random, or computed by NumPy.
Kind = Literal["computed", "looked up", "drawn", "array"]
LOOKED_UP: Kind = "looked up"
_NUMPY = frozenset({"np", "numpy"})
# Python's own functions from numbers to numbers.
_PURE = frozenset({"min", "max", "abs", "int", "float", "round", "pow", "bool"})


def is_number(node: ast.AST, known: set[str]) -> bool:
    """Whether an expression is a number, given the names that are known to be numbers."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return True
    return of_numbers(node, lambda leaf: isinstance(leaf, ast.Name) and leaf.id in known)


def of_numbers(node: ast.AST, is_leaf: Callable[[ast.AST], bool]) -> bool:
    """Whether an expression is computed from constants and leaves only, and gives a number if all leaves are numbers."""
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


def draws_in(node: ast.expr, written: set[str]) -> list[ast.expr] | None:
    """Returns the functions called in an expression that may draw random numbers, of `random`, `numpy.random` or a generator.

    Args:
        node: The expression.
        written: Names that the step binds.

    Returns:
        The functions; None if Python alone cannot evaluate the expression before the step.
    """
    if isinstance(node, ast.Constant):
        return []
    if isinstance(node, ast.Name):
        return None if node.id in written or node.id == "tf" else []
    if isinstance(node, ast.Call):
        return _draws_of_call(node, written)
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Subscript | ast.Slice | ast.Tuple | ast.List | ast.Attribute):
        return _draws_of_all([each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)], written)
    return None


def _draws_of_all(nodes: Iterable[ast.expr], written: set[str]) -> list[ast.expr] | None:
    found: list[ast.expr] = []
    for node in nodes:
        inner = draws_in(node, written)
        if inner is None:
            return None
        found += inner
    return found


def _draws_of_call(call: ast.Call, written: set[str]) -> list[ast.expr] | None:
    inner = _draws_of_all([*call.args, *(keyword.value for keyword in call.keywords)], written)
    if inner is None:
        return None
    function, root = call.func, root_name(call.func)
    if _is_pure(function) or (isinstance(function, ast.Name) and function.id in ("len", "list")):
        return inner
    if isinstance(function, ast.Attribute) and root is None:
        # A method of a drawn or computed value.
        of = draws_in(function.value, written)
        return None if of is None else [*of, *inner]
    if not isinstance(function, ast.Attribute) or root in written or root == "tf":
        return None
    is_numpy = root in _NUMPY and not is_surely_drawing(function)
    return inner if is_numpy else [function, *inner]


def is_of_numpy(node: ast.expr) -> bool:
    """Whether an expression is a call of a NumPy function, or of a method of such a function's result."""
    while isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Call) and root_name(node.func) in _NUMPY:
            return True
        node = node.func if isinstance(node, ast.Call) else node.value
    return False


def is_surely_drawing(function: ast.expr) -> bool:
    """Whether a function's name is one in `random` or `numpy.random`."""
    chain = ast.unparse(function).split(".")
    return chain[0] == "random" or (chain[0] in _NUMPY and chain[1] == "random")


def known_numbers(scope: ast.Module | ast.FunctionDef) -> set[str]:
    """Returns the names of a scope that it binds to numbers only."""
    bound = _bindings(scope)
    known = set(bound)
    while True:
        kept = {name for name in known if all(value is not None and is_number(value, known) for value in bound[name])}
        if kept == known:
            return known
        known = kept


_NUMBER = ast.Constant(0)


def _bindings(scope: ast.Module | ast.FunctionDef) -> dict[str, list[ast.expr | None]]:
    """Returns for each name the expressions that it is bound to; None for a binding that is not analysed."""
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
                # Other scopes may bind it.
                for name in node.names:
                    bound.setdefault(name, []).append(None)
            elif isinstance(node, SCOPES) and not isinstance(node, ast.Lambda):
                bound.setdefault(node.name, []).append(None)
    return _counted(scope, bound)


def _counted(
    scope: ast.Module | ast.FunctionDef, bound: dict[str, list[ast.expr | None]]
) -> dict[str, list[ast.expr | None]]:
    """Drops names that are also bound elsewhere: by `with`, `import` or a pattern, or in another function."""
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
