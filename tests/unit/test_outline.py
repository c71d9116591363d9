"""Outlining on paper: which statements become a step, what goes in and out, what is moved, what is in the way."""

import ast
import textwrap
from importlib.machinery import SourceFileLoader
from types import SimpleNamespace
from typing import Any

import pytest

from fdt.base.patch import Patches
from fdt.script.outline import files
from fdt.script.outline.rewriting import RUN, Site, outlined

_LOOP = """
    for epoch in range(3):
        for step, (x, y) in enumerate(data):
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x))
            gradients = tape.gradient(loss, model.weights)
            optimizer.apply_gradients(zip(gradients, model.weights))
            {behind}
"""


def _outlined(source: str) -> tuple[ast.Module, list[Site]]:
    tree, sites = ast.parse(textwrap.dedent(source)), list[Site]()

    def register(site: Site) -> int:
        sites.append(site)
        return len(sites) - 1

    outlined(tree, "train.py", register)
    compile(tree, "train.py", "exec")
    return tree, sites


def _site(source: str) -> Site:
    (site,) = _outlined(source)[1]
    return site


def test_from_the_tape_to_the_update() -> None:
    site = _site(_LOOP.format(behind="print(loss)"))
    assert (site.line, site.end_line, site.problem) == (4, 7, None)
    assert set(site.reads) == {"tf", "loss_fn", "y", "model", "x", "optimizer"}
    assert site.results == ("loss",)


def test_what_nobody_reads_later_is_no_result() -> None:
    assert _site(_LOOP.format(behind="pass")).results == ()


def test_what_a_function_of_the_module_reads_is_a_result() -> None:
    assert _site(_LOOP.format(behind="pass") + "\n    def last():\n        return gradients\n").results == (
        "gradients",
    )


def test_metrics_behind_the_update_belong_to_the_step() -> None:
    site = _site(_LOOP.format(behind="metric.update_state(y, loss)"))
    assert site.end_line == 8
    assert "metric" in site.reads


def test_functions_that_tensorflow_traces_are_left_alone() -> None:
    body = """
        def step(x):
            with tf.GradientTape() as tape:
                loss = model(x)
            optimizer.apply_gradients(zip(tape.gradient(loss, w), w))
            return loss
    """
    for decorator, count in (
        ("", 1),
        ("@tf.function", 0),
        ("@tf.function(jit_compile=True)", 0),
        ("@functools.cache", 1),
    ):
        source = textwrap.dedent(body)
        assert len(_outlined(f"{decorator}\n{source}" if decorator else source)[1]) == count, decorator


@pytest.mark.parametrize(
    "statement", ["losses.append(float(loss))", "print(loss.numpy())", "total += float(loss)", "assert loss > 0"]
)
def test_what_is_for_python_goes_behind_the_step(statement: str) -> None:
    source = f"""
        with tf.GradientTape() as tape:
            loss = f(x)
            {statement}
        w.assign_sub(tape.gradient(loss, w))
    """
    tree, (site,) = _outlined(source)
    assert site.problem is None
    assert site.results == ("loss",)
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    assert statement not in ast.unparse(function)
    assert statement in ast.unparse(tree.body[-2].orelse)  # type: ignore[attr-defined]


def test_a_counter_goes_before_what_reads_it() -> None:
    source = """
        t = 0
        while t < 9:
            with tf.GradientTape() as tape:
                loss = f(x)
            t += 1
            w.assign_sub(tape.gradient(loss, w) / (1 - 0.9 ** t))
    """
    tree, (site,) = _outlined(source)
    assert site.problem is None
    assert "t += 1\n    def " in ast.unparse(tree).replace("\n\n", "\n")
    assert site.numbers == ("computed",)


