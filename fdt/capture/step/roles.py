"""What the roles of a step's variables mean for each other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.capture.step.trial_holes import IndivisibleError
from fdt.capture.step.writes import Writes, read_by
from fdt.holes import OpenHole
from fdt.messages import program_pb2


def check_reads(graph: Any, holes: Sequence[OpenHole], describe: Callable[[tf.Variable], program_pb2.Variable]) -> None:
    """Checks that no gradient stands on what adds up over workers: each of them has its own part of it only.

    Raises:
        IndivisibleError: One does; the variable is named.
    """
    functions = {hole.function for hole in holes if hole.kind == program_pb2.Hole.KIND_GRADIENTS}
    reads = read_by(graph, functions)
    for variable in graph.variables:
        if id(variable.handle) in reads and describe(variable).role == program_pb2.ROLE_METRIC:
            raise IndivisibleError(
                f"its gradients stand on {variable.name.removesuffix(':0')!r}, to which each worker adds what its own rows give"
            )


def tell_apart(roles: dict[int, Any], writes: Mapping[int, Writes]) -> None:
    """Has what follows variables that every worker updates by its own rows be such a one too: a moving average of one."""
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
