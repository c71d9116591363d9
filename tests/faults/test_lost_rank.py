"""A rank that is killed in the middle of an epoch: the script is told which and how, and the pool goes on."""

import re
from pathlib import Path

import pytest

from tests.faults.scripts import NET, TRAINS, write
from tests.helpers.pool import serve
from tests.helpers.processes import Finished, run_fdt

LIMIT_S = 180.0
SEEN = 3

# The script kills a worker process below ROOT (its own embedded pool, or the pool whose process id it is given). Of the
# workers the oldest are those of the job: a warm spare is started later.
KILLS = (
    NET
    + f"""
import os
import signal
import sys

import psutil

class Kill(keras.callbacks.Callback):
    fired = False

    def on_train_batch_end(self, batch, logs=None):
        if self.fired or int(self.model.optimizer.iterations) < 6:
            return
        Kill.fired = True
        root = psutil.Process(int(sys.argv[1]) if len(sys.argv) > 1 else os.getpid())
        forked = [p for p in root.children(recursive=True) if "fdt.pool.forkserver" in p.cmdline()]
        workers = [p for p in forked if p.parent() in forked]
        victim = min(workers, key=lambda process: process.create_time())
        os.kill(victim.pid, signal.SIGKILL)
        print("killed", victim.pid, flush=True)

model.compile("sgd", "binary_crossentropy")
try:
    model.fit(x, y, epochs=200, batch_size=8, verbose=0, callbacks=[Kill()])
except Exception as error:
    print("caught", type(error).__name__, str(error), flush=True)
    print("weights", np.isfinite(model.get_weights()[0]).all(), flush=True)
    sys.exit({SEEN})
print("finished", flush=True)
"""
)


LOOP = (
    KILLS[: KILLS.index("class Kill")]
    + f"""
optimizer = keras.optimizers.SGD()

@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a) - b))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

def kill():
    root = psutil.Process(os.getpid())
    forked = [p for p in root.children(recursive=True) if "fdt.pool.forkserver" in p.cmdline()]
    victim = min((p for p in forked if p.parent() in forked), key=lambda process: process.create_time())
    os.kill(victim.pid, signal.SIGKILL)
    print("killed", victim.pid, flush=True)

try:
    for number in range(1000):
        loss = step(x, y)
        if number == 6:
            print("loss", float(loss) > 0, flush=True)
            kill()
    print("loss", float(loss), flush=True)
except Exception as error:
    print("caught", type(error).__name__, str(error), flush=True)
    print("weights", np.isfinite(model.get_weights()[0]).all(), flush=True)
    sys.exit({SEEN})
print("finished", flush=True)
"""
)


def told(finished: Finished) -> None:
    """Asserts that the fault fired, and that the script's exception names rank and signal."""
    assert "killed" in finished.stdout, f"the fault did not fire\n{finished.describe()}"
    finished.expect(SEEN)
    caught = re.search(r"^caught (\w+) (.*)", finished.stdout, re.MULTILINE | re.DOTALL)
    assert caught and caught[1] == "WorkerError", finished.describe()
    assert re.search(r"(?i)(rank|worker) [01]\b", caught[2]), f"does not name the rank\n{finished.describe()}"
    assert re.search(r"SIGKILL|signal 9", caught[2]), f"does not name the signal\n{finished.describe()}"
    assert "weights True" in finished.stdout, finished.describe()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_embedded_pool(tmp_path: Path, mode: str) -> None:
    told(run_fdt(write(tmp_path, KILLS), mode=mode, limit_s=LIMIT_S, cwd=tmp_path))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_in_a_loop_of_the_scripts_own(tmp_path: Path, mode: str) -> None:
    """It is told where it looks, and has the weights that it saw last."""
    told(run_fdt(write(tmp_path, LOOP), mode=mode, limit_s=LIMIT_S, cwd=tmp_path))


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("text", [KILLS, LOOP], ids=["fit", "loop"])
def test_the_script_may_begin_again(tmp_path: Path, text: str, mode: str) -> None:
    """One that catches the error and trains again is given other workers, and goes on from the weights that it has."""
    again = {
        KILLS: "model.fit(x, y, epochs=2, batch_size=8, verbose=0)\nlosses = [model.evaluate(x, y, verbose=0)]\n",
        LOOP: "losses = [float(step(x, y)) for _ in range(4)]\nassert losses[-1] < losses[0], losses\n",
    }[text]
    text = text.replace(f"    sys.exit({SEEN})\n", "").replace('print("finished"', again + 'print("again", losses')
    finished = run_fdt(write(tmp_path, text), mode=mode, limit_s=LIMIT_S, cwd=tmp_path).expect(0)
    assert "caught WorkerError" in finished.stdout and "again [" in finished.stdout, finished.describe()
    assert "the training that begins now gets another one" in finished.stderr, finished.describe()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_worker_that_stops_answering(tmp_path: Path, mode: str) -> None:
    """It does not die, it is only silent; nobody waits for it longer than 15 s."""
    text = KILLS.replace("signal.SIGKILL", "signal.SIGSTOP").replace("import signal\n", "import signal\nimport time\n")
    text = text.replace('    print("killed"', '    Kill.when_s = time.monotonic()\n        print("killed"')
    text = text.replace(
        '    print("weights"',
        '    print("heard after", time.monotonic() - Kill.when_s, flush=True)\n    print("weights"',
    )
    finished = run_fdt(write(tmp_path, text), mode=mode, limit_s=LIMIT_S, cwd=tmp_path).expect(SEEN)
    caught = re.search(r"^caught (\w+) (.*)", finished.stdout, re.MULTILINE)
    assert caught and caught[1] == "WorkerError", finished.describe()
    assert re.search(r"Rank [01] of job .* has stopped answering", caught[2]), finished.describe()
    heard = re.search(r"heard after ([0-9.]+)", finished.stdout)
    assert heard and float(heard[1]) < 15.0, finished.describe()


@pytest.mark.parametrize("again", [2])
def test_pool_takes_the_next_job(tmp_path: Path, again: int) -> None:
    with serve(tmp_path, num_workers=2) as pool:
        script = write(tmp_path, KILLS, "kills.py")
        told(run_fdt(script, str(pool.process.pid), options=pool.options, limit_s=LIMIT_S, cwd=tmp_path))
        for _ in range(again):
            next_job = run_fdt(write(tmp_path, TRAINS), options=pool.options, limit_s=LIMIT_S, cwd=tmp_path)
            assert "trained" in next_job.expect(0).stdout, next_job.describe()


def test_uncaught_it_ends_the_script(tmp_path: Path) -> None:
    """As an exception that nobody catches does; the status says that we failed, not the script."""
    script = write(tmp_path, KILLS.replace("except Exception as error", "except ZeroDivisionError as error"))
    finished = run_fdt(script, limit_s=LIMIT_S, cwd=tmp_path).expect(125)
    assert "killed" in finished.stdout and "finished" not in finished.stdout, finished.describe()
    assert re.search(r"SIGKILL|signal 9", finished.stderr), finished.describe()
