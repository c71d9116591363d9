"""Makes each Python process with this folder on its path know the operation of `device.cc`, and how a step of it is divided.

A pool's workers compute what TensorFlow has and know no library of a script's own. The operation stands for layers of any kind,
whose entries are computed each by itself; pools admit it by its name (`--admit EmulatedLayer`).
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_RULES = "fdt.division.table"


class _Finder(importlib.abc.MetaPathFinder):
    """Adds to a module what the operation needs, when it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _RULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def and_add(module: ModuleType) -> None:
                execute(module)
                _add(module)

            spec.loader.exec_module = and_add  # type: ignore[method-assign]
        return spec


def _add(module: ModuleType) -> None:
    import operation

    from fdt.division.elementwise import elementwise

    operation.loaded()
    module.RULES["EmulatedLayer"] = elementwise  # type: ignore[attr-defined]


sys.meta_path.insert(0, _Finder())
