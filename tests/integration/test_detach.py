"""`fdt run --detach`: the terminal is closed, the script trains on; `fdt attach` shows it and ends as it does."""

import os
import signal
from pathlib import Path

import psutil

from tests.helpers.processes import PYTHON, background, run

LIMIT_S = 240.0

TRAIN = """\
import sys

import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).random((96, 8), np.float32)
model = keras.Sequential([keras.layers.Dense(16), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
history = model.fit(x, x.sum(axis=1, keepdims=True), batch_size=20, epochs=2, verbose=0).history
print("trained", f"{history['loss'][-1]:.5f}", flush=True)
open(sys.argv[1]).read()
sys.exit(7)
"""


def test_the_terminal_is_closed_and_the_script_trains_on(tmp_path: Path) -> None:
    script, pipe = tmp_path / "train.py", tmp_path / "pipe"
    script.write_text(TRAIN)
    os.mkfifo(pipe)
    home = {"XDG_STATE_HOME": str(tmp_path / "state")}

    def fdt(*arguments: str) -> list[str]:
        return [PYTHON, "-m", "fdt", *arguments]

    began = run(fdt("run", "--detach", "--workers", "2", str(script), str(pipe)), limit_s=LIMIT_S, cwd=tmp_path, **home)
    assert began.expect(0).stdout == "run-1\n" and "fdt attach run-1" in began.stderr
    with background(fdt("attach", "run-1"), **home) as attached:
        attached.wait_for_line("trained", LIMIT_S)
        attached.process.send_signal(signal.SIGINT)
        assert attached.process.wait(LIMIT_S) == 128 + signal.SIGINT
    assert "run-1 goes on" in attached.so_far().stderr and "fdt cancel run-1" in attached.so_far().stderr
    listed = run(fdt("jobs", "--server", "127.0.0.1:1"), limit_s=LIMIT_S, **home).expect(0).stdout
    assert [line.split()[:4] for line in listed.splitlines()[1:]] == [["run-1", "running", "sync", "2"]]
    (lock,) = tmp_path.glob("state/fdt/*/runs/run-1/lock")
    everything = psutil.Process(int(lock.read_text())).children(recursive=True)
    assert len(everything) > 2, "the script and its pool"
    pipe.write_text("go on")
    ended = run(fdt("attach", "run-1"), limit_s=LIMIT_S, **home).expect(7)
    assert "fdt: sync training on 2 workers" in ended.stdout and "trained" in ended.stdout
    assert not [process for process in everything if process.is_running() and process.status() != "zombie"]
    listed = run(fdt("jobs", "--server", "127.0.0.1:1"), limit_s=LIMIT_S, **home).expect(0).stdout
    assert "failed" in listed and "the script ended with status 7" in listed
