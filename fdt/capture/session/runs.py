"""Runs sessions of TensorFlow 1: a `Session.run` that trains is a step on the pool; every other one runs here.

Each variable of the graph has a stand-in that the pool knows. Values that the script may have changed go from the session to
the stand-ins before a step, and all go back before any other run that reads them.

A variable of the old kind, which `disable_v2_behavior()` asks for, is a buffer. A value computed from it in a run that also
changes it uses the old content, because the change waits for the reads; fetching the variable itself gives the buffer after the
change. Variables of the new kind, which we give the graph, leave both orders undefined, so a plan fixes them (`early`, `late`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf
from tensorflow.python.client.session import BaseSession
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_v2_toggles, gradients_util, ref_variable, resource_variables_toggle

from fdt.base.patch import Patches
from fdt.capture.behaviour import as_tensorflow_2
from fdt.capture.loop.calls import Steps
from fdt.capture.refusals import is_in_place
from fdt.capture.session import buffers
from fdt.capture.session.step import VARIABLES, Closure, Gradients, beneath_summaries, step_function
from fdt.errors import UnsupportedError
from fdt.program.holes import pass_hole


class Sessions:
    """The hooks."""

    def __init__(self, steps: Callable[[], Steps]):
        """
        Args:
            steps: Returns the object that runs the steps.
        """
        self._steps = steps
        # By graph: the results of tf.gradients, and the plan of each set of fetches and feeds.
        self._gradients: dict[Any, list[Gradients]] = {}
        self._plans: dict[Any, dict[Any, _Plan]] = {}
        self._states: WeakKeyDictionary[Any, _SessionState] = WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        """Puts the hooks in place."""
        patches.wrap(gradients_util, "_GradientsHelper", self._differentiate)
        patches.wrap(BaseSession, "_run", _by_element)
        patches.wrap(BaseSession, "_do_run", self._do_run)
        patches.wrap(BaseSession, "_make_callable_from_options", self._make_callable)
        patches.wrap(ref_variable, "default_variable_creator", buffers.noted)
        # The old kinds of variables and loops cannot be shared with workers; the new ones compute the same.
        patches.wrap(resource_variables_toggle, "resource_variables_enabled", lambda original: True)
        patches.wrap(control_flow_v2_toggles, "disable_control_flow_v2", lambda original: None)

    def _differentiate(self, original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(ys, xs, *args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        if not isinstance(graph, FuncGraph):
            sources = list(xs) if isinstance(xs, list | tuple) else [xs]
            handles = [getattr(x, "handle", x) for x in sources]
            of = {
                handle.op.name: gradient
                for handle, gradient in zip(handles, found, strict=True)
                if gradient is not None and handle.op.type in VARIABLES
            }
            if of:
                self._gradients.setdefault(graph, []).append(Gradients(of))
        return found

    def _plan(self, graph: Any, fetches: Sequence[Any], targets: Sequence[Any], fed: Sequence[Any]) -> "_Plan":
        plans = self._plans.setdefault(graph, {})
        key = tuple(tuple(element.name for element in elements) for elements in (fetches, targets, fed))
        if key not in plans:
            plans[key] = _Plan(graph, fetches, targets, fed, self._gradients.get(graph, []), buffers.asked_for())
        return plans[key]

    def _do_run(
        self,
        original: Callable[..., Any],
        session: Any,
        handle: Any,
        targets: Sequence[Any],
        fetches: Sequence[Any],
        feeds: Any,
        options: Any,
        metadata: Any,
    ) -> Any:
        """Replaces a session's `run` once its arguments are read: feeds are NumPy arrays by references to tensors."""
        if buffers.asked_for():
            fetches = buffers.fetched(session.graph, fetches)
            variables, feeds = buffers.split(session.graph, feeds)
            if variables:
                again = functools.partial(
                    self._do_run, original, session, handle, targets, fetches, feeds, options, metadata
                )
                return self._with_fed(original, session, targets, fetches, variables, again)
        fed = sorted((reference.deref() for reference in feeds), key=lambda tensor: str(tensor.name))
        plan = self._plan(session.graph, fetches, targets, fed)

        def run(targets: Sequence[Any], fetches: Sequence[Any], feeds: Any) -> Any:
            return original(session, None, list(targets), list(fetches), feeds, None, None)

        state = self._states.setdefault(session, _SessionState())
        # If a feed is missing, the session itself raises the error.
        if plan.trains and not is_in_place() and not plan.closure.lacks_a_feed():
            if session.sess_str:
                raise UnsupportedError(
                    f"The session is one of another server ({session.sess_str}). Two ways of distributing cannot be combined: "
                    "open it without a target."
                )
            values = self._step(plan, state, run, fed, feeds)
            return [values[tensor.name] for tensor in fetches]
        state.give(plan, run)
        try:
            if handle is not None or not (plan.early or plan.late):
                return original(session, handle, targets, fetches, feeds, options, metadata)
            late = {tensor.name for tensor in plan.late}
            now = [tensor for tensor in fetches if tensor.name not in late]
            before = _read(run, plan.early)
            seen = {tensor.ref(): before[tensor.name] for tensor in plan.early}
            values = _by_name(now, original(session, None, targets, now, {**seen, **feeds}, options, metadata))
            values |= _read(run, plan.late)
            return [values[tensor.name] for tensor in fetches]
        finally:
            state.changed |= plan.closure.written()

    def _with_fed(
        self,
        original: Callable[..., Any],
        session: Any,
        targets: Sequence[Any],
        fetches: Sequence[Any],
        fed: dict[str, tuple[Any, Any]],
        run: Callable[[], Any],
    ) -> Any:
        """Runs a session whose variables have other values for the time of the run.

        Args:
            original: The session's `_do_run`.
            session: The session.
            targets: Operations that are run.
            fetches: Tensors that are fetched.
            fed: The variables and these values, by the names of their handle operations.
            run: Runs it.
        """
        changed = Closure(fetches, targets, []).written() & fed.keys()
        if changed:
            message = f"Session.run is fed a value for the variable {min(changed)!r}, and is to change it."
            raise tf.errors.InvalidArgumentError(None, None, message)

        def here(targets: Sequence[Any], fetches: Sequence[Any], feeds: Any) -> Any:
            return original(session, None, list(targets), list(fetches), feeds, None, None)

        state = self._states.setdefault(session, _SessionState())
        before = state.values({name: variable for name, (variable, _) in fed.items()}, here)
        state.put(fed, here)
        try:
            return run()
        finally:
            state.put({name: (fed[name][0], value) for name, value in before.items()}, here)

    def _step(
        self, plan: "_Plan", state: "_SessionState", run: Callable[..., Any], fed: Sequence[Any], feeds: Any
    ) -> dict[str, Any]:
        """Runs a training step on the pool; returns the fetched values, by name."""
        given = {**_by_name(fed, [feeds[tensor.ref()] for tensor in fed]), **_read(run, plan.closure.local, feeds)}
        arrays = [np.asarray(given[tensor.name]) for tensor in plan.inputs]
        function = plan.function(state.take(plan, run))
        with as_tensorflow_2():
            outputs = self._steps().run(function, tuple(arrays), {})
            values = _by_name(plan.fetches, [output.numpy() for output in outputs])
        state.newer = True
        beneath = {tensor.ref(): values[tensor.name] for tensor in plan.fetches} if plan.summaries else {}
        return values | _read(run, plan.summaries, {**feeds, **beneath})

    def _make_callable(self, original: Callable[..., Any], session: Any, options: Any) -> Any:
        graph = session.graph
        fetches = [graph.as_graph_element(name) for name in options.fetch]
        targets = [graph.as_graph_element(name) for name in options.target]
        fed = [graph.as_graph_element(name) for name in options.feed]
        if buffers.asked_for() and buffers.split(graph, {tensor.ref(): None for tensor in fed})[0]:
            raise UnsupportedError("The session makes a callable that is fed a variable's value. Call Session.run.")
        if self._plan(graph, fetches, targets, fed).trains:
            raise UnsupportedError(
                "The session makes a callable that trains (Session.make_callable, or Keras in a graph of TensorFlow 1), which "
                "is not distributed. Call Session.run, or train Keras models without disable_eager_execution()."
            )
        return original(session, options)


