"""What the product promises, on a GPU: plain python's figures, memory that is shared and given back, recovery.

`benchmarks/gpu.py` has the rates. With one GPU two workers share it.
"""

import json
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.test_lost_rank import FIT
from tests.helpers.processes import PYTHON, Finished, run

Found = Callable[[str, str], None]
ROOT = Path(__file__).parents[2]
LIMIT_S = 200.0
EXAMPLES = ROOT / "client_examples"
MODELS = ROOT / "benchmarks" / "models"
SCRIPTS: dict[str, list[str]] = {
    "digits": [f"{EXAMPLES}/digits.py", "--epochs", "2"],
    "cnn": [f"{MODELS}/fit.py", "cnn", "--epochs", "1", "--steps", "20"],
    "resnet34": [f"{MODELS}/fit.py", "resnet34", "--epochs", "1", "--steps", "10"],
    "lstm_text": [f"{EXAMPLES}/lstm_text.py", "--epochs", "1", "--sentences", "2000"],
    "vit": [f"{EXAMPLES}/vit.py", "--epochs", "1", "--steps", "10", "--depth", "4"],
    "gan": [f"{EXAMPLES}/gan.py", "--epochs", "1"],
    "training_loop": [f"{EXAMPLES}/training_loop.py", "--epochs", "1"],
}
DETERMINISTIC = """\
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
x, y = np.random.rand(256, 16, 16, 3).astype("float32"), np.random.randint(0, 4, 256)
net = [keras.Input((16, 16, 3)), *(keras.layers.Conv2D(32, 3, activation="relu") for _ in range(3))]
model = keras.Sequential([*net, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, epochs=3, batch_size=32, verbose=0)
print("sum", repr(float(sum(abs(w.astype("float64")).sum() for w in model.get_weights()))))
"""


def fdt(*arguments: str, limit_s: float = LIMIT_S, cwd: Path | None = None) -> Finished:
    return run([PYTHON, "-m", "fdt", *arguments], limit_s=limit_s, cwd=cwd, **seen())


def seen() -> dict[str, str]:
    """Returns the environment in which tests see the GPU."""
    # Tests run beside each other.
    return {"CUDA_VISIBLE_DEVICES": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def memory() -> dict[int, int]:
    """Returns the bytes of the GPU's memory, by process; of this whole machine under 0."""
    ask = ["nvidia-smi", "--format=csv,noheader,nounits"]
    lines = subprocess.run([*ask, "--query-compute-apps=pid,used_memory"], capture_output=True, text=True).stdout
    total = subprocess.run([*ask, "--query-gpu=memory.used"], capture_output=True, text=True, check=True).stdout
    pairs = [line.split(", ") for line in lines.splitlines()]
    by_process = {int(pid): int(used) << 20 for pid, used in pairs if used.strip().isdecimal()}
    return {**by_process, 0: int(total.splitlines()[0]) << 20}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", SCRIPTS)
def test_steps_agree_with_plain_pythons(name: str, workers: int, found: Found, tmp_path: Path) -> None:
    done = fdt("verify", "--workers", str(workers), "--steps", "5", *SCRIPTS[name], cwd=tmp_path)
    largest = re.findall(r"[0-9.]+e-?[0-9]+ \([^)]*\)", done.output)
    found(f"verify {name}, {workers}", f"exit {done.status}, largest {largest[:1]}")
    done.expect(0)


@pytest.mark.parametrize("workers", [1, 2])
def test_losses_are_plain_pythons(workers: int, found: Found, tmp_path: Path) -> None:
    plain = run([PYTHON, *SCRIPTS["digits"]], limit_s=LIMIT_S, cwd=tmp_path, **seen()).expect(0)
    done = fdt("run", "--workers", str(workers), *SCRIPTS["digits"], cwd=tmp_path).expect(0)
    theirs, ours = (list(map(float, re.findall(r"loss: ([0-9.]+)", each.stdout))) for each in (plain, done))
    found(f"losses of digits, {workers}", f"{ours} beside {theirs}")
    assert len(ours) == len(theirs) > 0
    assert ours == pytest.approx(theirs, rel=5e-3)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_script_leaves_the_memory_to_the_workers(mode: str, found: Found, tmp_path: Path) -> None:
    before, most, ended = memory()[0], [0, 0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.3):
            now = memory()
            most[:] = max(most, [now.pop(0) - before, len(now)])

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        done = fdt("run", "--mode", mode, "--workers", "2", f"{MODELS}/fit.py", "cnn", "--epochs", "3", cwd=tmp_path)
    finally:
        ended.set()
        watching.join()
    left = memory()[0] - before
    found(f"memory, {mode}, 2 workers", f"{most[0] >> 20} MiB in {most[1]} processes, {left >> 20} MiB left")
    done.expect(0)
    # TensorFlow without a bound takes nearly all of the card's memory.
    assert most[0] < 12 << 30
    assert left < 1 << 30


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_killed_worker_is_replaced(mode: str, found: Found, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FIT)
    before = memory()[0]
    command = ("run", "--mode", mode, "--workers", "2", "--reconnect", "60", "--report", "report.json", "train.py")
    done = fdt(*command, cwd=tmp_path)
    left = memory()[0] - before
    faults = json.loads((tmp_path / "report.json").read_text())["faults"] if (tmp_path / "report.json").exists() else []
    found(f"killed, {mode}", f"exit {done.status}, {faults}, {left >> 20} MiB left")
    done.expect(0)
    assert done.stderr.count("harmed") == 2
    assert left < 1 << 30


def test_deterministic_training_repeats_bit_for_bit(found: Found, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DETERMINISTIC)
    plain = run([PYTHON, "train.py"], limit_s=LIMIT_S, cwd=tmp_path, **seen()).expect(0)
    runs = [fdt("run", "--workers", "2", "train.py", cwd=tmp_path).expect(0).stdout for _ in range(2)]
    found("deterministic, 2", f"{[each.strip() for each in runs]} beside {plain.stdout.strip()}")
    assert runs[0] == runs[1]


def test_the_doctor_finds_the_gpu(found: Found) -> None:
    done = fdt("doctor")
    (line,) = [line for line in done.stdout.splitlines() if line.strip().startswith("gpu")]
    found("doctor", line.strip())
    assert "GPU 0" in line
