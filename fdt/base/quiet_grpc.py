"""Keeps gRPC from printing what is no error, such as the end of an idle connection: plain `python` prints nothing of it.

gRPC takes its verbosity from the environment when it is imported. A script's environment is the user's, so the variable stands
there only meanwhile.
"""

import os
import sys

_VERBOSITY = "GRPC_VERBOSITY"


def import_grpc() -> None:
    """Imports gRPC with only errors printed; changes nothing if it is imported already or the user has set its verbosity."""
    if _VERBOSITY in os.environ or "grpc" in sys.modules:
        return
    os.environ[_VERBOSITY] = "ERROR"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ[_VERBOSITY]
