"""The wire format as the client's later modules see it, once the script runs.

The generated package is called `protos`, a name that a script may well use for a package of its own. So the client reads
ours before the script starts and then takes it out of the way; modules that are imported while the script runs get it
from here.
"""

import sys

from protos import blobs_pb2, job_pb2, job_pb2_grpc, pool_pb2, pool_pb2_grpc, program_pb2

__all__ = ["blobs_pb2", "hide", "job_pb2", "job_pb2_grpc", "pool_pb2", "pool_pb2_grpc", "program_pb2"]


def hide() -> None:
    """Makes `import protos` find what it would find without us."""
    for name in [name for name in sys.modules if name == "protos" or name.startswith("protos.")]:
        del sys.modules[name]
