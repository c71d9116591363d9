"""Programs with eager steps, as they are and with their steps traced: both leave the same values of the same types."""

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from fdt.base.patch import Patches
from fdt.capture.loop.outlined import Outlined
from fdt.capture.step import seeds, unseen
from fdt.capture.watching import calling
from fdt.script.outline.rewriting import RUN, Site, outlined

_HEAD = """
import numpy as np, tensorflow as tf
x = np.random.RandomState(0).rand(40, 3).astype("float32")
y = x.sum(1, keepdims=True)
w = tf.Variable([[0.1], [0.2], [0.3]])
"""


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    def called(original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        with calling(function):
            return original(function, *args, **kwargs)

    patches = Patches()
    seeds.install(patches)
    unseen.install(patches)
    patches.wrap(Function, "__call__", called)
    yield
    patches.undo()
    sys.modules.pop("train", None)


def _left(folder: Path, source: str, is_traced: bool) -> dict[str, Any]:
    """Runs a program; returns its names and values."""
    file, sites = str(folder / "train.py"), list[Site]()
    tree = ast.parse(_HEAD + source, file)

    def register(site: Site) -> int:
        sites.append(site)
        return len(sites) - 1

    module = sys.modules["train"] = ModuleType("train")
    module.__file__, space = file, vars(module)
    if is_traced:
        outlined(tree, file, register)
        observer: Any = SimpleNamespace(take_for_training=lambda graph: None)
        steps = Outlined(observer, lambda: True, lambda function: None)

        def run(number: int, *others: Any) -> Any:
            results = steps.step(sites[number], *others)
            assert results is not None, steps.problem(file, sites[number].line)
            return results

        assert [site.problem for site in sites] == [None] * len(sites) and sites
        space[RUN] = run
    exec(compile(tree, file, "exec"), space)  # what is tested
    return space


def _expect_same(folder: Path, source: str, *names: str) -> None:
    # What nobody reads later is no result of a step.
    source = f"{textwrap.dedent(source)}\ndef last():\n    return {', '.join(names)}\n"
    plain, traced = (_left(folder, source, is_traced) for is_traced in (False, True))
    for name in names:
        mine, expected = traced[name], plain[name]
        assert tf.is_tensor(mine) == tf.is_tensor(expected), name
        if not tf.is_tensor(expected):
            assert type(mine) is type(expected), name
        for one, other in zip(tf.nest.flatten(mine), tf.nest.flatten(expected), strict=True):
            assert tf.is_tensor(one) == tf.is_tensor(other) and (tf.is_tensor(one) or type(one) is type(other)), name
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, err_msg=name)


def test_numbers_that_become_tensors(tmp_path: Path) -> None:
    """A sum that is an int at first is no int afterwards; a counter stays one; a name that is None, or differs with it."""
    source = """
        m = total = count = 0
        best = before = None
        scale = 1
        for step in range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x[step * 10 : step * 10 + 10] @ w - y[step * 10 : step * 10 + 10]) ** 2)
            g = tape.gradient(loss, w)
            m = 0.9 * m + 0.1 * g
            total = total + loss
            best = loss if best is None else tf.minimum(best, loss)
            gain = 0 if before is None else before - loss
            before = loss
            count = count + 1
            scale = scale * 0.5
            is_late = count > 2
            w.assign_sub(0.5 * m / (1 - 0.9 ** count))
    """
    _expect_same(tmp_path, source, "m", "total", "best", "gain", "count", "scale", "is_late", "w")


