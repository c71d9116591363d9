"""Synchronous workers that hold variables in parts: a script sees plain python's weights, moments and figures."""

import json
import textwrap
from pathlib import Path

import pytest

from tests.helpers.pool import Pool
from tests.helpers.processes import run_python
from tests.helpers.thorough import some_of
from tests.helpers.warm import fdt, run_fdt

_LIMIT_S = 240.0

_SCRIPT = """
import keras
import numpy as np

keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
ids = random.integers(0, 66_000, (192, 6)).astype("int32")
x = random.random((192, 8), np.float32)
y = random.random((192, 1), np.float32)

given = keras.Input((6,), dtype="int32"), keras.Input((8,))
rows = keras.layers.Embedding(66_000, 32)(given[0])
both = keras.layers.Concatenate()([keras.layers.Flatten()(rows), keras.layers.Dense(512, "relu")(given[1])])
hidden = keras.layers.Dense(64, "relu")(both)
model = keras.Model(given, keras.layers.Dense(1)(hidden))


def show(*values):
    for variable in [*model.weights, *model.optimizer.variables]:
        value = np.asarray(variable, "float64")
        print(variable.path, f"{np.abs(value).sum():.4g}")
    print(*(f"{float(np.asarray(value)):.4f}" for value in values))


model.compile("adam", "mse", metrics=["mae"])
fitted = model.fit([ids, x], y, batch_size=28, epochs=2, verbose=0, validation_data=([ids[:50], x[:50]], y[:50]))
show(*(value for name in sorted(fitted.history) for value in fitted.history[name]))
losses = [model.train_on_batch([ids[i : i + 32], x[i : i + 32]], y[i : i + 32])[0] for i in (0, 32, 64)]
model.layers[-1].bias.assign([0.5])
show(*losses, model.predict([ids, x], verbose=0).sum())
model.compile(keras.optimizers.Adagrad(0.01, clipnorm=0.5), "mae")
show(*model.fit([ids, x], y, batch_size=32, epochs=1, verbose=0).history["loss"])
"""


@pytest.mark.parametrize(
    ("workers", "held", "count"), some_of([(2, "auto", 3), (3, "parts", 6), (2, "whole", 0)], [(3, "parts", 6)])
)
def test_a_script_sees_plain_pythons_state(pool: Pool, tmp_path: Path, workers: int, held: str, count: int) -> None:
    script, report = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(textwrap.dedent(_SCRIPT))
    plain = run_python(script, limit_s=_LIMIT_S).expect(0)
    options = ("--variables", held, "--report", str(report), *pool.options)
    trained = run_fdt(script, workers=workers, options=options, limit_s=_LIMIT_S).expect(0)
    assert trained.stdout == plain.stdout
    assert (f"held in parts: {count} of " in trained.stderr) == (count > 0)
    first = json.loads(report.read_text())["fits"][0]
    # The others are of the last, smaller batch, and of the validation.
    variables = first["ranks"][0]["divided"][0]["variables"]
    assert variables["in_parts"] == count
    assert "validation runs on the workers" in trained.stderr
    assert (
        variables["worker_bytes"] <= variables["all_bytes"] - variables["part_bytes"] * (workers - 1) // workers + 9e3
    )


_LARGE = """
import keras
import numpy as np

keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
x, y = random.normal(size=(48, 2000)).astype("float32"), random.normal(size=(48, 1)).astype("float32")
layers = [keras.layers.Dense(2000, "tanh") for _ in range(6)]
model = keras.Sequential([keras.Input((2000,)), *layers, keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(1e-4), "mse")
print(*(f"{loss:.4f}" for loss in model.fit(x, y, batch_size=24, epochs=2, verbose=0, shuffle=False).history["loss"]))
print(*(f"{np.abs(np.asarray(v, 'float64')).sum():.4g}" for v in [*model.weights, *model.optimizer.variables]))
"""
# Six weights of 16 MB with two moments each. Whole they need 480 MB beside the process, in halves 290 MB.
_BOUND = "640MB"


def test_what_does_not_fit_whole_trains_in_parts_or_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(_LARGE))
    plain = run_python(script, limit_s=_LIMIT_S).expect(0)
    bound = ("--memory", _BOUND)
    trained = run_fdt(script, workers=2, options=bound, limit_s=_LIMIT_S).expect(0)
    assert trained.stdout == plain.stdout
    assert "held in parts: 18 of " in trained.stderr and "do not fit" in trained.stderr
    for workers, options in ((1, bound), (2, (*bound, "--variables", "whole"))):
        refused = run_fdt(script, workers=workers, options=options, limit_s=_LIMIT_S).expect(125)
        assert "does not fit into memory" in refused.stderr and not refused.stdout
        assert ("With --workers 2 it fits" if workers == 1 else "leave --variables whole") in refused.stderr
    looked = fdt("check", "--workers", "1", *bound, script, limit_s=_LIMIT_S).expect(1)
    assert "With --workers 2 it fits" in looked.stdout + looked.stderr
