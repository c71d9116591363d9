"""The laboratory of `benchmarks/lab`, for tests: its modules stand on those of `benchmarks/`, which is no package."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "lab"


def module(name: str) -> ModuleType:
    """Returns a module of the laboratory, such as "link"."""
    folder = str(FOLDER.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(f"lab.{name}")