def test_attributes_and_lists_of_numbers_that_become_tensors(tmp_path: Path) -> None:
    source = """
        class State:
            total, m, count, rate = 0, 0.0, 0, 1
        state, moments, counts = State(), [0, 0.0], [0]
        def train(a, b):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((a @ w - b) ** 2)
            g = tape.gradient(loss, w)
            state.total += loss
            state.m = 0.9 * state.m + 0.1 * g
            state.count += 1
            state.rate = state.rate * 0.5
            moments[0] = 0.9 * moments[0] + 0.1 * g
            moments[1] = 0.9 * moments[1] + 0.1 * tf.reduce_mean(g**2)
            counts[0] += 1
            w.assign_sub(0.1 * state.m + 0.1 * moments[0] / (1 - 0.9 ** counts[0]))
        for i in range(4):
            train(x[i * 10 : i * 10 + 10], y[i * 10 : i * 10 + 10])
        total, m, count, rate = state.total, state.m, state.count, state.rate
    """
    _expect_same(tmp_path, source, "total", "m", "count", "rate", "moments", "counts", "w")


def test_methods_of_the_arrays_of_a_batch(tmp_path: Path) -> None:
    source = """
        labels, seen = y[:, 0] > 1.5, 0.0
        for i in range(4):
            batch, label = x[i * 10 : i * 10 + 10], labels[i * 10 : i * 10 + 10]
            with tf.GradientTape() as tape:
                wanted = label.reshape(-1, 1).astype("float32") * 2
                loss = tf.reduce_mean((batch @ w - wanted) ** 2 * batch.sum(axis=1, keepdims=True)) + batch.T.mean()
            w.assign_sub(0.1 * tape.gradient(loss, w))
            seen += np.expand_dims(batch, 0).mean()
    """
    _expect_same(tmp_path, source, "w", "loss", "seen")


_MICRO_BATCHES = """
b, kept, total = tf.Variable([0.0]), [], None
for i in range(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x[i * 5 : i * 5 + 5] @ w + b - y[i * 5 : i * 5 + 5]) ** 2)
    g = tape.gradient(loss, [w, b])
    {collected}
"""
_COLLECTED = {
    "added up, and told of": """
    total = g if total is None else [p + q for p, q in zip(total, g)]
    if (i + 1) % 4 == 0:
        for p, v in zip(total, [w, b]): v.assign_sub(0.1 * p)
        total = None
        kept.append(float(loss))
    """,
    "appended": """
    parts.append(g)
    if len(parts) == 4:
        for ps, v in zip(zip(*parts), [w, b]): v.assign_sub(0.1 * tf.add_n(ps))
        parts = []
    """,
    "appended and cleared": """
    parts.append(g)
    if i % 4 == 3:
        for ps, v in zip(zip(*parts), [w, b]): v.assign_sub(0.1 * sum(ps))
        parts.clear()
    """,
    "added to the list": """
    parts += [g]
    if i % 4 == 3:
        for ps, v in zip(zip(*parts), [w, b]): v.assign_sub(0.1 * sum(ps))
        kept.append(loss.numpy())
        parts = []
    """,
    "in places": """
    if i % 4 == 0: total = list(g)
    else:
        for k in range(2): total[k] = total[k] + g[k]
    if i % 4 == 3:
        for p, v in zip(total, [w, b]): v.assign_sub(0.1 * p)
    """,
}


@pytest.mark.parametrize("collected", _COLLECTED)
def test_gradients_collected_over_micro_batches(collected: str, tmp_path: Path) -> None:
    source = "parts = []" + _MICRO_BATCHES.replace(
        "    {collected}\n", textwrap.dedent(_COLLECTED[collected]).replace("\n", "\n    ")
    )
    _expect_same(tmp_path, source, "w", "b", "kept", "loss", "parts")


_KEEPING = {
    "a dict": """
        kept = {}

        def scale(n):
            if n not in kept:
                kept[n] = tf.linspace(0.5, 1.5, n)
            return kept[n]
    """,
    "a cache": """
        import functools

        @functools.lru_cache
        def scale(n):
            return tf.linspace(0.5, 1.5, n)
    """,
    "a property": """
        import functools

        class Keeper:
            @functools.cached_property
            def kept(self):
                return tf.linspace(0.5, 1.5, 3)

        keeper = Keeper()

        def scale(n):
            return keeper.kept
    """,
    "a function": """
        class Keeper(tf.Module):
            kept, calls = None, 0

            @tf.function
            def scale(self, n):
                self.calls += 1
                if self.kept is None:
                    self.kept = tf.Variable(tf.linspace(0.5, 1.5, 3))
                return self.kept * 1.0

        keeper = Keeper()

        def scale(n):
            return keeper.scale(n)
    """,
}


