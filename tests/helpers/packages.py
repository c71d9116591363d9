"""Packages of the system that a test needs: installed where root and apt-get are, as on the machine that runs all tests."""

import os
import shutil
import subprocess
from collections.abc import Sequence

import pytest

# Chromium takes 22 s, its download of 113 MB included.
_INSTALL_S = 240.0


def require(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Installs packages unless their programs are in PATH; skips the test where that cannot be."""
    if all(shutil.which(program) for program in programs):
        return
    what = ", ".join(packages)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"{what} not installed, and only root can, with apt-get")
    # Another process of the same tests may be installing.
    command = [
        "apt-get",
        "install",
        "-y",
        "--no-install-recommends",
        f"-oDPkg::Lock::Timeout={_INSTALL_S:.0f}",
        *packages,
    ]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False, env=environment)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what} could not be installed within {_INSTALL_S:.0f} s")
    if done.returncode:
        pytest.skip(f"{what} could not be installed: {done.stderr.strip().splitlines()[-1:]}")
