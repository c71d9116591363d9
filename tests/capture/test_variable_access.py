"""What counts as looking at a variable."""

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

from fdt.base.patch import Patches
from fdt.capture.variable_access import VariableAccess

LIMIT_S = 20.0


@pytest.fixture
def told() -> Iterator[tuple[VariableAccess, list[set[int]]]]:
    told: list[set[int]] = []
    touch, patches = VariableAccess(), Patches()
    touch.listen(told.append)
    touch.install(patches)
    try:
        yield touch, told
    finally:
        patches.undo()


@pytest.mark.parametrize(
    "look",
    [
        lambda v: v.numpy(),
        lambda v: v + 1.0,
        lambda v: v.assign_add([1.0, 1.0]),
        # TensorFlow's compiled part is given the variable itself.
        lambda v: tf.reduce_mean(v),
        lambda v: tf.square(v),
    ],
)
def test_every_access_is_told(look: Callable[[Any], Any], told: tuple[VariableAccess, list[set[int]]]) -> None:
    touch, seen = told
    watched, other = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    touch.watch([watched])
    assert not seen
    look(other)
    assert not seen
    look(watched)
    assert seen and all(ids == {id(watched)} for ids in seen)
    seen.clear()
    with touch.paused():
        look(watched)
    assert not seen


def test_an_access_of_another_thread_is_told_while_this_one_is_paused(
    told: tuple[VariableAccess, list[set[int]]],
) -> None:
    touch, seen = told
    watched = tf.Variable(1.0)
    touch.watch([watched])
    with touch.paused():
        thread = threading.Thread(target=watched.numpy)
        thread.start()
        thread.join(LIMIT_S)
    assert seen and all(ids == {id(watched)} for ids in seen)


def test_a_forked_child_has_the_values_of_its_parent(
    told: tuple[VariableAccess, list[set[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    touch, seen = told
    watched = tf.Variable(1.0)
    touch.watch([watched])
    monkeypatch.setattr(os, "getpid", lambda: -1)
    watched.numpy()
    assert not seen


def test_a_variable_that_is_watched_is_not_kept(told: tuple[VariableAccess, list[set[int]]]) -> None:
    touch, _ = told
    watched = tf.Variable(1.0)
    touch.watch([watched])
    gone = weakref.ref(watched)
    del watched
    gc.collect()
    assert gone() is None