def test_numbers_that_python_computes_are_arguments() -> None:
    source = """
        with tf.GradientTape() as tape:
            loss = self.scale * f(x, self.batch) + self.scale
        w.assign_sub(tape.gradient(loss, w) * (rate * 2))
    """
    kinds = [kind for kind in _site(source).numbers if kind != "drawn"]
    assert kinds == ["looked up", "looked up", "computed"]


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("np.random.normal(size=(len(x), 3))", 1),
        ("rng.normal(size=3) + rng.normal(size=3)", 2),
        ("np.random.rand(3).astype('float32') * random.random()", 4),
        ("random.choice(seen)", 1),
        ("tf.constant(np.random.rand(3))", 1),
        ("np.arange(3)", 0),
        ("np.random.rand(len(np.arange(3)))", 1),
        ("rng.normal(size=made)", 0),
        ("rng.normal(size=draw())", 0),
        ("[rng.normal() for _ in x]", 0),
        ("rng.normal() if x else 0", 0),
    ],
)
def test_a_call_that_may_draw_is_an_argument_if_it_is_made_once_in_each_step(expression: str, count: int) -> None:
    source = f"""
        with tf.GradientTape() as tape:
            made = tf.constant(1)
            loss = tf.reduce_sum({expression})
        w.assign_sub(tape.gradient(loss, w))
    """
    site = _site(source)
    assert site.problem is None
    assert site.numbers.count("drawn") == count


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("np.vstack(self.seen)", 1),
        ("np.array([x]).astype('float32')", 2),
        ("np.mean(made)", 0),
        ("tf.stack([x])", 0),
        ("np.array(f(x))", 0),
    ],
)
def test_what_numpy_makes_of_what_was_there_may_be_an_argument(expression: str, count: int) -> None:
    source = f"""
        with tf.GradientTape() as tape:
            made = tf.constant(1)
            loss = model({expression})
        w.assign_sub(tape.gradient(loss, w))
        loss = model(np.array(w))
    """
    assert _site(source).numbers.count("array") == count


def test_what_is_taken_from_an_iterator_is_taken_before_the_step() -> None:
    source = """
        with tf.GradientTape() as tape:
            x = next(batches)
            loss = f(x)
        w.assign_sub(tape.gradient(loss, w))
    """
    tree, (site,) = _outlined(source)
    assert site.problem is None
    assert ast.unparse(tree).startswith("x = next(batches)\n")
    assert "x" in site.reads


@pytest.mark.parametrize("place", ["in the step", "behind it"])
def test_what_is_deleted_is_there_to_be_deleted(place: str) -> None:
    source = f"""
        with tf.GradientTape(persistent=True) as tape:
            loss = f(x)
        g = tape.gradient(loss, w)
        {"del tape" if place == "in the step" else "pass"}
        w.assign_sub(g)
        {"del tape" if place == "behind it" else "pass"}
    """
    tree, (site,) = _outlined(source)
    assert (site.problem, site.results) == (None, ("tape",))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    assert "del" not in ast.unparse(function)


def test_a_name_that_is_deleted_and_bound_again_stays_in_the_step() -> None:
    source = """
        with tf.GradientTape() as tape:
            d = f(x)
        one = tape.gradient(d, a)
        del tape
        with tf.GradientTape() as tape:
            g = h(x)
        opt.apply_gradients(zip([*one, *tape.gradient(g, b)], [*a, *b]))
    """
    tree, (site,) = _outlined(source)
    assert (site.problem, site.results) == (None, ())
    assert "del tape" in ast.unparse(next(node for node in tree.body if isinstance(node, ast.FunctionDef)))


def test_lists_that_the_step_fills_are_named() -> None:
    source = """
        with tf.GradientTape() as tape:
            loss = f(x)
        moments[0] = 0.9 * moments[0] + tape.gradient(loss, w)
        w.assign_sub(moments[0])
    """
    assert _site(source).changed == ("moments",)


@pytest.mark.parametrize(
    ("statement", "line", "why"),
    [
        ("if float(loss) < 1: w.assign(w * 0.5)", 4, "trains by it"),
        ("loss = loss * float(loss)", 4, "needs it"),
        ("self.model.loss = loss", 4, "is set in the step"),
        ("self.moments[0] = loss", 4, "is set in the step"),
        ("exec('loss')", 4, "a call of `exec`"),
        ("y = next(loss)", 4, "takes from an iterator"),
        ("seen.append(loss); loss = tf.add_n(seen)", 4, "needs it"),
    ],
)
def test_what_is_in_the_way_is_named(statement: str, line: int, why: str) -> None:
    source = f"""
        with tf.GradientTape() as tape:
            loss = f(x)
            {statement}
        w.assign_sub(tape.gradient(loss, w))
    """
    problem = _site(source).problem
    assert problem is not None
    assert problem[0] == line
    assert why in problem[1]


