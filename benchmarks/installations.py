"""Times installations with each Python and TensorFlow, by the commands of docs/how-to/install.md, and trains after each.

    make dist && FDT_UV=.uv/bin/uv python benchmarks/installations.py
    FDT_UV=.uv/bin/uv python benchmarks/installations.py 3.13/2.21.0          # a Python and a TensorFlow

Caches of `pip` and of `fdt setup` are empty folders in the beginning and kept for a second environment. The client trains on a
pool of this checkout's environment, which the benchmark starts.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from processes import ROOT, RunFailedError, fdt, readable, run, serving, within
from record import Content, Record, heading
from tables import table

sys.path.insert(0, str(ROOT))
from tests.matrix.environments import VERSIONS, Version, interpreter

_LIMIT_S = 1800.0
_TRAIN = """
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).random((4096, 32), "float32")
model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
print("losses", *model.fit(x, x.sum(axis=1, keepdims=True), batch_size=64, epochs=2, verbose=0).history["loss"])
"""
# How far losses may be from plain python's, relative to them.
_TOLERANCES = {"sync": 1e-5, "async": 1.0}


class Environment:
    """A virtual environment of a version, and what is installed and run in it.

    Args:
        folder: Where to make it.
        version: Its Python and TensorFlow.
    """

    def __init__(self, folder: Path, version: Version) -> None:
        found = interpreter(version.python)
        if found is None:
            raise RunFailedError(f"There is no Python {version.python} on this machine")
        run([found, "-m", "venv", str(folder)], timeout_s=_LIMIT_S)
        self._python = str(folder / "bin" / "python")
        # Where no checkout's modules are found before those that are installed.
        self._run = partial(run, timeout_s=_LIMIT_S, folder=folder)
        self._tensorflow = f"tensorflow=={version.tensorflow}"
        self._script = folder / "train.py"
        self._script.write_text(_TRAIN)

    def installs(self, wheel: str) -> float:
        """Installs TensorFlow and ours; returns the seconds."""
        command = [self._python, "-m", "pip", "install", "--quiet", self._tensorflow, wheel]
        return self._run(command).seconds

    def sets_up(self) -> float:
        """Compiles, or takes from the cache; returns the seconds."""
        return self._run([self._python, "-m", "fdt", "setup"]).seconds

    def plain(self) -> list[float]:
        """Returns the losses of plain python."""
        return _losses(self._run([self._python, str(self._script)]).output)

    def trains(self, plain: Sequence[float], mode: str, *options: str) -> float:
        """Trains under `fdt run`; returns the seconds.

        Raises:
            RunFailedError: A loss is further from plain python's than the mode may be.
        """
        command = [self._python, "-m", "fdt", "run", "--mode", mode, "--workers", "2", *options, str(self._script)]
        finished = self._run(command)
        losses = _losses(finished.output)
        if not all(abs(mine - its) <= _TOLERANCES[mode] * abs(its) for mine, its in zip(losses, plain, strict=True)):
            raise RunFailedError(f"Losses {losses}, plain python's {plain}: {readable(command)}")
        return finished.seconds


def _losses(output: str) -> list[float]:
    (line,) = re.findall(r"^losses (.*)$", output, re.MULTILINE)
    return [float(loss) for loss in line.split()]


def measured(version: Version, wheel: Path, address: str) -> dict[str, Any]:
    """Installs and trains: a client, then a pool, in an environment with empty caches; the pool again with full ones.

    Args:
        version: Python and TensorFlow.
        wheel: Ours.
        address: Of a running pool of both modes.
    """
    with tempfile.TemporaryDirectory() as made:
        caches = {"PIP_CACHE_DIR": str(Path(made, "pip")), "XDG_CACHE_HOME": str(Path(made, "cache"))}
        with within(caches):
            first = Environment(Path(made, "first"), version)
            seconds = {"client_s": first.installs(str(wheel))}
            plain = first.plain()
            for mode in _TOLERANCES:
                seconds[f"client_{mode}_s"] = first.trains(plain, mode, "--server", address)
            seconds["pool_s"] = seconds["client_s"] + first.installs(f"{wheel}[pool]")
            # Without `fdt setup`: what is missing of our own operations is compiled at the first use.
            seconds["async_s"] = first.trains(plain, "async")
            seconds["setup_s"] = first.sets_up()
            seconds["sync_s"] = first.trains(plain, "sync")
            again = Environment(Path(made, "again"), version)
            seconds["pool_cached_s"] = again.installs(f"{wheel}[pool]")
            seconds["setup_cached_s"] = again.sets_up()
            seconds["sync_again_s"] = again.trains(plain, "sync")
            return seconds


def markdown(content: Content) -> str:
    """Returns the table."""
    heads = [
        *("Python, TensorFlow", "client, s", "trains on a pool, sync, async, s", "pool, s (cached)"),
        *("first training, async, s", "`fdt setup`, s (cached)", "first training, sync, s (cached)"),
    ]
    lines = [
        [
            e["version"],
            f"{e['client_s']:.0f}",
            f"works, {e['client_sync_s']:.0f}, {e['client_async_s']:.0f}",
            f"{e['pool_s']:.0f} ({e['pool_cached_s']:.0f})",
            f"works, {e['async_s']:.0f}",
            f"{e['setup_s']:.0f} ({e['setup_cached_s']:.0f})",
            f"works, {e['sync_s']:.0f} ({e['sync_again_s']:.0f})",
        ]
        if "failed" not in e
        else [e["version"], e["failed"], "", "", "", "", ""]
        for e in content["measurements"]
    ]
    return (
        f"# Installations\n\n{heading(content)}\n\n"
        "`pip install` from the registry with an empty cache, `fdt setup` with an empty one (in brackets a second "
        "environment, both caches full); two workers. *Works*: exit status 0, and synchronous losses are plain python's "
        "(1e-5).\n\n"
        f"{table(heads, lines)}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "versions", nargs="*", metavar="PYTHON/TENSORFLOW", help="all that tests/matrix has unless given"
    )
    options = parser.parse_args()
    given = [
        Version(tensorflow, python) for python, _, tensorflow in (text.partition("/") for text in options.versions)
    ]
    (wheel,) = (ROOT / "dist").glob("fdt-*.whl")
    record = Record("installations", {"versions": options.versions}, (), markdown)
    serve = fdt("serve", "--workers", "2", "--mode", "both", "--listen", "127.0.0.1:0", "--no-token")
    with tempfile.TemporaryDirectory() as folder, serving(serve, r"127\.0\.0\.1:\d+", Path(folder, "pool.log")) as said:
        for version in given or VERSIONS:
            measure = partial(measured, version, wheel, said[0])
            record.add("install", measure, version=f"{version.python}, {version.tensorflow}")
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
