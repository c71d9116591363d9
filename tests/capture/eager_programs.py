"""Runs programs with eager steps, as they are and with their steps traced."""

import ast
import contextlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from fdt.base.patch import Patches
from fdt.capture.loop.outlined import Outlined
from fdt.capture.step import random_states, unseen
from fdt.capture.watching import calling
from fdt.script.outline.rewriting import RUN, Site, outlined

_HEAD = """
import numpy as np, tensorflow as tf
x = np.random.RandomState(0).rand(40, 3).astype("float32")
y = x.sum(1, keepdims=True)
w = tf.Variable([[0.1], [0.2], [0.3]])
"""


@contextlib.contextmanager
def steps_are_watched() -> Iterator[None]:
    """Within it the hooks are in place that eager steps need."""

    def called(original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        with calling(function):
            return original(function, *args, **kwargs)

    patches = Patches()
    random_states.install(patches)
    unseen.install(patches)
    patches.wrap(Function, "__call__", called)
    try:
        yield
    finally:
        patches.undo()
        sys.modules.pop("train", None)


def left(folder: Path, source: str, is_traced: bool) -> dict[str, Any]:
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


def expect_same(folder: Path, source: str, *names: str) -> None:
    """Checks that both leave the same values, of the same types, in some names."""
    # What nobody reads later is no result of a step.
    source = f"{textwrap.dedent(source)}\ndef last():\n    return {', '.join(names)}\n"
    plain, traced = (left(folder, source, is_traced) for is_traced in (False, True))
    for name in names:
        mine, expected = traced[name], plain[name]
        assert tf.is_tensor(mine) == tf.is_tensor(expected), name
        if not tf.is_tensor(expected):
            assert type(mine) is type(expected), name
        for one, other in zip(tf.nest.flatten(mine), tf.nest.flatten(expected), strict=True):
            assert tf.is_tensor(one) == tf.is_tensor(other) and (tf.is_tensor(one) or type(one) is type(other)), name
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, err_msg=name)
