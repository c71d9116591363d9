"""Collects the versions that client, pool and hosts send each other."""

import functools
import platform
from collections.abc import Mapping
from importlib import metadata

from fdt.v1 import program_pb2


@functools.cache
def versions() -> program_pb2.Versions:
    """Returns this process's versions; "" for a package that is not installed."""
    return program_pb2.Versions(
        fdt=_version("fdt"),
        tensorflow=_version("tensorflow"),
        keras=_version("keras"),
        python=platform.python_version(),
    )


@functools.cache
def host_versions() -> Mapping[str, str]:
    """Returns the versions that must be the same on all hosts of a pool; "" for a package that is not installed."""
    packages = {package: _version(package) for package in ("fdt", "tensorflow", "horovod")}
    return {**packages, "python": ".".join(platform.python_version_tuple()[:2])}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
