"""`fdt run --mode async` as a whole: every batch once, every update counted, reports, rules, bad input, ports."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import processes
from tests.helpers.pool import Pool
from tests.helpers.processes import Finished
from tests.helpers.seen import SEEN
from tests.helpers.thorough import some_of
from tests.helpers.warm import run_fdt, run_python

_LIMIT_S = 240.0
_EXAMPLES = Path(__file__).parents[2] / "client_examples"


def _script(directory: Path, text: str) -> Path:
    path = directory / "train.py"
    path.write_text(textwrap.dedent(text))
    return path


def _run(pool: Pool, directory: Path, text: str, *options: str, workers: int) -> tuple[Finished, dict[str, Any]]:
    report = directory / "report.json"
    arguments = ("--report", str(report), *options, *pool.options)
    finished = run_fdt(_script(directory, text), mode="async", workers=workers, options=arguments, limit_s=_LIMIT_S)
    return finished, json.loads(report.read_text()) if report.exists() else {}


@pytest.mark.parametrize(
    "options",
    some_of(["", "--ps 3", "--max-delay 0", "--update averaging --average-every 7"], ["--ps 3", "--max-delay 0"]),
)
def test_a_thousand_updates_from_four_workers(pool: Pool, tmp_path: Path, options: str) -> None:
    finished, report = _run(pool, tmp_path, SEEN, *options.split(), workers=4)
    finished.expect(0)
    expected = [f"epoch {epoch} seen 1 1 iterations {100 * (epoch + 1)}" for epoch in range(10)]
    assert finished.stdout.splitlines() == expected
    (fit,) = report["fits"]
    assert fit["steps"] == 1000
    assert sum(rank["steps"] for rank in fit["ranks"]) == 1000
    assert sum(rank["samples"] for rank in fit["ranks"]) == 10_000
    assert len(fit["ranks"]) == 4
    if "averaging" not in options:
        assert sum(n for rank in fit["ranks"] for n in rank["delays"].values()) == 1000
        assert 0 <= fit["delay"]["mean"] <= fit["delay"]["p95"] <= fit["delay"]["max"]
    if "--max-delay" in options:
        # In a round of 4 nobody is more than one step ahead.
        assert fit["delay"]["max"] <= 2 * 3


# The others differ in arithmetic only, which tests/servers look at.
@pytest.mark.parametrize("update", some_of(["asgd", "dc-asgdk", "averaging"], "asgd averaging"))
def test_a_rule_trains(pool: Pool, tmp_path: Path, update: str) -> None:
    script = """
        import keras
        import numpy as np

        keras.utils.set_random_seed(1)
        x = np.random.default_rng(0).normal(size=(640, 8)).astype("float32")
        y = x @ np.arange(8, dtype="float32")[:, None]
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.02, momentum=0.5), "mse")
        losses = model.fit(x, y, batch_size=16, epochs=8, verbose=0).history["loss"]
        print(losses[0] > 100 * losses[-1], model.optimizer.iterations.numpy())
    """
    finished, report = _run(pool, tmp_path, script, "--update", update, workers=2)
    assert finished.expect(0).stdout.split() == ["True", "320"], finished.describe()
    assert report["options"] == {"update": update}
    assert {"averaging": "weights averaged"}.get(update, f"update rule {update}") in finished.stderr


SEVERAL_UPDATES = """
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    y = x @ np.arange(8, dtype="float32")[:, None]

    class Several(keras.Model):
        def train_step(self, data):
            x, y = data
            for _ in range(3):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
                self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    inputs = keras.Input((8,))
    model = Several(inputs, keras.layers.Dense(1)(keras.layers.Dense(4, activation="tanh")(inputs)))
    model.compile(keras.optimizers.Adam(0.02))
    print(model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"])
    print([float(np.sum(weight)) for weight in model.get_weights()], model.optimizer.iterations.numpy())
"""


def test_a_worker_with_weights_of_its_own_makes_several_updates_in_a_step(pool: Pool, tmp_path: Path) -> None:
    plain = run_python(_script(tmp_path, SEVERAL_UPDATES), limit_s=_LIMIT_S).expect(0)
    finished, _ = _run(pool, tmp_path, SEVERAL_UPDATES, "--update", "averaging", workers=1)
    assert finished.expect(0).stdout == plain.stdout
    finished, _ = _run(pool, tmp_path, SEVERAL_UPDATES, "--update", "asgd", workers=1)
    assert "with --update averaging" in finished.expect(125).stderr


# A search along a line: it sets the weights, of a model that its first step builds, and looks at the gradient there.
SETS_THE_WEIGHTS = """
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    model, optimizer = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
    x, y = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)

    def loss_and_gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        return loss, tape.gradient(loss, model.trainable_variables)

    @tf.function
    def step():
        loss, gradients = loss_and_gradients()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def search(weights):
        model.trainable_variables[0].assign(weights)
        return loss_and_gradients()

    step()
    print(*(f"{float(search(tf.fill([4, 1], value))[0]):.4f}" for value in (0.0, 0.5)))