def test_leaving_a_loop_amid_a_step_is_in_the_way() -> None:
    source = """
        for x in data:
            with tf.GradientTape() as tape:
                loss = f(x)
            if stop: break
            w.assign_sub(tape.gradient(loss, w))
    """
    problem = _site(source).problem
    assert problem is not None
    assert "`break`" in problem[1]


def test_two_steps_in_turn_are_two_and_a_shared_one_is_one() -> None:
    turn = """
        with tf.GradientTape() as tape:
            d = f(x)
        opt.apply_gradients(zip(tape.gradient(d, a), a))
        with tf.GradientTape() as tape:
            g = h(x)
        opt.apply_gradients(zip(tape.gradient(g, b), b))
    """
    assert len(_outlined(turn)[1]) == 2
    shared = """
        with tf.GradientTape() as tape:
            d = f(x)
        one = tape.gradient(d, a)
        with tf.GradientTape() as tape:
            g = h(x)
        opt.apply_gradients(zip(tape.gradient(g, b), b))
        opt.apply_gradients(zip(one, a))
    """
    (site,) = _outlined(shared)[1]
    assert (site.line, site.end_line) == (2, 8)


def test_helpers_that_hold_a_part_of_the_step() -> None:
    source = """
        def grads(x):
            with tf.GradientTape() as tape:
                loss = f(x)
            return loss, tape.gradient(loss, w)
        def update(g):
            opt.apply_gradients(zip(g, w))
        for x in data:
            loss, g = grads(x)
            update(g)
            print(loss)
    """
    site = _site(source)
    assert (site.line, site.end_line, site.results) == (9, 10, ("loss",))


class _Recorder:
    """Stands for what runs steps: runs their functions here."""

    def __init__(self, runs: bool) -> None:
        self.runs = runs

    def __call__(self, number: int, function: Any, names: Any, numbers: Any) -> Any:
        if not self.runs:
            return None
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        scope = {**function.__globals__, **names}
        values = [scope.get(name) for name in parameters[: len(parameters) - len(numbers)]]
        after = function(*values, *(number() for number in numbers))
        return {name: after[name] for name in _WANTED if name in after}


_WANTED = ("loss", "total", "k", "tape")


@pytest.mark.parametrize("runs", [True, False])
def test_both_forms_do_what_the_program_did(runs: bool) -> None:
    """A program of plain numbers, once by its functions and once as it was."""
    source = """
        log, total, t, w = [], 0.0, 0, [1.0]
        class Scale: factor = 2
        scale = Scale()
        for x in (1.0, 2.0, 3.0):
            with tf.GradientTape() as tape:
                loss = x * w[0] * scale.factor
                log.append(float(loss))
            t += 1
            g = tape.gradient(loss, w)
            del tape
            variable.assign_sub(g * 0.1 ** t)
            for k in range(2):
                total += float(loss)
            scale.factor += 1
    """

    class Tape:
        def __enter__(self) -> "Tape":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def gradient(self, loss: float, w: list[float]) -> float:
            return loss / w[0]

    def run(tree: ast.Module, **more: Any) -> dict[str, Any]:
        changes: list[float] = []
        space = {
            "tf": SimpleNamespace(GradientTape=Tape),
            "variable": SimpleNamespace(assign_sub=changes.append),
            **more,
        }
        exec(compile(tree, "train.py", "exec"), space)  # what is tested
        return {name: space[name] for name in ("log", "total", "t", "loss", "k")} | {"changes": changes}

    tree, sites = _outlined(source)
    assert [site.problem for site in sites] == [None]
    assert run(tree, **{RUN: _Recorder(runs)}) == run(ast.parse(textwrap.dedent(source)))


def test_where_libraries_are_is_asked_before_the_loader_is_hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sysconfig` of Python 3.13 imports its data by the loader when it is first asked, and fails if it is asked meanwhile."""
    hooked: list[bool] = []
    asked = files.sysconfig.get_paths

    def paths(*arguments: Any) -> dict[str, str]:
        hooked.append("get_code" in vars(SourceFileLoader))
        return asked(*arguments)

    monkeypatch.setattr(files.sysconfig, "get_paths", paths)
    files._libraries.cache_clear()
    patches = Patches()
    files.watch(patches)
    patches.undo()
    assert hooked and not any(hooked)
