"""Compiles the elementwise part of an update with XLA, as one function of values."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.program.step_program import import_function
from fdt.program.update.pure import Pure


class CompiledUpdate:
    """Reads variables, runs the compiled function, writes variables."""

    def __init__(
        self,
        pure: Pure,
        meta_graph: Any,
        inputs: Mapping[str, tf.TensorSpec],
        variables: Mapping[str, tf.Variable],
        unwritten: Collection[str],
    ):
        """Imports the function; its first call compiles it.

        Args:
            pure: The update without variables.
            meta_graph: Holds its graph, with holes filled.
            inputs: The specs of its placeholders other than variables' values; shapes are fully known.
            variables: By the placeholders of the graph that was made pure.
            unwritten: Placeholders of the variables that are not written.
        """
        self._inputs = list(inputs)
        self._read = [variables[handle] for handle in pure.values]
        results = {handle: result for handle, result in pure.results.items() if handle not in unwritten}
        self._written = [variables[handle] for handle in results]
        specs = dict(inputs)
        for handle, value in pure.values.items():
            specs[value] = tf.TensorSpec(variables[handle].shape, variables[handle].dtype)
        imported = import_function(meta_graph, specs, {}, list(results.values()), [])

        def compute(tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
            return imported(*tensors)  # type: ignore[no-any-return]

        self._compute = tf.function(compute, autograph=False, jit_compile=True)

    def __call__(self, given: Mapping[str, tf.Tensor]) -> None:
        """Applies gradients.

        Args:
            given: The tensor for each placeholder; other names are ignored.
        """
        values = [variable.read_value() for variable in self._read]
        results = self._compute([*(given[name] for name in self._inputs), *values])
        for variable, result in zip(self._written, results, strict=True):
            variable.assign(result, read_value=False)
