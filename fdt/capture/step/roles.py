"""What the roles of a step's variables mean for each other."""

from collections.abc import Mapping
from typing import Any

from fdt.capture.step.writes import Writes
from fdt.messages import program_pb2


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
