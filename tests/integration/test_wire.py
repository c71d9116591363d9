"""What workers exchange, rounded to half its bytes."""

import json
from pathlib import Path

import pytest

from tests.helpers.pool import Pool
from tests.helpers.warm import run_fdt

LIMIT_S = 120.0
SCRIPT = """
import keras
import numpy as np

keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
words = random.integers(0, 50, (96, 6)).astype("int32")
layers = [keras.layers.Embedding(50, 64), keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((6,), dtype="int32"), *layers])
model.compile(keras.optimizers.Adam(0.01), "mse")
print(*model.fit(words, words.mean(axis=1) / 50, batch_size=24, epochs=4, verbose=0).history["loss"])
"""


def test_ranks_exchange_half_the_bytes(pool: Pool, tmp_path: Path) -> None:
    script, losses, num_bytes = tmp_path / "script.py", {}, {}
    script.write_text(SCRIPT)
    for wire in ("exact", "fp16"):
        report = tmp_path / f"{wire}.json"
        options = ("--report", str(report), "--wire", wire, *pool.options)
        finished = run_fdt(script, limit_s=LIMIT_S, options=options).expect(0)
        losses[wire] = [float(loss) for loss in finished.stdout.split()]
        (fit,) = json.loads(report.read_text())["fits"]
        num_bytes[wire] = fit["bytes_exchanged"]
        assert ("--wire fp16" in finished.stderr) == (wire == "fp16"), finished.describe()
    assert losses["fp16"] != losses["exact"]
    assert losses["fp16"] == pytest.approx(losses["exact"], rel=0.05)
    # Which rows of the table are meant is said in whole numbers of 64 bits.
    assert 0.5 < num_bytes["fp16"] / num_bytes["exact"] < 0.55
