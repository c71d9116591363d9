"""Finds the steps of eager loops: statements from a gradient tape to the last one of the same suite that uses its gradients."""

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from fdt.script.outline.names import SCOPES, changed_parts, filled, inside, names, suites

_TAPE = "GradientTape"
# Methods that change variables.
_UPDATES = frozenset(
    {"apply_gradients", "apply", "minimize", "assign", "assign_add", "assign_sub"}
    | {"scatter_update", "scatter_sub", "scatter_add"}
)
_ENDS_BLOCK = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)

Scope = ast.Module | ast.FunctionDef


@dataclasses.dataclass(frozen=True)
class Range:
    """A step.

    Attributes:
        scope: The function or module that it is in.
        suite: The list of statements that it is part of.
        start: Index of its first statement there.
        ends: Candidates for the index after its last statement; the first one with which it can be a function is used.
    """

    scope: Scope
    suite: list[ast.stmt]
    start: int
    ends: tuple[int, ...]


class Training:
    """Classifies the parts of a module that train.

    Functions that hold a part of a step are identified by their last names: those that make a tape and do not use its
    gradients to change variables, and those that change variables and have no tape.
    """

    def __init__(self, tree: ast.Module) -> None:
        tapes, updates = set(), set()
        for function in _functions(tree):
            called = {_called(node) for statement in function.body for node in inside(statement)}
            has_update = bool(called & {"apply_gradients", "minimize"})
            if _TAPE in called and not has_update:
                tapes.add(function.name)
            if _TAPE not in called and called & _UPDATES:
                updates.add(function.name)
        self._tapes, self._updates = frozenset(tapes), frozenset(updates - tapes)

    def begins(self, statement: ast.stmt) -> bool:
        """Whether a step begins with a statement."""
        if isinstance(statement, ast.With):
            return any(_called(item.context_expr) == _TAPE for item in statement.items)
        if isinstance(statement, SCOPES) or suites(statement):
            # A loop or a branch: a step can only begin inside its own suite.
            return False
        calls = [node for node in inside(statement) if isinstance(node, ast.Call)]
        return any(_called(call) in (_TAPE, *self._tapes) or _minimizes(call) for call in calls)

    def has_steps(self, statement: ast.stmt) -> bool:
        """Whether a statement, such as a loop, may contain whole steps."""
        if isinstance(statement, (ast.With, *SCOPES)):
            return False
        return any(self.begins(inner) or self.has_steps(inner) for suite in suites(statement) for inner in suite)

    def updates(self, statement: ast.stmt) -> bool:
        """Whether a statement may change variables."""
        return any(self._is_update(node) for node in inside(statement))

    def is_part(self, node: ast.AST) -> bool:
        """Whether a node belongs to the training itself."""
        return self._is_update(node) or _called(node) in (_TAPE, *self._tapes, "gradient", "jacobian", "batch_jacobian")

    def _is_update(self, node: ast.AST) -> bool:
        called = _called(node)
        is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        return called in self._updates or (called in _UPDATES and is_method)


def ranges(tree: ast.Module, training: Training) -> Iterator[Range]:
    """Yields the steps of a module; of nested steps, only the outermost."""
    yield from _in_suite(tree, tree.body, training)
    for function in _functions(tree):
        # TensorFlow makes a graph of such a function itself.
        if not any(_names_function(decorator) for decorator in function.decorator_list):
            yield from _in_suite(function, function.body, training)


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _in_suite(scope: Scope, suite: list[ast.stmt], training: Training) -> Iterator[Range]:
    place = 0
    while place < len(suite):
        statement = suite[place]
        lengths = _lengths(suite[place:], training) if training.begins(statement) else []
        if lengths:
            ends = [place + length + _trailing(suite[place + length :]) for length in reversed(lengths)]
            yield Range(scope, suite, place, tuple(ends))
            place = ends[0]
            continue
        if not isinstance(statement, SCOPES):
            for inner in suites(statement):
                yield from _in_suite(scope, inner, training)
        place += 1


def _lengths(found: Sequence[ast.stmt], training: Training) -> list[int]:
    """Returns, for each statement that changes variables by a tape's gradients, the number of statements up to it."""
    gradients: set[str] = set()
    lengths: list[int] = []
    for place, statement in enumerate(found):
        own = names(statement)
        follows = place == 0 or bool(own.reads & gradients)
        if (
            lengths
            and not follows
            and training.begins(statement)
            and not _is_shared(found[place:], gradients, training)
        ):
            break
        if place and training.has_steps(statement):
            break
        if follows and training.updates(statement):
            lengths.append(place + 1)
        if follows:
            gradients |= own.writes | changed_parts([statement]) | filled([statement])
    return lengths


def _is_shared(rest: Sequence[ast.stmt], gradients: set[str], training: Training) -> bool:
    """Whether statements after a second tape still change variables by the first tape's gradients."""
    written: set[str] = set()
    for statement in rest:
        own = names(statement)
        if (own.reads - written) & gradients and training.updates(statement):
            return True
        written |= own.writes
    return False


def _trailing(rest: Iterable[ast.stmt]) -> int:
    """Returns how many statements after a step still belong to it, since they update metrics."""
    count = 0
    for statement in rest:
        if not isinstance(statement, ast.Expr) or _called(statement.value) != "update_state":
            break
        count += 1
    return count


def obstacle(node: ast.AST, is_in_loop: bool = False) -> tuple[int, str] | None:
    """Returns the line and description of code in a statement that cannot be in a separate function; None if all can."""
    line = getattr(node, "lineno", 0)
    word = f"`{type(node).__name__.lower()}`"
    if isinstance(node, ast.Break | ast.Continue) and not is_in_loop:
        return line, f"{word} of a loop around it"
    if isinstance(node, (*_ENDS_BLOCK, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom)):
        return line, word
    if isinstance(node, ast.Call) and _called(node) in ("locals", "super", "eval", "exec", "vars"):
        return line, f"a call of `{_called(node)}`"
    if isinstance(node, ast.Delete) and any(not isinstance(target, ast.Name) for target in node.targets):
        return line, "`del` of a part"
    if isinstance(node, SCOPES):
        return None
    is_loop = isinstance(node, ast.For | ast.While)
    children = (obstacle(child, is_in_loop or is_loop) for child in ast.iter_child_nodes(node))
    return next(filter(None, children), None)


def _called(node: ast.AST) -> str:
    """Returns the last name of a call's function; "" if the node is no call."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _minimizes(call: ast.Call) -> bool:
    """Whether a call gives an optimizer a function whose gradients it computes itself."""
    has_variables = len(call.args) >= 2 or any(keyword.arg == "var_list" for keyword in call.keywords)
    return _called(call) == "minimize" and isinstance(call.func, ast.Attribute) and has_variables


def _names_function(decorator: ast.expr) -> bool:
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(node, ast.Attribute):
        if node.attr == "function":
            return True
    elif isinstance(node, ast.Name) and node.id == "function":
        return True
    # functools.partial(tf.function, …)
    return isinstance(decorator, ast.Call) and any(_names_function(argument) for argument in decorator.args)
