"""Workers of the real runtimes are killed while a script trains: it sees a pause and a line, and plain python's figures.

Of more kinds of faults, at more places, a toy runtime's workers die in `test_survival.py`.
"""

import re
from pathlib import Path

import pytest

from tests.helpers import reports
from tests.helpers.pool import serve
from tests.helpers.processes import PYTHON, Finished, background
from tests.helpers.scripts import write
from tests.helpers.thorough import some_of
from tests.helpers.warm import fdt, run_fdt, run_python

LIMIT_S = 240.0

# The script kills a worker process below its own embedded pool, or the pool whose process id it is given. Of the workers
# the oldest are those of the job: a warm spare is started later.
NET = """\
import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.rand(160, 4).astype("float32")
y = np.random.randint(0, 2, (160, 1)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.1), keras.layers.Dense(1)])

def harm():
    if "--undisturbed" in sys.argv:
        return
    import psutil

    root = psutil.Process(int(sys.argv[1]) if len(sys.argv) > 1 else os.getpid())
    forked = [p for p in root.children(recursive=True) if "fdt.worker.forkserver" in p.cmdline()]
    workers = [p for p in forked if p.parent() in forked]
    victim = min(workers, key=lambda process: process.create_time())
    os.kill(victim.pid, signal.SIGKILL)
    print("harmed", victim.pid, file=sys.stderr, flush=True)
"""

# At the end of an epoch, where the weights are home; and between two steps, where nothing is.
FIT = (
    NET
    + """
class Harm(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch in (1, 3):
            harm()

model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["mae"])
history = model.fit(x, y, epochs=5, batch_size=8, verbose=0, callbacks=[Harm()]).history
print("losses", *(f"{value:.6f}" for name in ("loss", "mae") for value in history[name]))
print("steps", int(model.optimizer.iterations), np.isfinite(model.get_weights()[0]).all())
"""
)
# Weights that workers hold in parts, of another number of rows each once a host of two is lost.
PARTS = FIT.replace("keras.Input((4,))", "keras.Input((4,)), keras.layers.Dense(100), keras.layers.Dense(300)").replace(
    "    import psutil",
    """
    import contextlib

    with contextlib.suppress(ProcessLookupError):
        os.kill(int(sys.argv[1]), signal.SIGKILL)
    return
    import psutil""",
)
LOOP = (
    NET
    + """
optimizer = keras.optimizers.Adam(0.01)

@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a, training=True) - b))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

for epoch in range(3):
    for number in range(20):
        loss = step(x[8 * number : 8 * number + 8], y[8 * number : 8 * number + 8])
        if (epoch, number) in ((0, 6), (2, 11)):
            print("loss", f"{float(loss):.6f}", flush=True)
            harm()
    print("loss", f"{float(loss):.6f}", flush=True)
print("steps", int(optimizer.iterations), np.isfinite(model.get_weights()[0]).all())
"""
)
STREAM = FIT.replace(
    "history = model.fit(x, y, epochs=5, batch_size=8,",
    """
def batches():
    while True:
        for begin in range(0, 160, 8):
            yield x[begin : begin + 8], y[begin : begin + 8]

history = model.fit(batches(), steps_per_epoch=20, epochs=5,""",
)
SESSION = (
    NET
    + """
v1 = tf.compat.v1
with tf.Graph().as_default(), v1.Session() as session:
    v1.set_random_seed(3)
    a, b = v1.placeholder(tf.float32, [None, 4]), v1.placeholder(tf.float32, [None, 1])
    hidden = tf.nn.relu(tf.matmul(a, v1.get_variable("w1", [4, 8])))
    loss = tf.reduce_mean(tf.square(tf.matmul(hidden, v1.get_variable("w2", [8, 1])) - b))
    count = v1.train.get_or_create_global_step()
    step = v1.train.AdamOptimizer(0.01).minimize(loss, global_step=count)
    session.run(v1.global_variables_initializer())
    for epoch in range(3):
        for number in range(20):
            rows = slice(8 * number, 8 * number + 8)
            value, _ = session.run([loss, step], {a: x[rows], b: y[rows]})
            if (epoch, number) in ((0, 6), (2, 11)):
                print("loss", f"{value:.6f}", flush=True)
                harm()
        print("loss", f"{value:.6f}", flush=True)
    print("steps", session.run(count), np.isfinite(session.run(v1.trainable_variables()[0])).all())
"""
)

