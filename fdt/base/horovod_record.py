"""Tells what the installed Horovod was built with, and whether it serves: `fdt setup` leaves a record in the package."""

import dataclasses
import functools
import hashlib
import importlib.util
import json
import sys
from importlib import metadata
from pathlib import Path

# The record, in the package's folder.
RECORD = "fdt_build.json"
# What Horovod is changed by before it is compiled: unified diffs, applied in the order of their names.
PATCHES = Path(__file__).with_name("horovod_patches")
_PACKAGES = ("tensorflow", "tensorflow-cpu")
# The library of TensorFlow whose content tells builds of one version apart.
_LIBRARY = "tensorflow/libtensorflow_framework.so.2"


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a build of Horovod has to be for, on this machine.

    Attributes:
        patches: Digest of our patches.
        tensorflow: TensorFlow's version.
        library: Digest of TensorFlow's library; "" if its installer has noted none.
        python: Tag of the Python version, such as "cp311".
    """

    patches: str
    tensorflow: str
    library: str
    python: str


def needs() -> Needs | None:
    """Returns what Horovod has to be built for in this environment; None without a TensorFlow."""
    for package in _PACKAGES:
        try:
            found = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            continue
        lines = (found.read_text("RECORD") or "").splitlines()
        library = next((line.split(",")[1] for line in lines if line.startswith(f"{_LIBRARY},")), "")
        return Needs(_patches(), found.version, library, f"cp{sys.version_info.major}{sys.version_info.minor}")
    return None


def complaint() -> str | None:
    """Returns why synchronous workers cannot use the installed Horovod; None if they can. Imports neither it nor TensorFlow."""
    spec = importlib.util.find_spec("horovod")
    if spec is None or not spec.submodule_search_locations:
        return "Horovod is not installed"
    try:
        record = json.loads(Path(spec.submodule_search_locations[0], RECORD).read_text())
    except (OSError, ValueError):
        return "the Horovod that is installed was not built by `fdt setup`, and lacks what it is patched with"
    wanted = needs()
    if wanted is None:
        return "no TensorFlow is installed"
    if record.get("tensorflow") != wanted.tensorflow:
        return f"Horovod was built for TensorFlow {record.get('tensorflow')}, and {wanted.tensorflow} is installed"
    if any(record.get(name) != value for name, value in dataclasses.asdict(wanted).items()):
        return "Horovod was built for another Python, another build of TensorFlow or by another version of FDT"
    return None


@functools.cache
def _patches() -> str:
    digest = hashlib.sha256()
    for path in sorted(PATCHES.glob("*.patch")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
