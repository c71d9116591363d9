"""Compiles and loads the operation of `device.cc`, once for all processes of a benchmark."""

import subprocess
from pathlib import Path
from typing import Any

import tensorflow as tf

FOLDER = Path(__file__).resolve().parent
_LIBRARY = FOLDER / "build" / "device.so"


def compiled() -> Path:
    """Returns the library, compiled if it is older than its source."""
    source = FOLDER / "device.cc"
    if not _LIBRARY.exists() or _LIBRARY.stat().st_mtime < source.stat().st_mtime:
        _LIBRARY.parent.mkdir(exist_ok=True)
        flags = [*tf.sysconfig.get_compile_flags(), "-shared", "-fPIC", "-O2", *tf.sysconfig.get_link_flags()]
        subprocess.run(["g++", str(source), "-o", str(_LIBRARY), *flags], check=True)
    return _LIBRARY


def loaded() -> Any:
    """Returns the library's operations."""
    return tf.load_op_library(str(compiled()))
