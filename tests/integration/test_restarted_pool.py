"""A pool is ended by SIGTERM and started again while a script trains: its own user's clients come back by themselves."""

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.helpers.processes import PYTHON, background, run
from tests.helpers.warm import run_python

LIMIT_S = 240.0

TRAIN = """\
import sys

import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.rand(160, 4).astype("float32")
y = np.random.randint(0, 2, (160, 1)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.1), keras.layers.Dense(1)])

class Pause(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and len(sys.argv) > 1:
            print("in the middle", flush=True)
            open(sys.argv[1]).read()

model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["mae"])
history = model.fit(x, y, epochs=4, batch_size=8, verbose=0, callbacks=[Pause()]).history
print("losses", *(f"{value:.5f}" for name in ("loss", "mae") for value in history[name]), flush=True)
"""


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        port: int = each.getsockname()[1]
        return port


@pytest.mark.thorough
def test_a_script_trains_through_a_restart_without_a_token_file(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    # A short name: a pool makes its folder elsewhere where its socket's path would be too long.
    home = tmp_path_factory.mktemp("h")
    user = {"XDG_STATE_HOME": str(home), "XDG_RUNTIME_DIR": str(home), "HOME": str(home), "TMPDIR": str(home)}
    script, pipe, address = tmp_path / "train.py", home / "pipe", f"127.0.0.1:{free_port()}"
    script.write_text(TRAIN)

    os.mkfifo(pipe)
    expected = run_python(script, limit_s=LIMIT_S, cwd=tmp_path).expect(0).stdout
    serve = [PYTHON, "-m", "fdt", "serve", "--listen", address, "--workers", "2"]
    train = [PYTHON, "-m", "fdt", "run", "--server", address, "--workers", "2", str(script), str(pipe)]
    with background(serve, **user) as first:
        first.wait_for_line("pool at", LIMIT_S)
        (token,) = home.glob("fdt/*.token")
        secret = token.read_text()
        with background(train, **user) as client:
            client.wait_for_line("in the middle", LIMIT_S)
            first.process.send_signal(signal.SIGTERM)
            assert first.process.wait(LIMIT_S) == 0
            assert "going down: 1 job(s)" in first.so_far().stderr
            pipe.write_text("go on")
            with background(serve, **user) as second:
                second.wait_for_line("pool at", LIMIT_S)
                assert token.read_text() == secret
                assert client.process.wait(LIMIT_S) == 0, client.so_far().describe()
                listed = (
                    run([PYTHON, "-m", "fdt", "jobs", "--server", address], limit_s=LIMIT_S, **user).expect(0).stdout
                )
    assert re.findall(r"losses.*", client.so_far().stdout) == re.findall(r"losses.*", expected)
    assert "The pool goes down to be started again. Training goes on with 2 worker(s)" in client.so_far().stderr
    assert re.search(r"job-1 +interrupted .*goes on as job-2", listed) and re.search(r"job-2 +finished", listed), listed
