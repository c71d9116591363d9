"""What exchanges took and moved, as the operations around them count it."""

import time

import tensorflow as tf

from fdt.base.native import library
from hfdt.exchange import Meter

_OPS = library("hfdt").ops


def test_the_time_of_exchanges_that_overlap_counts_once() -> None:
    meter = Meter()
    tensor = tf.ones([16])
    began = time.perf_counter()
    for _ in range(8):
        _OPS.fdt_exchange_begin(values=[tensor])
    # What takes longer than the calls around it: eight sums of it would be more than has passed.
    tf.linalg.matmul(tf.ones([1000, 1000]), tf.ones([1000, 1000])).numpy()
    for _ in range(8):
        _OPS.fdt_exchange_end(values=[tensor])
    passed = time.perf_counter() - began
    seconds, num_bytes = meter.read()
    assert 0 < seconds <= passed
    assert num_bytes == 8 * 16 * 4
    assert meter.read() == (seconds, num_bytes)


def test_an_exchange_behind_which_a_step_computes_takes_it_no_time() -> None:
    meter = Meter()
    tensor = tf.ones([16])
    _OPS.fdt_exchange_begin(values=[tensor], behind=True)
    tf.linalg.matmul(tf.ones([1000, 1000]), tf.ones([1000, 1000])).numpy()
    assert meter.read() == (0.0, 16 * 4)
    _OPS.fdt_exchange_begin(values=[tensor])
    _OPS.fdt_exchange_end(values=[tensor], behind=True)
    began = meter.read()[0]
    tf.linalg.matmul(tf.ones([1000, 1000]), tf.ones([1000, 1000])).numpy()
    assert meter.read()[0] > began, "the last exchange has not ended"
    _OPS.fdt_exchange_end(values=[tensor])


def test_an_exchange_that_failed_is_forgotten_by_the_next_job() -> None:
    _OPS.fdt_exchange_begin(values=[tf.ones([4])])
    meter = Meter()
    assert meter.read() == (0.0, 0)
    _OPS.fdt_exchange_end(values=[tf.ones([4])])
    assert meter.read() == (0.0, 0)


def test_tensors_go_through_unchanged_and_in_a_graph_that_reads_none_of_them() -> None:
    meter = Meter()

    @tf.function
    def step(a: tf.Tensor, b: tf.Tensor) -> None:
        _OPS.fdt_exchange_end(values=_OPS.fdt_exchange_begin(values=[a, b]))

    step(tf.ones([2]), tf.constant(["a", "b", "c"]))
    assert meter.read()[1] >= 2 * 4
    a, b = _OPS.fdt_exchange_begin(values=[tf.range(3), tf.constant(["text"])])
    assert a.numpy().tolist() == [0, 1, 2] and b.numpy().tolist() == [b"text"]
    _OPS.fdt_exchange_end(values=[a, b])