# The same through other doors is for `make test-all` and `make faults`.
_SCRIPTS = {"loop": LOOP, "session": SESSION, "stream": STREAM}
_OPTIONS = some_of(["", "--update averaging", "--max-delay 1", "--ps 2"], [""])


def faults_of(report: Path) -> list[dict[str, object]]:
    return reports.read(report)["faults"]  # type: ignore[no-any-return]


def went_on(finished: Finished, report: Path, undisturbed: Finished | None) -> None:
    """Asserts that the faults fired and were survived, and what the script printed."""
    finished.expect(0)
    assert finished.stderr.count("harmed ") == 2, f"the faults did not fire\n{finished.describe()}"
    faults = faults_of(report)
    assert len(faults) == 2, finished.describe()
    for fault in faults:
        assert re.search(r"Rank [01] of job .* ended with signal 9 \(SIGKILL\)", str(fault["cause"])), faults
        assert f"Training goes on with {fault['workers']} worker(s)" in finished.stderr, finished.describe()
    assert re.search(r"^steps \d+ True$", finished.stdout, re.MULTILINE), finished.describe()
    if undisturbed is not None:
        same_figures(finished.stdout, undisturbed.expect(0).stdout)


def same_figures(found: str, expected: str) -> None:
    """Asserts that two outputs are the same but for what the order of sums does to the last digits."""
    words, others = found.split(), expected.split()
    assert len(words) == len(others), (found, expected)
    for word, other in zip(words, others, strict=True):
        assert word == other or float(word) == pytest.approx(float(other), rel=1e-5), (found, expected)


def test_a_fit_on_a_pool_prints_what_plain_python_prints(tmp_path: Path) -> None:
    script, report = write(tmp_path, FIT), tmp_path / "report.json"
    undisturbed = run_python(script, "--undisturbed", limit_s=LIMIT_S, cwd=tmp_path)
    with serve(tmp_path, num_workers=2) as pool:
        options = (*pool.options, "--report", str(report))
        run = run_fdt(script, str(pool.process.pid), options=options, limit_s=LIMIT_S, cwd=tmp_path)
        went_on(run, report, undisturbed)


def test_variables_in_parts_are_cut_anew_for_fewer_workers(tmp_path: Path) -> None:
    script, report = write(tmp_path, PARTS), tmp_path / "report.json"
    undisturbed = run_python(script, "--undisturbed", limit_s=LIMIT_S, cwd=tmp_path)
    with serve(tmp_path, num_workers=2, options=("--trusted-network", "lo")) as pool:
        join = ("--join", pool.address, "--slots", "1", "--trusted-network", "lo", "--token-file", str(pool.token_file))
        with background([PYTHON, "-m", "fdt", "serve", *join], cwd=tmp_path) as host:
            host.wait_for_line("joined", LIMIT_S)
            words = (*pool.options, "--report", str(report), "--workers", "2..3", "--variables", "parts")
            run = fdt("run", *words, script, str(host.pid), limit_s=LIMIT_S, cwd=tmp_path)
    run.expect(0)
    assert "held in parts: 3 of " in run.stderr, run.describe()
    assert {fault["workers"] for fault in faults_of(report)} >= {2}, run.describe()
    same_figures(run.stdout, undisturbed.expect(0).stdout)


@pytest.mark.thorough
@pytest.mark.parametrize("text", _SCRIPTS.values(), ids=_SCRIPTS)
def test_others_print_what_plain_python_prints(tmp_path: Path, text: str) -> None:
    script, report = write(tmp_path, text), tmp_path / "report.json"
    undisturbed = run_python(script, "--undisturbed", limit_s=LIMIT_S, cwd=tmp_path)
    run = run_fdt(script, options=("--report", str(report)), limit_s=LIMIT_S, cwd=tmp_path)
    went_on(run, report, undisturbed)


@pytest.mark.parametrize("options", _OPTIONS)
def test_asynchronous_training_counts_every_batch_once(tmp_path: Path, options: str) -> None:
    script, report = write(tmp_path, FIT), tmp_path / "report.json"
    run = run_fdt(
        script, mode="async", options=("--report", str(report), *options.split()), limit_s=LIMIT_S, cwd=tmp_path
    )
    went_on(run, report, None)
    assert "steps 100 True" in run.stdout, run.describe()
