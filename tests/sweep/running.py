"""Runs a public script where it finds what it asks for."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tests.helpers.processes import PYTHON, Finished, background
from tests.sweep.picking import Candidate

# fdt says so, with the mode before it.
DISTRIBUTED = "training on 2 workers"
_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_LOOK_S = 0.2
# A script may ask for a folder that its author has.
_FOLDERS = ("images", "logs", "log", "save", "figures")
# TensorFlow says on stdout where each operation is placed if a session asks for it: thousands of lines before the first step.
_PLACED = re.compile(r"^[^\s:]+: \(\w+\): /job:\S+/device:\w+:\d+\n", re.MULTILINE)


def run(
    script: Candidate, options: Sequence[str], keras: int, limit_s: float, lines: int | None = None, seed: int = 0
) -> Finished:
    """Runs a script in a copy of its folder, with stand-ins for data.

    Args:
        script: Which.
        options: Of python, before the script.
        keras: 2 or 3.
        limit_s: When it is ended.
        lines: It is ended as well when it trains on workers and has printed more than these; None for never.
        seed: Of all that it draws.

    Returns:
        What it printed, without where operations are placed; the status is None if it was ended.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work = Path(folder) / "work"
        shutil.copytree(script.path.parent, work, symlinks=True, ignore_dangling_symlinks=True)
        for name in _FOLDERS:
            (work / name).mkdir(exist_ok=True)
        paths = [str(_HERE / "stand_ins"), str(_ROOT), *map(str, script.folders), os.environ.get("PYTHONPATH", "")]
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONHASHSEED": "0",
            "MPLBACKEND": "Agg",
            "TF_USE_LEGACY_KERAS": "1" if keras == 2 else "0",
            "SWEEP_SEED": str(seed),
        }
        end = time.monotonic() + limit_s
        with background([PYTHON, *options, script.path.name], cwd=work, **environment) as running:
            finished = running.so_far()
            while finished.status is None and time.monotonic() < end:
                with suppress(subprocess.TimeoutExpired):
                    running.process.wait(timeout=_LOOK_S)
                finished = running.so_far()
                is_enough = lines is not None and len(without_places(finished.stdout).splitlines()) > lines
                if is_enough and DISTRIBUTED in finished.stderr:
                    break
        # What it printed last may have come since; what it says when it is stopped is of no use.
        printed = running.so_far()
        return replace(printed, status=finished.status, stdout=without_places(printed.stdout))


def without_places(text: str) -> str:
    """Returns a text without the lines that tell where operations are placed."""
    return _PLACED.sub("", text)