"""


def test_a_step_that_sets_the_weights_that_it_differentiates_by_is_refused(pool: Pool, tmp_path: Path) -> None:
    plain = run_python(_script(tmp_path, SETS_THE_WEIGHTS), limit_s=_LIMIT_S).expect(0)
    finished, _ = _run(pool, tmp_path, SETS_THE_WEIGHTS, workers=1)
    assert "and then computes a gradient with the new value" in finished.expect(125).stderr
    finished, _ = _run(pool, tmp_path, SETS_THE_WEIGHTS, "--update", "averaging", workers=1)
    assert finished.expect(0).stdout == plain.stdout


def test_a_deterministic_script_trains(pool: Pool, tmp_path: Path) -> None:
    """TensorFlow then refuses operations whose results differ from run to run, a clock's among them."""
    script = SEVERAL_UPDATES.replace("range(3)", "range(1)").replace(
        "keras.utils.set_random_seed(1)",
        "keras.utils.set_random_seed(1); tf.config.experimental.enable_op_determinism()",
    )
    plain = run_python(_script(tmp_path, script), limit_s=_LIMIT_S).expect(0)
    finished, report = _run(pool, tmp_path, script, workers=1)
    assert finished.expect(0).stdout == plain.stdout
    assert report["fits"][0]["ranks"][0]["compute_s"] > 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--max-delay", "-1"), "--max-delay must be a whole number, 0 or more. Received: --max-delay -1"),
        (("--ps", "9"), "A model with 4 tensors that train cannot be spread over 9 parameter servers"),
        (("--batch", "per-worker"), "there is nothing to scale"),
    ],
)
def test_bad_options_end_the_run_with_a_clear_line(
    pool: Pool, tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    finished, _ = _run(pool, tmp_path, SEEN, *options, workers=2)
    assert finished.status not in (0, None)
    assert expected in finished.stderr, finished.describe()
    assert finished.stderr.count(expected) == 1, "the error is said once"
    assert finished.stderr.rstrip().splitlines()[-1].startswith("fdt: "), finished.describe()


def test_an_update_rule_with_a_synchronous_run_is_refused(tmp_path: Path) -> None:
    finished = run_fdt(_script(tmp_path, SEEN), options=("--update", "asgd"), limit_s=_LIMIT_S)
    assert finished.status not in (0, None)
    assert "--update goes with --mode async" in finished.stderr


def test_no_port_is_opened(tmp_path: Path) -> None:
    script = """
        import keras
        import numpy as np
        import psutil

        class Look(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                me = psutil.Process()
                processes = [me, *me.children(recursive=True)]
                listening = [c.laddr for p in processes for c in p.net_connections("tcp") if c.status == "LISTEN"]
                print(len(processes), "processes listen on", listening, flush=True)

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.zeros((64, 4)), np.zeros((64, 1)), epochs=1, verbose=0, callbacks=[Look()])
    """
    path = _script(tmp_path, script)
    finished = processes.run_fdt(path, mode="async", workers=2, limit_s=_LIMIT_S)
    # The script, the pool, the process that looks at programs, the one that workers are forked from, and the job's.
    assert finished.expect(0).stdout == "5 processes listen on []\n"


def _accuracy(output: str) -> float:
    return float(output.split("test accuracy")[1].split()[0])


@pytest.mark.thorough
def test_digits_reach_the_accuracy_of_plain_python(pool: Pool) -> None:
    """The example as it is, three seeds: the mean within one per cent."""
    plain, distributed = [], []
    for seed in (1, 2, 3):
        arguments = ("--epochs", "15", "--seed", str(seed))
        plain.append(_accuracy(run_python(_EXAMPLES / "digits.py", *arguments, limit_s=_LIMIT_S).expect(0).stdout))
        finished = run_fdt(_EXAMPLES / "digits.py", *arguments, mode="async", options=pool.options, limit_s=_LIMIT_S)
        distributed.append(_accuracy(finished.expect(0).stdout))
    assert sum(distributed) / 3 == pytest.approx(sum(plain) / 3, abs=0.01), (plain, distributed)
