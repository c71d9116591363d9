"""`fdt.attach` in a running interpreter: what trains there trains on workers, and afterwards all is as it was."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import processes
from tests.helpers.thorough import some_of

_LIMIT_S = 300.0
# The same training before, while and after something is attached; the state of each begins anew.
_SCRIPT = """
    import io, json, logging, sys
    import keras, numpy as np, tensorflow as tf
    import fdt
    from fdt.errors import UsageError

    x = np.random.RandomState(0).rand(32, 4).astype("float32")
    y = x.sum(1, keepdims=True)

    def build():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    def fitted(model):
        return model.fit(x, y, batch_size=8, epochs=2, verbose=0).history["loss"]

    weight = tf.Variable([[0.0]] * 4)

    @tf.function
    def step(rows, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((rows @ weight - targets) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    def looped():
        weight.assign(tf.zeros_like(weight))
        return [step(tf.constant(x[i : i + 8]), tf.constant(y[i : i + 8])) for i in range(0, 32, 8)]

    told = io.StringIO()
    logging.basicConfig(stream=told, level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
    old, found = build(), {}
    found["before"] = [fitted(old), [float(loss) for loss in looped()]]
    kind = type(old.train_function)
    with fdt.attach(mode=sys.argv[1], workers=int(sys.argv[2])) as attached:
        try:
            fdt.attach()
        except UsageError as error:
            found["twice"] = str(error)
        old.set_weights(build().get_weights())
        again, pending = fitted(build()), looped()
        found["again"] = len(fitted(old))
        found["steps"] = sum(fit["steps"] for fit in attached.report["fits"])
    found["attached"] = [again, [float(loss) for loss in pending]]
    found["all steps"] = sum(fit["steps"] for fit in attached.report["fits"])
    found["after"] = [fitted(build()), [float(loss) for loss in looped()]]
    found["old"] = len(fitted(old))
    found["as before"] = type(old.train_function) is kind
    attached.detach()
    found["told"] = told.getvalue()
    print(json.dumps(found))

    # Once more, up to the end of the process.
    fdt.attach(mode=sys.argv[1], workers=int(sys.argv[2]), report=sys.argv[3])
    fitted(build())
"""


@pytest.mark.parametrize(("mode", "workers"), some_of([("sync", 2), ("async", 1)], [("sync", 2)]))
def test_what_trains_trains_on_workers_and_then_here_again(mode: str, workers: int, tmp_path: Path) -> None:
    script, report = tmp_path / "live.py", tmp_path / "report.json"
    script.write_text(textwrap.dedent(_SCRIPT))
    finished = processes.run_python(script, mode, str(workers), report, limit_s=_LIMIT_S).expect(0)
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    for place in (0, 1):
        assert found["attached"][place] == pytest.approx(found["before"][place], rel=1e-4)
        assert found["after"][place] == pytest.approx(found["before"][place], rel=1e-6)
    # Two fits of 8 steps, and 4 of the loop, which is in the account once it is over.
    assert (found["steps"], found["all steps"]) == (16, 20)
    assert (found["again"], found["old"], found["as before"]) == (2, 2, True)
    assert "this process trains on a pool already, because of fdt.attach" in found["twice"]
    # The program logs, so what we tell is in its log.
    assert "traced before, so traced again when they are called: step (line 21)\n" in found["told"]
    assert f"fdt INFO {mode} training on" in found["told"] and "fdt WARNING" not in found["told"]
    assert "fdt:" not in finished.stderr and "warning" not in finished.stderr
    # Who ends while it is attached leaves as ever.
    assert "Traceback" not in finished.stderr
    assert [fit["steps"] for fit in json.loads(report.read_text())["fits"]] == [8]