@pytest.mark.parametrize("keeping", _KEEPING)
def test_what_the_first_call_keeps_is_as_in_plain_python(keeping: str, tmp_path: Path) -> None:
    step = """
        losses = []
        for i in range(0, 40, 10):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x[i:i + 10] @ (w * scale(3)[:, None]) - y[i:i + 10]) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            losses.append(loss)
        now = scale(3)
        calls = keeper.calls if "keeper" in globals() and hasattr(keeper, "calls") else 0
        weights = w.read_value()
    """
    source = textwrap.dedent(_KEEPING[keeping]) + textwrap.dedent(step)
    _expect_same(tmp_path, source, "losses", "now", "calls", "weights")


# Where a function beside the step finds a number that the script changes from step to step, and how the script changes it.
_FOUND = {
    "an object": ("class Kept: pass\nkept = Kept()\nkept.s = 1.0", "kept.s", "kept.s *= 0.5"),
    "a namespace": ("import types\nkept = types.SimpleNamespace(s=1.0)", "kept.s", "kept.s *= 0.5"),
    "parsed arguments": (
        "import argparse\nclass Kept: pass\nkept = Kept()\nkept.args = argparse.Namespace(s=1.0)",
        "kept.args.s",
        "kept.args.s *= 0.5",
    ),
    "a class": ("class Kept:\n    s = 1.0", "Kept.s", "Kept.s *= 0.5"),
    "an object's class": ("class Kept:\n    s = 1.0\nkept = Kept()", "kept.s", "Kept.s *= 0.5"),
    "a base class": ("class Base:\n    s = 1.0\nclass Kept(Base): pass\nkept = Kept()", "kept.s", "Base.s *= 0.5"),
    "slots": ("class Kept:\n    __slots__ = ['s']\nkept = Kept()\nkept.s = 1.0", "kept.s", "kept.s *= 0.5"),
    "a property of a slot's name": (
        "class Base:\n    __slots__ = ['s', 't']\nclass Kept(Base):\n    s = property(lambda self: self.t)\n"
        "kept = Kept()\nkept.t = 1.0",
        "kept.s",
        "kept.t *= 0.5",
    ),
    "a property": (
        "class Kept:\n    t = 1.0\n    @property\n    def s(self): return self.t * 2\nkept = Kept()",
        "kept.s",
        "kept.t *= 0.5",
    ),
    "attributes of a dict": (
        "class Kept(dict):\n    def __getattr__(self, name): return self[name]\nkept = Kept(s=1.0)",
        "kept.s",
        "kept['s'] *= 0.5",
    ),
    "fields": (
        "class Kept:\n    def __init__(self): self.__dict__['fields'] = {'s': 1.0}\n"
        "    def __getattr__(self, name):\n        if name == 's':\n            return self.fields[name]\n"
        "        raise AttributeError(name)\nkept = Kept()",
        "kept.s",
        "kept.fields['s'] *= 0.5",
    ),
    "a dict": ("kept = {'s': 1.0}", "kept['s']", "kept['s'] *= 0.5"),
    "a dict in a dict": ("kept = {'t': {'s': 1.0}}", "kept['t']['s']", "kept['t']['s'] *= 0.5"),
    "a dict of an object": (
        "class Kept: pass\nkept = Kept()\nkept.t = {'s': 1.0}",
        "kept.t['s']",
        "kept.t['s'] *= 0.5",
    ),
    "a list": ("kept = [1.0]", "kept[-1]", "kept.append(kept[-1] * 0.5)"),
    "a deque": ("import collections\nkept = collections.deque([1.0])", "kept[-1]", "kept.append(kept[-1] * 0.5)"),
    "an array": ("kept = np.ones(1, 'float32')", "kept[0]", "kept *= 0.5"),
    "a global": ("s = 1.0", "s", "s *= 0.5"),
    "a function's attribute": ("def kept(): pass\nkept.s = 1.0", "kept.s", "kept.s *= 0.5"),
    "a tuple with names": (
        "import collections\nKept = collections.namedtuple('Kept', 's')\nkept = Kept(1.0)",
        "kept.s",
        "kept = Kept(kept.s * 0.5)",
    ),
    "a data class": (
        "import dataclasses\n@dataclasses.dataclass\nclass Kept:\n    s: float = 1.0\nkept = Kept()",
        "kept.s",
        "kept = dataclasses.replace(kept, s=kept.s * 0.5)",
    ),
    "another object": (
        "class Kept: pass\nkept = Kept()\nkept.s = 1.0",
        "kept.s",
        "old, kept = kept.s, Kept(); kept.s = old * 0.5",
    ),
    "a method of an object in another's place": (
        "class Kept:\n    def __init__(self, s): self.s = s\n    def scale(self): return self.s\n"
        "class Holder: pass\nholder = Holder()\nholder.kept = Kept(1.0)",
        "holder.kept.scale()",
        "holder.kept = Kept(holder.kept.s * 0.5)",
    ),
    "a callable in another's place": (
        "class Kept:\n    def __init__(self, s): self.s = s\n    def __call__(self): return self.s\nkept = Kept(1.0)",
        "kept()",
        "kept = Kept(kept.s * 0.5)",
    ),
    "a module of TensorFlow in another's place": (
        "class Kept(tf.Module):\n    def __init__(self, s):\n        super().__init__()\n        self.s = s\n"
        "    def __call__(self): return self.s\nkept = Kept(1.0)",
        "kept()",
        "kept = Kept(kept.s * 0.5)",
    ),
    "an object in a list": (
        "class Kept:\n    def __init__(self, s): self.s = s\n    def scale(self): return self.s\nkept = [Kept(1.0)]",
        "kept[0].scale()",
        "kept[0] = Kept(kept[0].s * 0.5)",
    ),
    "an object in a dict of another": (
        "class Kept:\n    def __init__(self, s): self.s = s\n    def scale(self): return self.s\n"
        "class Holder: pass\nholder = Holder()\nholder.kept = {'a': Kept(1.0)}",
        "holder.kept['a'].scale()",
        "holder.kept = {'a': Kept(holder.kept['a'].s * 0.5)}",
    ),
    "another function": (
        "kept = [lambda: 1.0, lambda: 0.5][0]",
        "kept()",
        "kept = (lambda t: lambda: t * 0.5)(kept())",
    ),
    "a method of another object": (
        "class Kept:\n    def __init__(self, t): self.t = t\n    def s(self): return self.t\n"
        "class Holder: pass\nholder = Holder()\nholder.s = Kept(1.0).s",
        "holder.s()",
        "holder.s = Kept(holder.s() * 0.5).s",
    ),
    "a partial": (
        "import functools\nkept = functools.partial(float, 1.0)",
        "kept()",
        "kept = functools.partial(float, kept() * 0.5)",
    ),
}


