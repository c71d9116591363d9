"""Imports Horovod's operations on TensorFlow's tensors, without Keras.

`horovod.tensorflow` imports Keras, for a layer and optimizers that no rank uses; this takes longer than importing TensorFlow.
So its module of operations is imported from an empty stand-in for the package.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from fdt.base.horovod_record import complaint

_PACKAGE = "horovod.tensorflow"
# Why there are none; "" if there are. A rank that is alone needs none.
MISSING = complaint() or ""


def _operations() -> ModuleType:
    if _PACKAGE in sys.modules:
        return importlib.import_module(f"{_PACKAGE}.mpi_ops")
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None:
        raise ImportError(f"No module named '{_PACKAGE}'", name=_PACKAGE)
    package = sys.modules[_PACKAGE] = ModuleType(_PACKAGE)
    package.__path__ = list(spec.submodule_search_locations or ())
    try:
        return importlib.import_module(f"{_PACKAGE}.mpi_ops")
    finally:
        # A later import of the whole package works, and has the same operations.
        del sys.modules[_PACKAGE]


hvd: Any = None if MISSING else _operations()