class _Plan:
    """How to run one set of fetches and feeds.

    Attributes:
        closure: The part of the graph that they need.
        inputs: A step's input tensors, whole batches first, since they tell the number of rows.
        fetches: Tensors that a step returns.
        summaries: Summaries that are computed from the fetches.
        trains: Whether running them updates variables by their gradients.
        late: Fetches of variables themselves, read after their updates.
        early: If nothing trains, reads of variables that come before their updates.
    """

    def __init__(
        self,
        graph: Any,
        fetches: Sequence[Any],
        targets: Sequence[Any],
        fed: Sequence[Any],
        calls: Sequence[Gradients],
        as_buffers: bool,
    ):
        self.closure = Closure(fetches, targets, [tensor.name for tensor in fed])
        self.fetches, self.summaries = list(fetches), list[Any]()
        self.graph = graph
        self._gradients = self.closure.last_gradients(calls)
        self.trains = bool(self._gradients)
        if self.trains:
            self.fetches, self.summaries = beneath_summaries(fetches)
            self.closure = Closure(self.fetches, targets, [tensor.name for tensor in fed])
        self.inputs = sorted([*fed, *self.closure.local], key=_has_known_length)
        written = self.closure.written() if as_buffers else set()
        themselves = {v._graph_element.name for name, v in buffers.variables_of(graph).items() if name in written}
        self.late = [tensor for tensor in fetches if tensor.name in themselves]
        early = [] if self.trains else self.closure.reads_of(written)
        self.early = [tensor for tensor in early if tensor.name not in themselves]
        self._function: Any = None
        self._made_for: dict[str, int] = {}

    def function(self, variables: dict[str, tf.Variable]) -> Any:
        """Returns the step; the same one for the same stand-ins of variables."""
        identities = {name: id(variable) for name, variable in variables.items()}
        if self._function is None or identities != self._made_for:
            step = step_function(
                self.graph,
                self.closure,
                self.inputs,
                self.fetches,
                self._gradients,
                variables,
                pass_hole,
                self.late,
            )
            self._made_for = identities
            with as_tensorflow_2():
                self._function = tf.function(step, autograph=False)
        return self._function