@pytest.mark.parametrize("found", _FOUND)
def test_numbers_that_change_beside_the_step(found: str, tmp_path: Path) -> None:
    first, read, change = _FOUND[found]
    step = f"""
{first}
def helper(x):
    return x * {read}
losses = []
for i in range(0, 40, 10):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((helper(x[i:i + 10] @ w) - y[i:i + 10]) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    losses.append(loss)
    {change}
weights = w.read_value()
"""
    _expect_same(tmp_path, step, "losses", "weights")


_BATCHES = {
    "data classes": """
        import dataclasses

        @dataclasses.dataclass
        class Batch:
            x: np.ndarray
            y: np.ndarray
            weight: float
    """,
    "objects with methods": """
        class Data:
            def __init__(self, x, y):
                self.x, self.y = tf.constant(x), y

        class Batch:
            def __init__(self, x, y, weight):
                self.data, self.weight = Data(x, y), weight

            @property
            def x(self):
                return self.data.x

            @property
            def y(self):
                return tf.identity(self.data.y)
    """,
    "namespaces": """
        from types import SimpleNamespace

        def Batch(x, y, weight):
            return SimpleNamespace(x=x, y=y, weight=weight)
    """,
}


@pytest.mark.parametrize("batches", _BATCHES)
def test_an_object_for_each_batch(batches: str, tmp_path: Path) -> None:
    """Another one each time, in more steps than a step may be traced; what a library reads of it counts too."""
    step = """
        losses = []
        for i in range(0, 40):
            batch = Batch(x[i:i + 1 + i % 3], y[i:i + 1 + i % 3], 1.0 + i)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((batch.x @ w - batch.y) ** 2) * getattr(batch, "wei" + "ght")
            w.assign_sub(0.001 * tape.gradient(loss, w))
            losses.append(loss)
        weights = w.read_value()
    """
    _expect_same(tmp_path, textwrap.dedent(_BATCHES[batches]) + textwrap.dedent(step), "losses", "weights")


