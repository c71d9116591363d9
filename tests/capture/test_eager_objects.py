"""Eager steps whose batches are objects of the script's, or of several sizes, and steps of several threads."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.eager_programs import expect_same, left, steps_are_watched


@pytest.fixture(autouse=True)
def _watched() -> Iterator[None]:
    with steps_are_watched():
        yield


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
    expect_same(tmp_path, textwrap.dedent(_BATCHES[batches]) + textwrap.dedent(step), "losses", "weights")


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
    expect_same(tmp_path, _of_sizes(_BY_SIZE[done], size), "losses", "lasts")


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
        left(tmp_path, _of_sizes(done, "batch.shape[0]"), is_traced=True)


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
    expect_same(tmp_path, source, "losses")


@pytest.mark.parametrize(
    ("drawn", "told"),
    [
        ("tf.random.shuffle(x[i : i + 4])", 1),
        ("tf.random.shuffle(x[i : i + 4], seed=2)", 1),
        ("x[i : i + 4] + tf.random.normal([])", 0),
        ("x[i : i + 4] + tf.random.normal([], seed=2)", 0),
    ],
)
def test_draws_that_are_not_plain_pythons_are_told_once(
    drawn: str, told: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"""
tf.random.set_seed(1)
for i in range(6):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((({drawn}) @ w - 1.0) ** 2)
    w.assign_sub(0.05 * tape.gradient(loss, w))
"""
    left(tmp_path, source, is_traced=True)
    assert capsys.readouterr().err.count("draws by RandomShuffle, and so other numbers") == told
