"""The operations that compensate gradients, compiled and TensorFlow's own, beside their formulas in NumPy, at 64 bits."""

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from nfdt import compensation
from nfdt import rows as row_numbers
from nfdt.compensation import compensate, compensate_rows
from nfdt.rows import by_row
from nfdt.rules import DECAY, EPSILON, Rule, Strength

# Longer than what a thread takes at a time, not a multiple of what goes side by side, and of one entry.
LENGTHS = (40_001, 16, 1, 333)
ADAPTIVE = Rule("adaptive", Strength.ADAPTIVE, lambda0=2.0, correct=True, clip=0.5)
CONSTANT = Rule("constant", Strength.CONSTANT, lambda0=3.0, clip=1.0)
LATE, PROMPT, COUNT = tf.constant(3, tf.int64), tf.constant(0, tf.int64), 5
TOLERANCE = {"float64": 1e-13, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}


@pytest.fixture(autouse=True, params=["compiled", "plain"])
def operations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The operations: compiled, or those of a machine without a compiler."""
    if request.param == "plain":
        for module in (compensation, row_numbers):
            monkeypatch.setattr(module, "_NATIVE", None)
    return str(request.param)


def drawn(size: int, seed: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.dtype(dtype))


def moved(gradient: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns w and w_bak: of the first tensor further apart than the clip allows, of the others less."""
    then = drawn(len(gradient), seed, "float64")
    far = np.repeat([1.0, 0.01, 0.01, 0.01], LENGTHS)
    return (then + far * drawn(len(gradient), seed + 1, "float64")).astype(gradient.dtype), then.astype(gradient.dtype)


def split(gradient: np.ndarray, lengths: Sequence[int]) -> list[tf.Tensor]:
    return [tf.constant(part) for part in np.split(gradient, np.cumsum(lengths)[:-1])]


