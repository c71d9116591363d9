"""Moves statements that must run in Python out of a step, before or after it, if no dependency prevents it."""

import ast
import dataclasses
from collections.abc import Callable, Iterator, Sequence

from fdt.script.outline.names import FILLS, SCOPES, Names, inside, names, root_name
from fdt.script.outline.numbers import is_number
from fdt.script.outline.ranges import obstacle

# Calls that read the values of tensors.
_LOOKS = frozenset({"float", "int", "bool", "str", "repr", "format", "round", "print", "input"})
_METHODS = frozenset({"numpy", "item", "tolist"})
# Methods that are called only to keep a value for the script.
_KEEPS = frozenset(
    {"append", "appendleft", "extend", "insert", "add", "update", "write", "writelines", "flush", "scalar"}
    | {"set_description", "set_postfix", "info", "debug", "warning", "error", "log"}
)
# Calls that return a different value each time.
_TAKES = frozenset({"next", "time.time", "time.perf_counter", "time", "datetime.now", "datetime.datetime.now"})
_NUMPY = frozenset({"np", "numpy"})


@dataclasses.dataclass
class Order:
    """A step's statements.

    Attributes:
        before: Statements for Python, run before the step.
        step: Statements of the step.
        behind: Statements for Python, run after the step.
    """

    before: list[ast.stmt]
    step: list[ast.stmt]
    behind: list[ast.stmt]


class InTheWayError(Exception):
    """A statement in a step cannot be in a tf.function, and cannot be moved out of the step."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line, self.what = line, what


def ordered(found: Sequence[ast.stmt], known_numbers: set[str], trains: Callable[[ast.AST], bool]) -> Order:
    """Returns a step's statements in their new order; those in the block of a tape are moved out of it if necessary.

    Args:
        found: The statements.
        known_numbers: Names that are bound to Python numbers only.
        trains: Whether a node is a part of the training.

    Raises:
        InTheWayError: A statement for Python depends on statements of the step, and later ones depend on it.
    """
    flat = list(_flat(found))
    own = [names(statement.items if isinstance(statement, ast.With) else statement) for statement in flat]
    made: set[str] = set()
    places: dict[int, str] = {}
    for i, statement in enumerate(flat):
        is_python = _looks(statement, made, trains)
        problem = None if isinstance(statement, ast.With) else obstacle(statement)
        if (is_python or problem is not None) and all(_is_head(flat[k], places.get(k)) for k in range(i)):
            # No statement of the step precedes this one.
            places[i] = "before"
        elif isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign) and _takes(statement):
            if any(_depend(own[i], own[k]) for k in range(i) if places.get(k) != "before"):
                raise _in_the_way(statement, "takes from an iterator, and depends on what precedes it in the step")
            places[i] = "before"
        elif isinstance(statement, ast.Return) and i == len(flat) - 1:
            places[i] = "behind"
        elif problem is not None:
            raise InTheWayError(*problem)
        elif is_python:
            if any(trains(node) for node in inside(statement)):
                raise _in_the_way(statement, "reads the value of a tensor and trains by it")
            places[i] = "behind"
        elif not (isinstance(statement, ast.Delete) or _is_number_statement(statement, known_numbers)):
            made |= own[i].writes
            places[i] = "step"
    # A list that the step itself empties must be filled in the step.
    emptied = _emptied(flat)
    for i in (i for i, place in places.items() if place == "behind" and _is_filling(flat[i], emptied, made)):
        places[i] = "step"
    for i in (i for i in range(len(flat)) if i not in places):
        places[i] = _place_for_python(i, own, places)
    for i in (i for i, place in places.items() if place == "behind"):
        later = [k for k in range(i + 1, len(flat)) if places[k] != "behind"]
        kept = _kept_in(flat[i])
        if any(_depend(own[i], own[k]) or (kept and _mentions(flat[k], kept)) for k in later):
            raise _in_the_way(flat[i], "must run in Python, and what follows it in the step needs it")
    moved = {id(flat[i]) for i, place in places.items() if place != "step"}
    before, behind = ([flat[i] for i in sorted(places) if places[i] == place] for place in ("before", "behind"))
    return Order(before, without(found, moved), behind)


def split(found: Sequence[ast.stmt], known_numbers: set[str], trains: Callable[[ast.AST], bool]) -> list[ast.stmt]:
    """Splits a branch on a Python condition, with both training and statements for Python, into a branch for each statement.

    Args:
        found: The statements.
        known_numbers: Names that are bound to Python numbers only.
        trains: Whether a node is a part of the training.
    """
    done: list[ast.stmt] = []
    for place, statement in enumerate(found):
        if isinstance(statement, ast.If) and _is_mixed(statement, names(found).writes, trains):
            written = names([*statement.body, *statement.orelse, *found[place + 1 :]]).writes
            if is_number(statement.test, known_numbers) and not names(statement.test).reads & written:
                otherwise = ast.copy_location(ast.UnaryOp(ast.Not(), statement.test), statement.test)
                branches = ((statement.test, statement.body), (otherwise, statement.orelse))
                done += [ast.copy_location(ast.If(test, [each], []), each) for test, body in branches for each in body]
                continue
        done.append(statement)
    return done


def _is_mixed(branch: ast.If, made: set[str], trains: Callable[[ast.AST], bool]) -> bool:
    return _looks(branch, made, trains) and any(trains(node) for node in inside(branch))


def _emptied(flat: Sequence[ast.stmt]) -> set[str]:
    """Returns the names that statements bind, or call `clear` on."""
    calls = [node.func for statement in flat for node in inside(statement) if isinstance(node, ast.Call)]
    cleared = {root_name(f.value) for f in calls if isinstance(f, ast.Attribute) and f.attr == "clear"}
    return names(flat).writes | {name for name in cleared if name is not None}


def _is_filling(statement: ast.stmt, emptied: set[str], made: set[str]) -> bool:
    """Whether a statement only adds tensors to a list that the step empties."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in FILLS:
        return False
    is_plain = isinstance(call.func.value, ast.Name) and call.func.value.id in emptied
    return is_plain and not any(_is_look(node, made, lambda _: False) for each in call.args for node in inside(each))