# What a function beside the step does for the smaller batches; `of` is an object of the script's.
_BY_SIZE = {
    "reads": "if n < 4: return of.scale",
    "sets": "if n < 4: of.last = i",
    "counts": "if n < 4: of.last += 1",
    "counts rows": "of.last += n",
    "keeps the size": "of.last = n",
    "returns the size": "return float(n)",
    "keeps a list": "of.last = [0.5] * n",
}


@pytest.mark.parametrize("size", ["batch.shape[0]", "len(batch)"])
@pytest.mark.parametrize("done", _BY_SIZE)
def test_batches_of_several_sizes(done: str, size: str, tmp_path: Path) -> None:
    """For each size the step's Python runs anew; what it does then counts as what it did in the first trace."""
    _expect_same(tmp_path, _of_sizes(_BY_SIZE[done], size), "losses", "lasts")


@pytest.mark.parametrize(
    ("done", "why"),
    [
        ("if n < 4: print('small')", "it prints 'small'"),
        ("if n < 4: return float(np.random.rand())", "it draws random numbers in Python"),
        ("if n < 4: lasts.append(n)", "it changes the global lasts"),
    ],
)
def test_effects_for_one_size_alone_are_refused(done: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=why):
        _left(tmp_path, _of_sizes(done, "batch.shape[0]"), is_traced=True)


def _of_sizes(done: str, size: str) -> str:
    return f"""
class Of: pass
of, losses, lasts = Of(), [], []
of.scale, of.last = 2.0, 0

def scale(batch):
    n = {size}
    {done}
    return 1.0

for i in range(16):
    batch = tf.constant(x[i : i + (2 if i % 4 == 3 else 4)])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((batch @ w - 1.0) ** 2) * scale(batch)
    w.assign_sub(0.05 * tape.gradient(loss, w))
    losses.append(loss)
    lasts.append(of.last)
    of.scale *= 0.9
"""


def test_threads_that_train_models_of_their_own(tmp_path: Path) -> None:
    """As the actors of A3C do: one thread's trace and another's step, which hands other objects over, take turns."""
    source = """
    import threading
    class Batch:
        def __init__(self, x): self.x = x
    class Trainer(threading.Thread):
        def __init__(self, number):
            super().__init__()
            self.x, self.w, self.losses = x * (number + 1), tf.Variable([[0.1], [0.2], [0.3]]), []
        def loss(self, batch):
            return tf.reduce_mean(tf.square(batch.x @ self.w - 1.0))
        def run(self):
            for i in range(12):
                batch = Batch(tf.constant(self.x[i : i + 4 + i % 2]))
                with tf.GradientTape() as tape:
                    loss = self.loss(batch)
                self.w.assign_sub(0.1 * tape.gradient(loss, self.w))
                self.losses.append(float(loss))
                print("one of", len(self.losses), "losses")
    trainers = [Trainer(number) for number in range(3)]
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        trainer.join()
    losses = [trainer.losses for trainer in trainers]
    """
    _expect_same(tmp_path, source, "losses")
