"""An asynchronous job on a host that joined: workers and servers are one process, so they are all on one host."""

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


def test_the_job_is_where_there_is_room(tmp_path: Path) -> None:
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
            finished = run_fdt(script, mode="async", workers=2, options=server, limit_s=LIMIT_S, cwd=tmp_path).expect(0)
            assert "iterations 48" in finished.stdout, finished.describe()
            # Three workers there are, but not on one host.
            refused = run_fdt(script, mode="async", workers=3, options=server, limit_s=LIMIT_S, cwd=tmp_path).expect(
                125
            )
            assert "all on one host" in refused.stderr, refused.describe()
