"""Horovod's operations on TensorFlow's tensors.

`horovod.tensorflow` as a whole imports Keras, for a layer and for optimizers that no rank uses: longer than TensorFlow takes
itself. So its module of operations is imported as if the package around it were empty.
"""

import importlib
import importlib.util
import sys
from types import ModuleType

_PACKAGE = "horovod.tensorflow"


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
        # Whoever wants all of it gets it, with the same operations.
        del sys.modules[_PACKAGE]


hvd = _operations()
