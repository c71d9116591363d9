"""Environments with other versions of Python and TensorFlow, and what is run in them."""

import dataclasses
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.fidelity.cases import SCRIPT
from tests.fidelity.comparison import compare
from tests.helpers.pool import Pool
from tests.helpers.processes import run

UV = os.environ.get("FDT_UV", "")
needs_uv = pytest.mark.skipif(not UV, reason="installs other TensorFlows; `make test-matrix` runs it")
ROOT = Path(__file__).parents[2]
LIMIT_S = 900.0
# What cases and examples import besides. From 2.21 on TensorFlow does not bring TensorBoard, which a callback writes for.
_OF_CASES = ("tensorboard", "scikit-learn", "scipy", "pandas", "matplotlib")


@dataclasses.dataclass(frozen=True)
class Version:
    """The versions of an environment."""

    tensorflow: str
    python: str

    def __str__(self) -> str:
        return f"tensorflow {self.tensorflow}, python {self.python}"

    @property
    def has_keras_2(self) -> bool:
        """Whether Keras 2 works: it makes no initial weights on Python 3.12 before its release for TensorFlow 2.19."""
        return self.python == "3.11" or tuple(map(int, self.tensorflow.split(".")))[:2] >= (2, 19)


# Those that there are wheels for: each minor version on the oldest and the newest Python that has it, but for the middle ones.
OLDEST, NEWEST = Version("2.16.2", "3.11"), Version("2.21.0", "3.13")
VERSIONS = (
    OLDEST, Version("2.16.2", "3.12"), Version("2.18.1", "3.11"), Version("2.18.1", "3.12"), Version("2.20.0", "3.13"),
    Version("2.21.0", "3.11"), Version("2.21.0", "3.12"), NEWEST,
)  # fmt: skip


def interpreter(version: str) -> str | None:
    """Returns an interpreter of a version; pyenv's stand-ins on the path, which work for one version only, are passed over."""
    found = subprocess.run([UV, "python", "find", version], capture_output=True, text=True, check=False)
    if not found.returncode:
        return found.stdout.strip()
    others = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(others[-1]) if others else None


def virtual_environment(folder: Path, version: str) -> Path:
    """Makes an empty environment; returns its Python. Skips the test where there is no such version."""
    found = interpreter(version)
    if found is None:
        pytest.skip(f"there is no Python {version} on this machine")
    subprocess.run([UV, "venv", "--quiet", "--python", found, folder], check=True, timeout=LIMIT_S)
    return folder / "bin" / "python"


def uv_installs(python: Path, *packages: str) -> None:
    """Installs packages into an environment."""
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, *packages], check=True, timeout=LIMIT_S)


def make(folder: Path, version: Version, extra: str = "") -> Path:
    """Makes an environment with a TensorFlow and this checkout; returns its Python.

    Args:
        folder: Where to.
        version: Its versions. Keras is the newest that its TensorFlow accepts, as users have it.
        extra: Ours, in brackets, such as "[pool]"; with it what is compiled is built or taken from the user's cache.
    """
    python = virtual_environment(folder, version.python)
    keras_2 = f"tf_keras=={version.tensorflow.rsplit('.', 1)[0]}.*"
    packages = [f"tensorflow=={version.tensorflow}", keras_2, *_OF_CASES, "-e", f"{ROOT}{extra}"]
    uv_installs(python, *packages)
    if extra:
        path = os.pathsep.join((str(Path(UV).parent), os.environ["PATH"]))
        run([python, "-m", "fdt", "setup"], limit_s=LIMIT_S, cwd=folder, PATH=path).expect(0)
    return python


def check_cases(client: Path, cases: str, pool: Pool, folder: Path, *options: str, **environ: str) -> None:
    """Compares what cases give on a pool with what they give by themselves.

    Args:
        client: Python of the client's environment.
        cases: Names of cases (tests/fidelity/cases.py).
        pool: Where they train.
        folder: For what they give.
        options: Of `fdt run`.
        environ: Variables for both.
    """
    named = cases.replace(" ", ",")
    plain, distributed = folder / "plain", folder / "distributed"
    run([client, SCRIPT, "--cases", named, "--out", plain], limit_s=LIMIT_S, cwd=folder, **environ).expect(0)
    fdt = [client, "-m", "fdt", "run", *options, *pool.options]
    run([*fdt, SCRIPT, "--cases", named, "--out", distributed], limit_s=LIMIT_S, cwd=folder, **environ).expect(0)
    for case in cases.split():
        with np.load(plain / f"{case}.npz") as mine, np.load(distributed / f"{case}.npz") as theirs:
            differences = compare(dict(mine), dict(theirs))
        beyond = [str(difference) for difference in differences if not difference.within]
        assert not beyond, f"{case}:\n" + "\n".join(beyond)
