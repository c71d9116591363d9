"""Compiles the modules that a script imports from its own folders with their steps outlined."""

import functools
import os
import site
import sysconfig
from importlib.abc import SourceLoader
from importlib.machinery import SourceFileLoader
from typing import Any

from fdt.base.patch import Patches
from fdt.script.outline.sites import SITES

_OURS = os.path.abspath(os.path.join(__file__, *[os.pardir] * 4))


def watch(patches: Patches) -> None:
    """Makes Python's loader outline modules of the script's own folders; for those it ignores its cache of compiled files."""

    def get_code(loader: SourceFileLoader, fullname: str) -> Any:
        path = loader.get_filename(fullname)
        outlined = SITES.compiled(loader.get_data(path), path) if is_own(path) else None
        return outlined or SourceLoader.get_code(loader, fullname)

    # Before the loader asks: `sysconfig` imports its data by this loader when it is first asked, and again if it is asked then.
    _libraries()
    patches.add(SourceFileLoader, "get_code", get_code)


def is_own(path: str) -> bool:
    """Whether a file or folder is the script author's: not of Python, of an installed package, or of FDT."""
    return not os.path.abspath(path).startswith(_libraries())


# Cached: called for each of some thousand modules.
@functools.cache
def _libraries() -> tuple[str, ...]:
    installed = sysconfig.get_paths()
    libraries = [installed[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths = [*libraries, *site.getsitepackages(), site.getusersitepackages()]
    ours = [os.path.join(_OURS, package) for package in ("fdt", "hfdt", "nfdt")]
    return tuple(os.path.join(path, "") for path in dict.fromkeys([*paths, *ours]) if path)
