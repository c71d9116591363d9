"""Gives each variable of a step its role: parameter, optimizer's, metric's, seed, or the script's own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.capture.step.observer import StepObserver
from fdt.capture.step.writes import Writes
from fdt.program.holes import OpenHole
from fdt.v1 import program_pb2


def describing(
    graph: Any,
    holes: Sequence[OpenHole],
    seen: StepObserver,
    other_role: Callable[[tf.Variable, Writes], "program_pb2.Role"],
) -> Callable[[tf.Variable], program_pb2.Variable]:
    """Returns a function that describes a variable: its role, and the momentum if it is a velocity.

    Args:
        graph: The step's graph.
        holes: The holes of its gradients.
        seen: The observer of its trace.
        other_role: Returns the role of a variable that is no optimizer's, metric's or seed.
    """
    known = _known(holes, seen)
    momenta = {v: momentum for optimizer in seen.optimizers for v, momentum in optimizer.momenta.items()}
    functions = {hole.function for hole in holes}
    roles: dict[int, Any] = {}
    writes: dict[int, Writes] = {}
    for variable in graph.variables:
        handle = id(variable.handle)
        if id(variable) in known:
            roles[handle] = known[id(variable)]
        else:
            writes[handle] = Writes(graph, variable, functions)
            roles[handle] = other_role(variable, writes[handle])
    _propagate(roles, writes)

    def describe(variable: tf.Variable) -> program_pb2.Variable:
        return program_pb2.Variable(role=roles[id(variable.handle)], momentum=momenta.get(id(variable), 0.0))

    return describe


def _known(holes: Sequence[OpenHole], seen: StepObserver) -> dict[int, "program_pb2.Role"]:
    """Returns the roles of variables that the trace saw in use, by id. Of several roles, the last one wins."""
    known: dict[int, program_pb2.Role] = {id(v): program_pb2.ROLE_SEED for v in seen.seeds}
    known |= dict.fromkeys(seen.metric_variables(), program_pb2.ROLE_METRIC)
    known |= {id(v): program_pb2.ROLE_OPTIMIZER for optimizer in seen.optimizers for v in optimizer.variables}
    known |= {id(v): program_pb2.ROLE_TRAINABLE for optimizer in seen.optimizers for v in optimizer.trained}
    return known | {id(v): program_pb2.ROLE_TRAINABLE for hole in holes for v in hole.variables}


def role_by_writes(variable: tf.Variable, writes: Writes) -> "program_pb2.Role":
    """Returns the role of a variable as the step's graph tells it.

    A variable computed from gradients, or from itself alone (a count of steps), is equal on all workers, like an optimizer's.
    """
    if not writes:
        return program_pb2.ROLE_CONSTANT
    if writes.are_random_states:
        return program_pb2.ROLE_SEED
    if writes.follow_holes or not writes.follow_inputs:
        return program_pb2.ROLE_OPTIMIZER
    return program_pb2.ROLE_OTHER


def _propagate(roles: dict[int, Any], writes: Mapping[int, Writes]) -> None:
    """Propagates a worker-local role to variables that are computed from worker-local ones, such as a moving average."""
    own, equal = (program_pb2.ROLE_OTHER, program_pb2.ROLE_METRIC), program_pb2.ROLE_OPTIMIZER
    while True:
        found = [
            handle
            for handle, of in writes.items()
            if of and roles[handle] == equal and any(roles.get(read) in own for read in of.reads)
        ]
        if not found:
            return
        roles.update(dict.fromkeys(found, program_pb2.ROLE_OTHER))
