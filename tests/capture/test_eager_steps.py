"""Programs with eager steps, as they are and with their steps traced: both leave the same values of the same types."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.eager_programs import expect_same, steps_are_watched


@pytest.fixture(autouse=True)
def _watched() -> Iterator[None]:
    with steps_are_watched():
        yield


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
    expect_same(tmp_path, source, "m", "total", "best", "gain", "count", "scale", "is_late", "w")


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
    expect_same(tmp_path, source, "total", "m", "count", "rate", "moments", "counts", "w")


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
    expect_same(tmp_path, source, "w", "loss", "seen")


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
    expect_same(tmp_path, source, "w", "b", "kept", "loss", "parts")


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
    expect_same(tmp_path, source, "losses", "now", "calls", "weights")


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
    expect_same(tmp_path, step, "losses", "weights")