def formula(
    rule: Rule, g: np.ndarray, now: np.ndarray, then: np.ndarray, s: np.ndarray, lengths: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[float]]:
    """Returns the compensated gradient, s, [Σ c², Σ g²] and by how much each tensor's correction was made shorter."""
    g, now, then = (a.astype(np.float64) for a in (g, now, then))
    s = DECAY * s + (1 - DECAY) * g * g
    c = rule.lambda0 * g * g * (now - then)
    if rule.strength is Strength.ADAPTIVE:
        c /= np.sqrt(s / (1 - DECAY**COUNT) + EPSILON)
    scales = []
    for part, of in zip(*(np.split(a, np.cumsum(lengths)[:-1]) for a in (c, g)), strict=True):
        scales.append(min(1.0, rule.clip * np.linalg.norm(of) / np.linalg.norm(part)))
    c *= np.repeat(scales, lengths)
    return g + c, s, np.array([c @ c, g @ g]), scales


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rule", [ADAPTIVE, CONSTANT], ids=lambda rule: rule.name)
def test_a_vector(rule: Rule, dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    g = drawn(sum(LENGTHS), 0, "float64").astype(kind)
    now, then = moved(g, 1)
    wide = np.float64 if dtype == "float64" else np.float32
    s = np.abs(drawn(len(g), 3, "float64")).astype(wide)
    kept = tf.Variable(s) if rule is ADAPTIVE else None
    tensors = split(g, LENGTHS), tf.constant(now), tf.constant(then)
    found, squares = compensate(rule, *tensors, kept, LATE, tf.constant(float(COUNT)), LENGTHS)
    expected, mean, sums, scales = formula(rule, g, now, then, s, LENGTHS)
    # Some are clipped and some are not.
    assert scales[0] < 1.0 == scales[1]
    assert found.dtype == kind
    np.testing.assert_allclose(found.numpy().astype(np.float64), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    np.testing.assert_allclose(squares.numpy(), sums, rtol=1e-2 if kind.itemsize == 2 else 1e-5)
    if kept is not None:
        np.testing.assert_allclose(
            kept.numpy(), mean, rtol=max(TOLERANCE[dtype], 1e-6) if wide is np.float32 else 1e-13
        )


def test_of_a_prompt_gradient_only_s_takes_note() -> None:
    g = drawn(100, 0, "float32")
    kept = tf.Variable(tf.ones([100]))
    before = kept.read_value()
    nowhere = tf.fill([100], np.nan)
    found, squares = compensate(ADAPTIVE, [tf.constant(g)], nowhere, nowhere, kept, PROMPT, tf.constant(1.0), [100])
    assert np.array_equal(found, g) and np.array_equal(squares, [0, 0])
    np.testing.assert_allclose(kept.numpy(), DECAY + (1 - DECAY) * g * g, rtol=1e-6)
    # Who has read s keeps what was read.
    assert np.array_equal(before, np.ones(100))


@pytest.mark.parametrize(("size", "others"), [(1e30, True), (1e12, False)])
def test_a_correction_that_overflows_is_none(size: float, others: bool) -> None:
    """Nor are the others of its tensor corrected, if theirs together is too long to be measured."""
    g = np.array([size, 1.0, 2.0, 3.0], np.float32)
    now, then = np.ones(4, np.float32), np.zeros(4, np.float32)
    of_two = split(g, [2, 2])
    found, squares = compensate(
        CONSTANT, of_two, tf.constant(now), tf.constant(then), None, LATE, tf.constant(1.0), [2, 2]
    )
    assert found[0] == g[0]
    assert (found[1] > g[1]) == others
    assert np.all(found[2:] > g[2:])
    assert np.isfinite(squares[0])


def of_rows(values: np.ndarray, indices: np.ndarray, **others: object) -> tuple[tf.Tensor, tf.Tensor]:
    places = tf.constant(indices)
    given = {name: tf.constant(a) if isinstance(a, np.ndarray) else a for name, a in others.items()}
    given = {"delay": LATE, "count": tf.constant(float(COUNT)), "order": by_row(places), **given}
    # Beyond the table as in its last row: what is refused is refused by the operation.
    given |= {name: tf.gather(given[name], places % len(given[name])) for name in ("now", "then")}
    return compensate_rows(values=tf.constant(values), indices=places, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("rule", [ADAPTIVE, CONSTANT], ids=lambda rule: rule.name)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", [1, 3, 64])
def test_rows_of_a_table_are_one_tensor(width: int, dtype: str, rule: Rule, index: type) -> None:
    """What came several times for a row is multiplied by what its sum is multiplied by, and stays as many values."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    wide = np.float64 if dtype == "float64" else np.float32
    indices, rows = np.array([7, 0, 7, 19, 7, 3], index), [0, 3, 7, 19]
    table, now = (drawn(20 * width, seed, dtype if dtype != "bfloat16" else "float32") for seed in (0, 2))
    table, now = (a.astype(kind).reshape(20, width) for a in (table, now))
    values = drawn(6 * width, 1, "float32").astype(kind).reshape(6, width)
    s = np.abs(drawn(20 * width, 3, "float64")).astype(wide).reshape(20, width)
    kept = tf.Variable(s) if rule is ADAPTIVE else None
    found, squares = of_rows(values, indices, rule=rule, now=now, then=table, mean_square=kept)
    g = np.zeros((20, width))
    np.add.at(g, indices, values.astype(np.float64))
    flat, at, then, square = (a[rows].reshape(-1) for a in (g, now, table, s))
    expected, mean, sums, _ = formula(rule, flat, at, then, square, [4 * width])
    factors = np.ones((20, width))
    factors[rows] = expected.reshape(4, width) / g[rows]
    tolerance = max(TOLERANCE[dtype], 1e-5) if wide is np.float32 else 1e-12
    assert found.dtype == kind
    np.testing.assert_allclose(
        found.numpy().astype(np.float64), values.astype(np.float64) * factors[indices], rtol=tolerance, atol=tolerance
    )
    np.testing.assert_allclose(squares, sums, rtol=1e-2 if kind.itemsize == 2 else 1e-5)
    if kept is not None:
        np.testing.assert_allclose(kept.numpy()[rows].reshape(-1), mean, rtol=1e-6 if wide is np.float32 else 1e-13)
        others = np.setdiff1d(range(20), rows)
        assert np.array_equal(kept.numpy()[others], s[others])


def test_rows_of_a_prompt_gradient_stay_as_they_are() -> None:
    values, indices = drawn(6, 1, "float32").reshape(3, 2), np.array([4, 1, 4])
    kept, nowhere = tf.Variable(tf.ones([5, 2])), np.full([5, 2], np.nan, np.float32)
    found, squares = of_rows(values, indices, rule=ADAPTIVE, now=nowhere, then=nowhere, mean_square=kept, delay=PROMPT)
    assert np.array_equal(found, values) and np.array_equal(squares, [0, 0])
    g = np.zeros((5, 2))
    np.add.at(g, indices, values)
    touched = np.isin(range(5), indices)[:, None]
    np.testing.assert_allclose(kept, np.where(touched, DECAY + (1 - DECAY) * g * g, 1.0), rtol=1e-6)


def test_in_a_graph_both_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an assignment of s takes place only if the graph demands it."""
    g, now, then = drawn(32, 0, "float32"), drawn(32, 1, "float32"), drawn(32, 2, "float32")
    found = []
    for native in (compensation._NATIVE, None):
        monkeypatch.setattr(compensation, "_NATIVE", native)
        kept, table = tf.Variable(tf.ones([32])), tf.Variable(tf.ones([8, 4]))

        def run(kept: tf.Variable = kept, table: tf.Variable = table) -> list[tf.Tensor]:
            values, indices = tf.reshape(tf.constant(g[:12]), [3, 4]), tf.constant([4, 1, 4])
            at, before = (tf.gather(tf.reshape(tf.constant(a), [8, 4]), indices) for a in (now, then))
            one, many = tf.constant(1.0), tf.constant(5.0)
            return [
                *compensate(ADAPTIVE, [tf.constant(g)], tf.constant(now), tf.constant(then), kept, LATE, many, [32]),
                *compensate_rows(ADAPTIVE, values, indices, by_row(indices), at, before, table, LATE, one),
            ]

        made = tf.compat.v1.wrap_function(run, [])()
        found.append([*(tensor.numpy() for tensor in made), kept.numpy(), table.numpy()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", [0, 1, 5_000])
def test_an_order_is_by_row_and_then_as_they_came(number: int) -> None:
    indices = np.random.default_rng(0).integers(0, 700, number)
    assert np.array_equal(by_row(tf.constant(indices)), np.argsort(indices, kind="stable"))


# TensorFlow's operations refuse it in their own words.
@pytest.mark.parametrize("operations", ["compiled"], indirect=True)
def test_what_does_not_fit_is_refused(operations: str) -> None:
    vector, one = tf.zeros([4]), tf.constant(1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="lengths differ"):
        compensate(CONSTANT, [vector[:3]], vector, vector, None, LATE, one, [3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="longer than its place"):
        compensate(CONSTANT, [vector], vector, vector, None, LATE, one, [3])
    table, values = np.zeros((4, 1), np.float32), np.zeros((2, 1), np.float32)
    of_table = {"rule": ADAPTIVE, "now": table, "then": table, "mean_square": tf.Variable(table)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="no row 9"):
        of_rows(values, np.array([0, 9]), **of_table)
    with pytest.raises(tf.errors.InvalidArgumentError, match="differ in shape"):
        of_rows(values, np.array([0, 1, 2]), **of_table)
    for order, message in (
        ([1, 0], "not by row"),
        ([0], "another number"),
        ([0, 2], "is none"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            of_rows(values, np.array([0, 1]), **of_table, order=np.array(order))
    with pytest.raises(tf.errors.InvalidArgumentError, match="another size"):
        compensate(ADAPTIVE, [vector], vector, vector, tf.Variable(tf.zeros([5])), LATE, one, [4])


def test_what_lies_between_the_tensors_of_a_vector_is_zero() -> None:
    now, then = tf.fill([12], 2.0), tf.ones([12])
    kept = tf.Variable(tf.zeros([12]))
    found, _ = compensate(ADAPTIVE, [tf.ones([3]), tf.ones([2, 2])], now, then, kept, LATE, tf.constant(1.0), [6, 6])
    between = [3, 4, 5, 10, 11]
    assert not np.any(found.numpy()[between]) and not np.any(kept.numpy()[between])
    assert np.all(np.delete(found.numpy(), between) > 1)
