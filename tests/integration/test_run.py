"""`fdt run` as a whole: the report, the ports, weak scaling, a script with a package called like one of ours."""

import json
import textwrap
from pathlib import Path

from tests.helpers import processes
from tests.helpers.pool import Pool
from tests.helpers.warm import run_fdt

_LIMIT_S = 240.0

_TRAIN = """
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).random((96, 8), np.float32)
    y = x.sum(axis=1, keepdims=True)
    model = keras.Sequential([keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
"""


def _script(directory: Path, *parts: str) -> Path:
    path = directory / "train.py"
    path.write_text("".join(textwrap.dedent(part) for part in parts))
    return path


def test_report_tells_what_was_done(pool: Pool, tmp_path: Path) -> None:
    fits = """
        model.fit(x, y, batch_size=20, epochs=3, verbose=0)
        model.fit(x, y, batch_size=20, epochs=1, verbose=0)
    """
    report = tmp_path / "report.json"
    options = ("--report", str(report), *pool.options)
    run_fdt(_script(tmp_path, _TRAIN, fits), workers=2, options=options, limit_s=_LIMIT_S).expect(0)
    content = json.loads(report.read_text())
    assert (content["mode"], content["workers"], content["exit_status"]) == ("sync", 2, 0)
    assert content["versions"]["pool"]["tensorflow"]
    first, second = content["fits"]
    assert (first["steps"], first["epochs"], first["global_batch"]) == (15, 3, 20)
    assert [rank["steps"] for rank in first["ranks"]] == [15, 15]
    assert sum(rank["samples"] for rank in first["ranks"]) == 3 * 96
    assert sum(rank["samples"] for rank in second["ranks"]) == 96
    assert 0 < first["first_step_seconds"] <= first["seconds"]
    num_parameters = 8 * 16 + 16 + 16 + 1
    assert first["bytes_exchanged"] == 15 * 2 * 4 * num_parameters
    assert first["bytes_to_pool"] > x_bytes(), "the arrays go up once"
    assert second["bytes_to_pool"] < 4096, "a second fit on the same arrays sends values that changed, no arrays"
    assert first["logs"]["loss"] > second["logs"]["loss"] > 0


def x_bytes() -> int:
    """Bytes of the script's two arrays."""
    return 96 * 9 * 4


def test_per_worker_batches_and_scaled_learning_rate(pool: Pool, tmp_path: Path) -> None:
    """Two workers with the script's batch each are one machine with twice the batch and a learning rate that warms up."""
    fit = """
        import sys

        rate = 0.01
        if "--by-hand" in sys.argv:
            iterations = iter(range(100))

            class WarmUp(keras.callbacks.Callback):
                def on_train_batch_begin(self, batch, logs=None):
                    self.model.optimizer.learning_rate = rate * (1 + min(1, next(iterations) / 30))

            history = model.fit(x, y, batch_size=16, epochs=8, callbacks=[WarmUp()], verbose=0)
        else:
            history = model.fit(x, y, batch_size=8, epochs=8, verbose=0)
        print("steps", int(model.optimizer.iterations.numpy()))
        print("loss", *[f"{loss:.5f}" for loss in history.history["loss"]])
    """
    script = _script(tmp_path, _TRAIN, fit)
    options = ("--batch", "per-worker", "--scale-lr", "linear", *pool.options)
    scaled = run_fdt(script, workers=2, options=options, limit_s=_LIMIT_S).expect(0)
    by_hand = run_fdt(script, "--by-hand", workers=1, options=pool.options, limit_s=_LIMIT_S).expect(0)
    assert "global batch 16 = 2 x the script's batch" in scaled.stderr
    assert scaled.stdout == by_hand.stdout
    assert "steps 48" in scaled.stdout


def test_no_socket_is_off_loopback(tmp_path: Path) -> None:
    look = """
        import os
        import pathlib
        import psutil

        def bound(process):
            # Of the sockets in the network that the process sees, which need not be ours, its own: where they are bound.
            own = {os.readlink(each) for each in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()}
            for table in ("tcp", "tcp6"):
                for line in pathlib.Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]:
                    fields = line.split()
                    if f"socket:[{fields[9]}]" in own:
                        yield fields[1].partition(":")[0]

        class Look(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                for process in psutil.Process(os.getpid()).children(recursive=True):
                    for address in bound(process):
                        print("bound", address)

        model.fit(x, y, epochs=1, callbacks=[Look()], verbose=0)
    """
    finished = processes.run_fdt(_script(tmp_path, _TRAIN, look), workers=2, limit_s=_LIMIT_S).expect(0)
    bound = [line for line in finished.stdout.splitlines() if line.startswith("bound")]
    assert bound, "the ranks of Horovod are connected to each other"
    # 127.0.0.1, as the kernel writes it.
    assert set(bound) == {"bound 0100007F"}


def test_a_script_may_have_a_package_called_protos(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "protos").mkdir()
    (tmp_path / "protos" / "__init__.py").write_text("owner = 'the script'\n")
    script = _script(tmp_path, "import protos\n", _TRAIN, "model.fit(x, y, verbose=0)\n", "print(protos.owner)\n")
    finished = run_fdt(script, workers=1, options=pool.options, limit_s=_LIMIT_S)
    assert finished.expect(0).stdout == "the script\n"


def test_steps_of_train_on_batch_bring_home_what_the_script_looks_at(pool: Pool, tmp_path: Path) -> None:
    steps = """
        twin = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1000), keras.layers.Dense(1)])
        twin.compile("adam", "mse")
        wide = keras.Sequential([keras.Input((8,)), twin])
        wide.compile("adam", "mse")
        for step in range(20):
            losses = twin.train_on_batch(x[:32], y[:32]), wide.train_on_batch(x[32:64], y[32:64])
        print("bytes", sum(v.numpy().nbytes for v in (*twin.variables, *twin.optimizer.variables, *wide.optimizer.variables)))
    """
    report = tmp_path / "report.json"
    options = ("--report", str(report), *pool.options)
    script = _script(tmp_path, _TRAIN, steps)
    finished = run_fdt(script, workers=2, options=options, limit_s=_LIMIT_S).expect(0)
    size = int(finished.stdout.split()[-1])
    (account,) = json.loads(report.read_text())["fits"]
    assert account["steps"] == 40
    # Once in the end, a snapshot perhaps, and 40 times a loss.
    assert account["bytes_from_pool"] < 3 * size
    # Both models' steps begin with all of theirs.
    assert account["bytes_to_pool"] < 2 * size
