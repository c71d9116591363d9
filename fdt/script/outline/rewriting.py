"""Rewrites a module's syntax tree, so that its steps can also run as functions."""

import ast
import builtins
import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from fdt.script.outline.liveness import Liveness, read_by_functions
from fdt.script.outline.names import SCOPES, changed_parts, inside, names, root_name
from fdt.script.outline.numbers import (
    LOOKED_UP,
    Kind,
    draws_in,
    is_of_numpy,
    is_surely_drawing,
    known_numbers,
    of_numbers,
)
from fdt.script.outline.order import InTheWayError, ordered, split, without
from fdt.script.outline.ranges import Scope, Training, ranges

# The function that the rewritten program calls, and the names that it binds.
RUN = "__fdt_outlined__"
_RESULTS = "__fdt_results__"
_STEP, _NUMBER = "__fdt_step_{}__", "__fdt_number_{}__"
_BUILTINS = frozenset(dir(builtins))
# Nodes whose parts may run not at all, or more than once.
_MAYBE = (ast.For, ast.While, ast.If, ast.Try, ast.TryStar, ast.Match, ast.IfExp, ast.BoolOp, ast.Compare)


@dataclasses.dataclass(frozen=True)
class Site:
    """A step of a loop, in a file.

    Attributes:
        file: The file.
        line: Line of its first statement.
        end_line: Last line of its last statement.
        reads: Names that it reads from the enclosing code.
        results: Names that it writes and that are read after it.
        changed: Lists and dicts among `reads` whose items it changes.
        numbers: Kinds of the expressions that Python may compute for the step.
        within: For each of these, the index of the one that contains it; -1 if none does.
        problem: Line and description of code that cannot be in a function; None if there is none.
    """

    file: str
    line: int
    end_line: int
    reads: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    numbers: tuple[Kind, ...] = ()
    within: tuple[int, ...] = ()
    problem: tuple[int, str] | None = None


def outlined(tree: ast.Module, file: str, register: Callable[[Site], int]) -> None:
    """Rewrites a module, if it has steps of eager loops.

    Args:
        tree: The module; changed in place.
        file: Name of its file.
        register: Registers a step, and returns its number in the program.
    """
    module = _Module(tree)
    # From the last to the first, so that the indices of earlier steps stay valid.
    for found in sorted(ranges(tree, module.training), key=lambda each: -each.start):
        problems: list[Site] = []
        for end in found.ends:
            statements = found.suite[found.start : end]
            site = Site(file, statements[0].lineno, max(s.end_lineno or s.lineno for s in statements))
            try:
                written = _Writer(module, found.scope, statements, site)
            except InTheWayError as error:
                problems.append(dataclasses.replace(site, problem=(error.line, error.what)))
                continue
            found.suite[found.start : end] = written.statements(register(written.site))
            break
        else:
            register(problems[-1])
    ast.fix_missing_locations(tree)