class _SessionState:
    """The stand-ins of a session's variables.

    Attributes:
        changed: Names of handle operations of variables that the session may have changed since the last step.
        newer: Whether the stand-ins have been trained since the session was given their values.
    """

    def __init__(self) -> None:
        self._stand_ins: dict[str, tuple[Any, tf.Variable]] = {}
        self.changed: set[str] = set()
        self.newer = False

    def take(self, plan: _Plan, run: Callable[..., Any]) -> dict[str, tf.Variable]:
        """Brings the stand-ins of a step's variables up to date; returns them by the names of handle operations."""
        names = sorted(plan.closure.handles())
        unknown = [name for name in names if name not in self._stand_ins]
        wanted = [*unknown, *sorted(self.changed & self._stand_ins.keys())]
        if wanted:
            variables = {**buffers.variables_of(plan.graph), **{name: v for name, (v, _) in self._stand_ins.items()}}
            values = run((), [_value_of(variables, name) for name in wanted], {})
            with as_tensorflow_2():
                for name, value in zip(wanted, values, strict=True):
                    if name in self._stand_ins:
                        self._stand_ins[name][1].assign(value)
                    else:
                        stand_in = tf.Variable(value, name=name, trainable=bool(variables[name].trainable))
                        self._stand_ins[name] = variables[name], stand_in
        self.changed.clear()
        return {name: self._stand_ins[name][1] for name in names}

    def values(self, variables: dict[str, Any], run: Callable[..., Any]) -> dict[str, np.ndarray]:
        """Returns the newest values of variables, by the names of their handle operations."""
        trained = {name for name in variables if self.newer and name in self._stand_ins}
        others = [name for name in variables if name not in trained]
        values = run((), [variables[name]._graph_element for name in others], {}) if others else []
        with as_tensorflow_2():
            return dict(zip(others, values, strict=True)) | {n: self._stand_ins[n][1].numpy() for n in trained}

    def put(self, values: dict[str, tuple[Any, Any]], run: Callable[..., Any]) -> None:
        """Sets variables, in the session and their stand-ins.

        Args:
            values: Variables and their values, by the names of their handle operations.
            run: Runs the session.
        """
        pairs = values.values()
        run([v.initializer for v, _ in pairs], (), {v.initializer.inputs[1].ref(): value for v, value in pairs})
        with as_tensorflow_2():
            for name, (_, value) in values.items():
                if name in self._stand_ins:
                    self._stand_ins[name][1].assign(value)

    def give(self, plan: _Plan, run: Callable[..., Any]) -> None:
        """Gives the session the newest values, if it is about to read one."""
        if not self.newer or not plan.closure.handles() & self._stand_ins.keys():
            return
        with as_tensorflow_2():
            pairs = [(variable, stand_in.numpy()) for variable, stand_in in self._stand_ins.values()]
        run([v.initializer for v, _ in pairs], (), {v.initializer.inputs[1].ref(): value for v, value in pairs})
        self.newer = False


def _by_element(
    original: Callable[..., Any], session: Any, handle: Any, fetches: Any, feeds: Any, *args: Any, **kwargs: Any
) -> Any:
    if buffers.asked_for():
        feeds = buffers.by_element(session.graph, feeds)
    return original(session, handle, fetches, feeds, *args, **kwargs)


def _by_name(tensors: Sequence[Any], values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip((tensor.name for tensor in tensors), values, strict=True))


def _read(run: Callable[..., Any], tensors: Sequence[Any], feeds: Any = None) -> dict[str, Any]:
    """Returns the values of tensors, by name. Skips the session if there are none, since it fails without fetches."""
    return _by_name(tensors, run((), tensors, feeds or {})) if tensors else {}


def _has_known_length(tensor: Any) -> bool:
    """Whether the graph states a tensor's length; a batch's is mostly unknown."""
    return tensor.shape.rank is not None and (tensor.shape.rank == 0 or tensor.shape.as_list()[0] is not None)


def _value_of(variables: dict[str, Any], name: str) -> Any:
    if name not in variables:
        raise UnsupportedError(
            f"The variable {name!r} is in no collection of its graph, so its value cannot be found. Make it with "
            "tf.Variable or tf.get_variable, in a collection."
        )
    return variables[name]._graph_element
