"""Traces a training step, or a test step, into a program: observes its calls, and leaves its computation as it is."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from fdt.base.config import RunConfig
from fdt.base.patch import Patches
from fdt.base.progress_line import WAITING
from fdt.capture.step.metrics import check_additive
from fdt.capture.step.observer import StepObserver
from fdt.capture.step.roles import describing, role_by_writes
from fdt.capture.step.summaries import Recording, recording
from fdt.capture.step.traced_step import TracedStep
from fdt.capture.step.writes import Writes, is_random, written, written_before
from fdt.errors import UnsupportedError
from fdt.program.element import Element
from fdt.program.holes import Holes, OpenHole, open_holes
from fdt.program.step_program import export
from fdt.v1 import program_pb2

# Of what TensorFlow tells who makes a variable, what the variable needs; the rest is for variables of TensorFlow 1.
_ARGUMENTS = (
    *("initial_value", "trainable", "name", "dtype", "constraint", "synchronization", "aggregation", "shape"),
    *("caching_device", "validate_shape"),
)


def _made_outside(make: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Makes a variable outside the function that is traced: TensorFlow traces one that makes variables a second time."""
    given = {name: kwargs[name] for name in _ARGUMENTS if name in kwargs}
    if tf.is_tensor(given["initial_value"]) and not tf.executing_eagerly():
        # It is made of the function's tensors.
        return make(**kwargs)
    with tf.init_scope():
        return ResourceVariable(**given)


class StepTrace:
    """One trace of one step."""

    def __init__(
        self,
        config: RunConfig,
        seen: StepObserver,
        trains: bool = True,
        returns_rows: bool = False,
        once: bool = False,
    ):
        """
        Args:
            config: The run's configuration.
            seen: Observes the step.
            trains: Whether it is a training step: it hands gradients to an optimizer.
            returns_rows: Whether the sizes of what it returns may depend on the batch.
            once: Whether it is traced once, although it makes variables; TensorFlow traces such a function twice.
        """
        self._config = config
        self._seen = seen
        self._trains, self._returns_rows, self._once = trains, returns_rows, once

    def trace(self, own_step: Callable[[Any], Any], element: Element) -> "TracedStep":
        """Traces `own_step(batch)`.

        Args:
            own_step: Bound method, or a function of one argument.
            element: The form of a batch.
        """
        with WAITING.doing(f"tracing the {'training' if self._trains else 'test'} step"):
            concrete, opened, logs, met = self._traced(own_step, element)
        if self._trains and not any(hole.kind == program_pb2.Hole.KIND_GRADIENTS for hole in opened):
            raise UnsupportedError(
                "The training step never hands gradients to a Keras optimizer (optimizer.apply or apply_gradients), so there "
                "is nothing to exchange between workers. Update the weights through a keras.optimizers optimizer."
            )
        metric_variables = self._seen.metric_variables()
        if self._config.mode == "async" and self._config.num_workers > 1:
            # Each worker has its own metric states, which are added up.
            check_additive(concrete.graph, metric_variables)
        if not self._returns_rows:
            self._check_outputs(concrete.outputs[: len(concrete.outputs) - len(met.tensors())])
        describe = describing(concrete.graph, opened, self._seen, self._role)
        program, variables = export(concrete, opened, describe)
        printing = any(operation.type == "PrintV2" for operation in concrete.graph.get_operations())
        graph, layers = concrete.graph, self._seen.normalisations.values()
        changed, draws = written(graph, variables), is_random(graph)
        moved = None
        if self._config.pulls_parameters:
            handle = written_before(graph, {h.function: {id(v.handle) for v in h.variables} for h in opened})
            moved = next((v.name.removesuffix(":0") for v in variables if v.handle is handle), None)
        step = TracedStep(program, variables, logs, changed, graph, layers, draws, printing, moved)
        step.summaries, step.random_states = met.summaries, self._seen.random_states
        step.scales_half = self._seen.scales_loss and any(
            output.dtype == tf.float16 for operation in graph.get_operations() for output in operation.outputs
        )
        return step

    def _traced(self, own_step: Callable[[Any], Any], element: Element) -> tuple[Any, list[OpenHole], Any, Recording]:
        """Returns the concrete function step(share, *batch), its open holes, what the step returned, and its summaries."""
        opened: list[OpenHole] = []
        logs: list[Any] = []
        recordings: list[Recording] = []

        def step(share: tf.Tensor, *batch: tf.Tensor) -> list[tf.Tensor]:
            # If the first trace makes variables, TensorFlow traces a second time; only that trace counts.
            opened.clear()
            logs.clear()
            self._seen.forget()
            data = element.decode(batch)
            with open_holes(Holes(share)) as holes, recording() as met:
                logs.append(self._seen.described(own_step(data)))
            opened.extend(holes.opened)
            recordings.append(met)
            return [*(leaf for leaf in tf.nest.flatten(logs[-1]) if tf.is_tensor(leaf)), *met.tensors()]

        patches = Patches()
        try:
            self._seen.install(patches)
            function = tf.function(step, autograph=False)
            with tf.variable_creator_scope(_made_outside) if self._once else contextlib.nullcontext():
                concrete = function.get_concrete_function(tf.TensorSpec([], tf.float32, name="share"), *element.specs())
        finally:
            patches.undo()
        return concrete, opened, logs[-1], recordings[-1]

    def _check_outputs(self, outputs: Sequence[tf.Tensor]) -> None:
        for output in outputs:
            if not output.shape.is_fully_defined():
                raise UnsupportedError(
                    f"train_step returns a tensor of shape {output.shape}, which depends on the size of the batch. Expected: "
                    "a dict of scalars (see keras.Model.train_step). Return reduced values."
                )

    def _role(self, variable: tf.Variable, writes: Writes) -> "program_pb2.Role":
        """Returns the role of a variable that is no optimizer's, metric's or seed."""
        return role_by_writes(variable, writes)
