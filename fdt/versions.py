"""Who speaks: the versions that both sides tell each other."""

import functools
import platform
from importlib import metadata

from protos import program_pb2


@functools.cache
def versions() -> program_pb2.Versions:
    """Returns the versions of this side; a package that is not installed is left empty."""
    return program_pb2.Versions(
        fdt=_version("fdt"),
        tensorflow=_version("tensorflow"),
        keras=_version("keras"),
        python=platform.python_version(),
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
