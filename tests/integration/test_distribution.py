"""What is given away: the wheel and the sources, installed where nothing of this checkout is seen, train."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.helpers import processes
from tests.helpers.pool import serve

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 240.0
_OURS = {"fdt", "hfdt", "nfdt"}
_TRAIN = """
import keras, numpy as np
import fdt
print("fdt of", fdt.__file__)
keras.utils.set_random_seed(1)
x = np.arange(64, dtype="float32").reshape(16, 4) / 64
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
print("losses", model.fit(x, x[:, 0], batch_size=4, epochs=2, verbose=0).history["loss"])
"""


def _build(kind: str, source: Path, folder: Path) -> Path:
    """Builds "wheel" or "sdist" with what is installed: no registry is asked."""
    pytest.importorskip("hatchling", reason="the builder is for developers")
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder]
    processes.run(command, limit_s=_LIMIT_S, cwd=source).expect(0)
    (built,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", _ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("sdist", _ROOT, tmp_path_factory.mktemp("sdist"))


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_wheel_holds_our_packages_and_nothing_else(wheel: Path) -> None:
    contents = _contents(wheel)
    assert {name.split("/")[0] for name in contents} - _OURS == {"fdt-0.1.0.dist-info"}
    tracked = subprocess.run(
        ["git", "ls-files", *_OURS], cwd=_ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    packaged = {name for name in contents if ".dist-info/" not in name}
    assert packaged == {name for name in tracked.stdout.splitlines() if (_ROOT / name).exists()}
    assert {f"{package}/py.typed" for package in _OURS} <= packaged


def test_a_wheel_says_whose_it_is_and_on_what_it_runs(wheel: Path) -> None:
    contents = _contents(wheel)
    assert contents["fdt-0.1.0.dist-info/licenses/LICENSE"] == (_ROOT / "LICENSE").read_bytes()
    told = message_from_bytes(contents["fdt-0.1.0.dist-info/METADATA"])
    assert (told["License-Expression"], told["Author"]) == ("Apache-2.0", "FDT contributors")
    assert told["Requires-Python"] == "<3.14,>=3.11"
    # To pip Horovod is a package that cannot be built; see `fdt.cli.setup`.
    assert [needed for needed in told.get_all("Requires-Dist", []) if "horovod" in needed] == []
    assert told.get_all("Classifier")


def test_sources_build_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xzf", sdist, "-C", tmp_path], check=True, timeout=60)
    again = _contents(_build("wheel", tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "wheel"))
    assert again == _contents(wheel)


# A client of the wheel trains below, and the wheel holds all files that there are.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "mode", "workers", "said"),
    [("wheel", "sync", 2, "Horovod ring"), ("sdist", "async", 1, "parameter server")],
)
def test_what_is_installed_trains(
    kind: str, mode: str, workers: int, said: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Into an environment without fdt; TensorFlow and other requirements are this one's, so nothing is downloaded."""
    python, alone_in = _environment(tmp_path / "venv"), {"PYTHONPATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    _keep_compiled(tmp_path / "cache" / "fdt" / "native")
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    processes.run([*install, request.getfixturevalue(kind)], limit_s=_LIMIT_S, cwd=tmp_path, **alone_in).expect(0)
    (tmp_path / "train.py").write_text(_TRAIN)
    alone = processes.run([python, "train.py"], limit_s=_LIMIT_S, cwd=tmp_path, **alone_in).expect(0)
    command = [python.parent / "fdt", "run", "--mode", mode, "--workers", str(workers), "train.py"]
    trained = processes.run(command, limit_s=_LIMIT_S, cwd=tmp_path, **alone_in).expect(0)
    assert said in trained.stderr
    package, losses = trained.stdout.splitlines()
    assert package.startswith(f"fdt of {tmp_path}"), "the package under test is the installed one"
    assert _numbers(losses) == pytest.approx(_numbers(alone.stdout.splitlines()[1]), rel=1e-5)


def test_a_client_needs_no_package_of_the_pool_and_no_compiler(wheel: Path, tmp_path: Path) -> None:
    """What `pip install fdt` brings sends scripts to a pool, looks at it, and says what to install to train here."""
    python = _environment(
        tmp_path / "venv", without=("psutil", "grpc_health", "prometheus_client", "cryptography", "horovod")
    )
    alone_in = {"PYTHONPATH": "", "PATH": str(python.parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    processes.run([*install, wheel], limit_s=_LIMIT_S, cwd=tmp_path, **alone_in).expect(0)
    (tmp_path / "train.py").write_text(_TRAIN)
    fdt = python.parent / "fdt"
    alone = processes.run([python, "train.py"], limit_s=_LIMIT_S, cwd=tmp_path, **alone_in).expect(0)
    with serve(tmp_path) as pool:
        command = [fdt, "run", "--workers", "2", *pool.options, "train.py"]
        trained = processes.run(command, limit_s=_LIMIT_S, cwd=tmp_path, **alone_in).expect(0)
        processes.run([fdt, "doctor", *pool.options], limit_s=_LIMIT_S, cwd=tmp_path, **alone_in).expect(0)
    package, losses = trained.stdout.splitlines()
    assert package.startswith(f"fdt of {tmp_path}")
    assert _numbers(losses) == pytest.approx(_numbers(alone.stdout.splitlines()[1]), rel=1e-5)
    for command in (
        ["run", "--workers", "2", "train.py"],
        ["serve"],
        ["serve", "--join", "127.0.0.1:1", "--slots", "1", "--trusted-network", "lo"],
    ):
        refused = processes.run([fdt, *command], limit_s=_LIMIT_S, cwd=tmp_path, **alone_in)
        assert refused.status == 2 and "pip install 'fdt[pool]'" in refused.stderr, refused.output
        assert "Traceback" not in refused.output


@pytest.mark.parametrize(("mode", "workers"), [("async", 2), ("sync", 1)])
def test_without_a_compiler_and_horovod_what_can_work_works(
    mode: str, workers: int, wheel: Path, tmp_path: Path
) -> None:
    python = _environment(tmp_path / "venv", without=("horovod", "fdt_operations"))
    alone_in = {"PYTHONPATH": "", "PATH": str(python.parent), "XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": ""}
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    processes.run([*install, wheel], limit_s=_LIMIT_S, cwd=tmp_path, **alone_in).expect(0)
    (tmp_path / "train.py").write_text(_TRAIN)
    run = [python.parent / "fdt", "run", "--mode", mode, "--workers", str(workers), "train.py"]
    trained = processes.run(run, limit_s=_LIMIT_S, cwd=tmp_path, **alone_in).expect(0)
    assert "neither a C++ compiler nor compiled operations" in trained.stderr and "`fdt setup`" in trained.stderr
    package, losses = trained.stdout.splitlines()
    assert package.startswith(f"fdt of {tmp_path}")
    if workers == 1:
        alone = processes.run([python, "train.py"], limit_s=_LIMIT_S, cwd=tmp_path, **alone_in).expect(0)
        assert _numbers(losses) == pytest.approx(_numbers(alone.stdout.splitlines()[1]), rel=1e-5)
        refused = processes.run([*run[:5], "2", "train.py"], limit_s=_LIMIT_S, cwd=tmp_path, **alone_in).expect(2)
        assert "Horovod is not installed" in refused.stderr and "`fdt setup` builds it" in refused.stderr
    else:
        first, last = _numbers(losses)
        assert 0 < last < first


def _keep_compiled(cache: Path) -> None:
    """Hands on what this checkout has compiled: it is found by a digest of what it is made of, and compiled anew if not."""
    cache.mkdir(parents=True)
    for library in _ROOT.glob("*/**/native/build/*.so"):
        shutil.copy(library, cache)


def _numbers(line: str) -> list[float]:
    found = [float(number) for number in re.findall(r"\d+\.\d+(?:e-\d+)?", line)]
    assert len(found) == 2
    return found


def _environment(folder: Path, without: tuple[str, ...] = ()) -> Path:
    """Makes an environment that sees what this one has, after its own; returns its Python. Editable installs are not seen.

    Args:
        folder: Of the environment.
        without: Packages that cannot be imported in it.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=_LIMIT_S)
    (site,) = folder.glob("lib/python*/site-packages")
    inherited = [path for path in sys.path if path.endswith("site-packages")]
    assert sysconfig.get_path("purelib") in inherited
    (site / "parent.pth").write_text("\n".join(inherited))
    (site / "without.pth").write_text(f"import sys; sys.modules.update(dict.fromkeys({without}))\n")
    return folder / "bin" / "python"


def test_setup_installs_by_hashes_what_the_lock_holds(tmp_path: Path) -> None:
    from fdt.cli.installation import horovod_build, installer

    hashed = installer.hashed(tmp_path, "horovod", *horovod_build.BUILD_NEEDS).read_text()
    pinned = dict(re.findall(r"^([a-z]+)==([^ ;]+)", hashed, re.MULTILINE))
    assert set(pinned) == {"horovod", *horovod_build.BUILD_NEEDS}
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", hashed)) >= len(pinned)
    locked = {package["name"]: package for package in tomllib.loads((_ROOT / "uv.lock").read_text())["package"]}
    shared = horovod_build.REQUIRES
    assert {name: pinned[name] for name in shared} == {name: locked[name]["version"] for name in shared}


def test_no_file_is_installed_whose_hash_is_another(tmp_path: Path) -> None:
    wheel = tmp_path / "swapped-1.0-py3-none-any.whl"
    wheel.write_bytes(b"another file")
    (tmp_path / "requirements.txt").write_text(f"swapped @ {wheel.as_uri()} --hash=sha256:{'0' * 64}\n")
    code = (
        "import sys; from fdt.cli.installation import installer\n"
        "installer.install('--require-hashes', '--requirement', sys.argv[1], '--no-index', '--target', sys.argv[2])"
    )
    python, target = _environment(tmp_path / "own"), tmp_path / "target"
    command = [python, "-c", code, str(tmp_path / "requirements.txt"), str(target)]
    done = processes.run([*map(str, command)], limit_s=_LIMIT_S, cwd=tmp_path, PYTHONPATH=str(_ROOT))
    assert done.status != 0 and "DO NOT MATCH THE HASHES" in done.stderr and not target.exists()


def test_the_image_installs_by_hashes_and_its_base_can_be_pinned() -> None:
    text = (_ROOT / "Dockerfile").read_text()
    installs = re.findall(r"pip install ([^&\n]*)", text)
    assert len(installs) == 2
    assert all("--require-hashes" in each or "--no-deps --no-index" in each for each in installs)
    assert "FROM ${BASE}" in text and "@sha256:" in text