class _Module:
    """Facts about a whole module before it is changed."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self.training = Training(tree)
        self._by_functions = read_by_functions(tree.body)
        self._bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        self.imported = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in names(node).writes
        }
        self._bound |= self.imported | {n.name for n in ast.walk(tree) if isinstance(n, SCOPES) and hasattr(n, "name")}
        self._liveness: dict[ast.AST, Liveness] = {}

    def after(self, scope: Scope, statement: ast.stmt) -> set[str]:
        """Returns the names that are read after a statement."""
        if scope not in self._liveness:
            at_end = self._by_functions if scope is self._tree else set()
            self._liveness[scope] = Liveness(scope.body, at_end)
        return self._liveness[scope].after(statement)

    def is_builtin(self, name: str) -> bool:
        """Whether a name is a builtin that the module does not rebind."""
        return name in _BUILTINS and name not in self._bound


class _Writer:
    """Writes one step."""

    def __init__(self, module: _Module, scope: Scope, found: list[ast.stmt], site: Site) -> None:
        known, last = known_numbers(scope), found[-1]
        self._found = found = split(found, known, module.training.is_part)
        order = ordered(found, known, module.training.is_part)
        _refuse_attributes(order.step)
        own, behind = names(order.step), names(order.behind)
        live = module.after(scope, last) | behind.reads
        reads = {n for n in Liveness(order.step, set()).at_start if not module.is_builtin(n)}
        changed = changed_parts(order.step) & reads
        numbers = _Numbers(own.writes, module.imported)
        self._step: list[Any] = []
        for statement in order.step:
            numbers.is_before_updates &= not module.training.updates(statement)
            self._step.append(numbers.visit(copy.deepcopy(statement)))
        self._order, self._numbers = order, numbers
        self.site = dataclasses.replace(
            site,
            reads=_in_order(order.step, reads, own.writes | changed),
            results=tuple(sorted(own.writes & live)),
            changed=tuple(sorted(changed)),
            numbers=tuple(numbers.kinds),
            within=tuple(numbers.within),
        )

    def statements(self, number: int) -> list[ast.stmt]:
        """Returns the statements that replace the step."""
        first, last = self._found[0], self._found[-1]
        step = _STEP.format(number)
        parameters = [*self.site.reads, *(_NUMBER.format(i) for i in range(len(self._numbers.found)))]
        function = _parsed(f"def {step}({', '.join(parameters)}): pass", first)
        assert isinstance(function, ast.FunctionDef)
        function.body = [*self._step, _parsed("return locals()", last, in_function=True)]
        call = _parsed(f"{_RESULTS} = {RUN}({number}, {step}, locals(), [])", first)
        assert isinstance(call, ast.Assign) and isinstance(call.value, ast.Call)
        lambdas = call.value.args[-1]
        assert isinstance(lambdas, ast.List)
        lambdas.elts = [_lambda(each) for each in self._numbers.found]
        given = [
            _parsed(f"if {name!r} in {_RESULTS}: {name} = {_RESULTS}[{name!r}]", last) for name in self.site.results
        ]
        moved = {id(statement) for statement in self._order.before}
        choice = _parsed(f"if {_RESULTS} is None: pass\nelse: pass", first)
        assert isinstance(choice, ast.If)
        choice.body = without(self._found, moved) or [ast.copy_location(ast.Pass(), first)]
        choice.orelse = [*given, *self._order.behind] or [ast.copy_location(ast.Pass(), last)]
        return [*self._order.before, function, call, choice, _parsed(f"{_RESULTS} = None", last)]


class _Numbers(ast.NodeTransformer):
    """Replaces expressions that Python may have to compute, such as changing numbers, by arguments of the step.

    Attributes:
        found: The expressions; one that may be drawn is a tuple `(the functions that draw it, lambda: the expression)`.
        kinds: The kind of each.
        within: See `Site`.
        is_before_updates: Whether variables still have their values from before the step.
    """

    def __init__(self, written: set[str], imported: set[str]) -> None:
        self._written, self._imported = written, imported
        self.found: list[ast.expr] = []
        self.kinds: list[Kind] = []
        self.within: list[int] = []
        self._places: dict[str, int] = {}
        # Whether the visited node runs exactly once in each step.
        self.is_before_updates = self._is_once = True
        self._outer = -1

    def visit(self, node: Any) -> Any:
        """Returns a node with its expressions replaced; leaves nested functions, comprehensions and f-strings unchanged."""
        if isinstance(node, (*SCOPES, ast.comprehension, ast.JoinedStr)):
            return node
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return node
        outer, self._is_once = self._is_once, self._is_once and not isinstance(node, _MAYBE)
        try:
            return self._seen(node)
        finally:
            self._is_once = outer

    def _seen(self, node: Any) -> Any:
        draws = draws_in(node, self._written) if self._is_once and isinstance(node, ast.expr) else None
        if draws and (len(draws) == 1 or all(map(is_surely_drawing, draws))):
            # Equal expressions are not merged: each draws for itself.
            functions = ast.Tuple(copy.deepcopy(draws), ast.Load())
            pair: list[ast.expr] = [functions, _lambda(copy.deepcopy(node))]
            return self._made(node, ast.copy_location(ast.Tuple(pair, ast.Load()), node), "drawn")
        if draws is not None and self.is_before_updates and is_of_numpy(node):
            return self._made(node, copy.deepcopy(node), "array")
        return self._other(node)

    def _made(self, node: ast.expr, expression: ast.expr, kind: Kind) -> ast.expr:
        place = len(self.found)
        self._add(expression, kind)
        outer, self._outer = self._outer, place
        inner = self._other(node)
        self._outer = outer
        return self._if_none(place, inner)

    def _other(self, node: Any) -> Any:
        if isinstance(node, ast.Call):
            # The called function is not a number, but the object of which it is a method may contain numbers.
            node.args = [self._visited(each) for each in node.args]
            node.keywords = [ast.keyword(k.arg, self._visited(k.value)) for k in node.keywords]
            if isinstance(node.func, ast.Attribute) and not _is_chain(node.func):
                node.func.value = self._visited(node.func.value)
            return node
        is_candidate = isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare | ast.BoolOp | ast.Attribute)
        if is_candidate and isinstance(getattr(node, "ctx", ast.Load()), ast.Load) and self._may_be_number(node):
            written = ast.unparse(node)
            if written not in self._places:
                self._places[written] = len(self.found)
                self._add(copy.deepcopy(node), LOOKED_UP if isinstance(node, ast.Attribute) else "computed")
            return self._if_none(self._places[written], node)
        if isinstance(node, ast.Attribute) and _is_chain(node):
            return node
        return super().visit(node) if not isinstance(node, ast.Attribute) else self.generic_visit(node)

    def _add(self, expression: ast.expr, kind: Kind) -> None:
        self.found.append(expression)
        self.kinds.append(kind)
        self.within.append(self._outer if kind in ("drawn", "array") else -1)

    def _if_none(self, place: int, node: ast.expr) -> ast.expr:
        name = ast.Name(_NUMBER.format(place), ast.Load())
        test = ast.Compare(name, [ast.Is()], [ast.Constant(None)])
        return ast.copy_location(ast.IfExp(test, node, name), node)

    def _visited(self, node: ast.expr) -> ast.expr:
        visited = self.visit(node)
        assert isinstance(visited, ast.expr)
        return visited

    def _may_be_number(self, node: ast.AST) -> bool:
        leaves: list[ast.AST] = []
        not_numbers = self._written | self._imported

        def is_leaf(leaf: ast.AST) -> bool:
            leaves.append(leaf)
            return isinstance(leaf, ast.Name | ast.Attribute) and _is_chain(leaf) and root_name(leaf) not in not_numbers

        return of_numbers(node, is_leaf) and bool(leaves)


def _is_chain(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _refuse_attributes(step: Sequence[ast.stmt]) -> None:
    """Refuses assignments to items of attributes, and to attributes of attributes."""
    for node in (node for statement in step for node in inside(statement)):
        is_set = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
        target: ast.AST = node
        while is_set and isinstance(target, ast.Subscript):
            target = target.value
        is_plain = target is node and isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if is_set and isinstance(target, ast.Attribute) and not is_plain:
            raise InTheWayError(target.lineno, f"`{ast.unparse(node)}` is set in the step")


def _in_order(step: Sequence[ast.stmt], reads: set[str], carried: set[str]) -> tuple[str, ...]:
    """Returns names in the order of use, so that a batch is likely first; names that steps pass to the next come last."""
    loads = (n.id for s in step for n in ast.walk(s) if isinstance(n, ast.Name) and n.id in reads)
    found = dict.fromkeys([*loads, *sorted(reads)])
    return tuple(sorted(found, key=lambda name: name in carried))


def _lambda(body: ast.expr) -> ast.Lambda:
    return ast.copy_location(ast.Lambda(ast.arguments([], [], None, [], [], None, []), body), body)


def _parsed(text: str, where: ast.stmt, in_function: bool = False) -> ast.stmt:
    """Parses a statement and gives it a location in the script."""
    tree = ast.parse(f"def f(): {text}" if in_function else text)
    statement = tree.body[0]
    if in_function:
        assert isinstance(statement, ast.FunctionDef)
        statement = statement.body[0]
    for node in ast.walk(statement):
        if hasattr(node, "lineno"):
            ast.copy_location(node, where)
    return statement
