"""Asynchronous jobs of a pool with a host that joined: on that host alone where it has room, else on both."""

import re
from pathlib import Path

from tests.helpers.pool import write_token
from tests.helpers.processes import PYTHON, background, run_fdt

LIMIT_S = 240.0
TRAIN = """
import keras
import numpy as np

x = np.random.default_rng(0).random((96, 8), np.float32)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(20_000), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e-5), "mse")
for _ in range(2):
    model.fit(x, x.sum(axis=1, keepdims=True), batch_size=8, epochs=2, verbose=0)
    model.set_weights([w / 2 for w in model.get_weights()])
print("iterations", int(model.optimizer.iterations))
"""


def test_on_the_host_and_on_both(tmp_path: Path) -> None:
    token = write_token(tmp_path / "token", "a-token-for-this-test-only")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    options = ["--trusted-network", "lo", "--token-file", str(token)]
    own = ["--mode", "async", "--listen", "127.0.0.1:0", "--workers", "1"]
    with background([PYTHON, "-m", "fdt", "serve", *own, *options], cwd=tmp_path) as pool:
        match = re.search(r"127\.0\.0\.1:\d+", pool.wait_for_line("pool at", LIMIT_S))
        assert match
        there = ["--join", match[0], "--slots", "2", *options]
        with background([PYTHON, "-m", "fdt", "serve", *there], cwd=tmp_path) as host:
            host.wait_for_line("joined the pool", LIMIT_S)
            server = ["--server", match[0], "--token-file", str(token)]
            for workers in (2, 3):
                done = run_fdt(script, mode="async", workers=workers, options=server, limit_s=LIMIT_S, cwd=tmp_path)
                assert "iterations 48" in done.expect(0).stdout, done.describe()
                assert f"async training on {workers} workers" in done.stderr
