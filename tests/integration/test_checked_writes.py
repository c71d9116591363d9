"""Writes that compare no shapes while they run travel as operations that do, and do the same."""

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.program.checked_writes import check_while_running
from fdt.program.operations import OPERATIONS
from tests.helpers.thorough import some_of

WRITES = ["Add", "Sub", "Min", "Max", "Update"]
PLACES = np.array([1, 1, 3], np.int64)


def filled(shape: tuple[int, ...], seed: int, kind: Any = "float32") -> np.ndarray:
    return np.abs(np.random.RandomState(seed).randn(*shape)).astype(kind)


def checked(make: Callable[[], None], variables: list[tf.Variable], others: list[tf.Variable]) -> Callable[[], None]:
    """Returns a call of a traced step as it is exported, with other variables in the place of its own."""
    concrete = tf.function(make, autograph=False).get_concrete_function()
    graph = concrete.graph.as_graph_def()
    check_while_running(graph)
    held = {node.op for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes}
    assert held <= OPERATIONS.keys()
    own = {id(variable.handle): other for variable, other in zip(variables, others, strict=True)}

    def imported() -> None:
        capture = tf.compat.v1.get_default_graph().capture
        places = {name.name: capture(own[id(handle)].handle) for handle, name in concrete.graph.captures}
        tf.graph_util.import_graph_def(graph, places)

    return tf.function(imported, autograph=False)


@pytest.mark.parametrize("kind", some_of(["float32", "int64", "bfloat16"], "float32"))
@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("what", WRITES)
def test_rows_are_written_as_they_were(what: str, scalar: bool, kind: str) -> None:
    """Several values for a row, one value for all, and in a branch."""
    kind = tf.as_dtype(kind).as_numpy_dtype
    mine, own = (tf.Variable(filled((4, 2), 1, kind) * 3) for _ in range(2))
    rows = 2 if scalar else filled((3, 2), 2, kind) * 4

    def write(value: Any, places: np.ndarray) -> None:
        raw = getattr(tf.raw_ops, f"ResourceScatter{what}")
        raw(resource=own.handle, indices=places, updates=tf.cast(value, own.dtype))

    def make() -> None:
        write(rows, PLACES)
        tf.cond(own[1, 1] > own[0, 0], lambda: write(rows, PLACES[::-1]), lambda: write(1, PLACES))

    before = own.numpy()
    checked(make, [own], [mine])()
    tf.function(make, autograph=False)()
    np.testing.assert_array_equal(mine, own)
    assert not np.array_equal(own, before)


@pytest.mark.parametrize("kind", [tf.bool, tf.string])
def test_rows_of_no_numbers_are_written(kind: tf.DType) -> None:
    value = [True, False] if kind == tf.bool else [b"a", b"b"]
    mine, own = (tf.Variable(value[::-1], dtype=kind) for _ in range(2))

    def make() -> None:
        own.scatter_update(tf.IndexedSlices(tf.constant(value), tf.constant([0, 1])))

    checked(make, [own], [mine])()
    np.testing.assert_array_equal(mine, value)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("op", ["AdamWithAmsgrad", "Adadelta"])
def test_updates_of_optimizers_are_what_they_were(op: str, kind: str) -> None:
    slots = {"AdamWithAmsgrad": ["var", "m", "v", "vhat"], "Adadelta": ["var", "accum", "accum_update"]}[op]
    numbers = {
        "AdamWithAmsgrad": {"beta1_power": 0.9, "beta2_power": 0.99, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7},
        "Adadelta": {"rho": 0.95, "epsilon": 1e-6},
    }[op]
    mine, own = ([tf.Variable(filled((3, 2), i, kind)) for i in range(len(slots))] for _ in range(2))

    def make() -> None:
        handles = {name: variable.handle for name, variable in zip(slots, own, strict=True)}
        given = {name: tf.constant(value, kind) for name, value in {"lr": 0.01, **numbers}.items()}
        getattr(tf.raw_ops, f"ResourceApply{op}")(grad=tf.constant(filled((3, 2), 9, kind)), **handles, **given)

    before, step = own[0].numpy(), checked(make, own, mine)
    for _ in range(3):
        step()
        tf.function(make, autograph=False)()
    for one, other in zip(mine, own, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6 if kind == "float32" else 1e-14)
    assert not np.allclose(before, own[0])


# What hostile programs had before: shapes that nobody knows when the graph is imported.

_READS = """
import numpy as np, tensorflow as tf
row = tf.Variable(tf.zeros([1, 60_000]), shape=tf.TensorShape(None))
tf.raw_ops.ResourceScatterAdd(resource=row.handle, indices=tf.constant([0]), updates=tf.zeros([1, 1]))
print(np.count_nonzero(row.read_value().numpy()))
"""
_WRITES = """
import tensorflow as tf
row = tf.Variable(tf.zeros([8, 1]), shape=tf.TensorShape(None))
tf.raw_ops.ResourceScatterUpdate(resource=row.handle, indices=tf.constant([7]), updates=tf.fill([1, 50_000_000], 7.0))
"""
# A comparison by operations of its own, which a loader could put before a write, holds only until the write begins.
_GROWS = """
import numpy as np, tensorflow as tf
row, updates = (tf.Variable(tf.zeros([1, 1]), shape=tf.TensorShape(None)) for _ in range(2))

@tf.function
def step(indices):
    shape = tf.concat([tf.shape(indices), tf.raw_ops.VariableShape(input=row.handle)[1:]], 0)
    compared = tf.broadcast_to(updates.read_value(), shape)
    with tf.control_dependencies([compared]):
        grown = tf.raw_ops.AssignVariableOp(resource=row.handle, value=tf.zeros([1, 60_000]))
    with tf.control_dependencies([grown]):
        tf.raw_ops.ResourceScatterAdd(resource=row.handle, indices=indices, updates=compared)

step(tf.constant([0]))
print(np.count_nonzero(row.read_value().numpy()))
"""


def in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


# TensorFlow itself: what a refusal is worth.
@pytest.mark.thorough
@pytest.mark.parametrize("code", [_READS, _GROWS])
def test_what_they_stand_for_reads_other_memory(code: str) -> None:
    read = in_a_process(code)
    assert read.returncode == 0, read.stderr
    assert int(read.stdout.split()[-1]) > 0


@pytest.mark.thorough
def test_what_they_stand_for_writes_other_memory() -> None:
    assert in_a_process(_WRITES).returncode == -signal.SIGSEGV


@pytest.mark.parametrize("op", WRITES)
def test_other_shapes_are_refused_while_it_runs(op: str) -> None:
    variable = tf.Variable(np.zeros((1, 60_000), "float32"), shape=tf.TensorShape(None))
    with pytest.raises(tf.errors.InvalidArgumentError, match="updates"):
        getattr(tf.raw_ops, f"ResourceScatterNd{op}")(ref=variable.handle, indices=[[0]], updates=[[0.0]])
    assert not np.any(variable)