def _kept_in(statement: ast.stmt) -> str:
    """Returns the object in which a statement keeps a value (`losses` of `losses.append(loss)`); "" if there is none."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    is_kept = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _KEEPS
    return ast.unparse(call.func.value) if is_kept else ""  # type: ignore[union-attr]


def _mentions(statement: ast.stmt, expression: str) -> bool:
    parts = statement.items if isinstance(statement, ast.With) else [statement]
    found = (node for part in parts for node in ast.walk(part) if isinstance(node, ast.Name | ast.Attribute))
    return any(ast.unparse(node) == expression for node in found)


def _is_head(statement: ast.stmt, place: str | None) -> bool:
    """Whether a statement computes nothing of the step: it makes a tape, or runs before the step."""
    return place == "before" or isinstance(statement, ast.With)


def _in_the_way(statement: ast.stmt, why: str) -> InTheWayError:
    return InTheWayError(statement.lineno, f"`{ast.unparse(statement).splitlines()[0]}` {why}")


def _place_for_python(i: int, own: Sequence[Names], places: dict[int, str]) -> str:
    """Returns the place of a `del`, or of a statement for Python numbers: outside the step, if dependencies allow it."""
    step = [k for k, place in places.items() if place == "step"]
    if not any(_depend(own[i], own[k]) for k in step if k > i):
        return "behind"
    behind = [k for k, place in places.items() if place == "behind" and k < i]
    return "step" if any(_depend(own[k], own[i]) for k in (*(k for k in step if k < i), *behind)) else "before"


def _depend(one: Names, other: Names) -> bool:
    """Whether two statements cannot change places."""
    return bool(one.writes & (other.reads | other.writes) or one.reads & other.writes)


def _flat(found: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields statements; for a `with` block, its head and then its statements."""
    for statement in found:
        yield statement
        if isinstance(statement, ast.With):
            yield from _flat(statement.body)


def _is_number_statement(statement: ast.stmt, known: set[str]) -> bool:
    if isinstance(statement, ast.Assign):
        targets: Sequence[ast.expr] = statement.targets
    elif isinstance(statement, ast.AugAssign):
        targets = [statement.target]
    else:
        return False
    return all(isinstance(t, ast.Name) and t.id in known for t in targets) and is_number(statement.value, known)


def _takes(statement: ast.stmt) -> bool:
    """Whether a statement takes an element from an iterator, or reads the time."""
    calls = [node.func for node in inside(statement) if isinstance(node, ast.Call)]
    return any(ast.unparse(function) in _TAKES for function in calls)


def _looks(statement: ast.stmt, made: set[str], trains: Callable[[ast.AST], bool]) -> bool:
    """Whether a statement is for Python: it reads values that the step makes, or keeps a value for the script."""
    if isinstance(statement, ast.Assert):
        return True
    if isinstance(statement, (ast.With, *SCOPES)):
        return False
    return any(_is_look(node, made, trains) for node in inside(statement))


def _is_look(node: ast.AST, made: set[str], trains: Callable[[ast.AST], bool]) -> bool:
    if isinstance(node, ast.JoinedStr):
        return bool(names(node).reads & made)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        # Not a list that the step makes, which is a part of it, nor an `update` of the script's own optimizer.
        is_kept = node.value.func.attr in _KEEPS and not trains(node.value)
        return is_kept and root_name(node.value.func.value) not in made
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "print" or (node.func.id in _LOOKS and bool(names(node.args).reads & made))
    if isinstance(node.func, ast.Attribute):
        is_numpy = root_name(node.func) in _NUMPY and bool(names(node.args).reads & made)
        return is_numpy or node.func.attr in _METHODS
    return False


def without(found: Sequence[ast.stmt], left_out: set[int]) -> list[ast.stmt]:
    """Returns statements without those with these ids, in `with` blocks too."""
    kept: list[ast.stmt] = []
    for statement in found:
        if id(statement) in left_out:
            continue
        if isinstance(statement, ast.With):
            body = without(statement.body, left_out) or [ast.copy_location(ast.Pass(), statement)]
            statement = ast.copy_location(ast.With(statement.items, body, statement.type_comment), statement)
        kept.append(statement)
    return kept
