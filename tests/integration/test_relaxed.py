"""`fdt run --relax` on real ranks, with both generations of Keras: what is exchanged, what is said, and what comes of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import processes, warm
from tests.helpers.pool import Pool
from tests.helpers.thorough import some_of

_LIMIT_S = 150.0
_SCRIPT = """\
import json, os, sys
import numpy as np
if os.environ.get("TF_USE_LEGACY_KERAS"):
    import tf_keras as keras
else:
    import keras

keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
x = random.normal(size=(320, 12, 12, 3)).astype("float32") + np.arange(320).reshape(-1, 1, 1, 1) / 160
layers = keras.layers
net = keras.Sequential([
    layers.Conv2D(8, 3, use_bias=False), layers.BatchNormalization(), layers.ReLU(),
    layers.Conv2D(8, 3, use_bias=False), layers.BatchNormalization(), layers.ReLU(),
    layers.GlobalAveragePooling2D(), layers.Dropout(0.2), layers.Dense(4),
])
net.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = net.fit(x, random.integers(0, 4, 320), batch_size=32, epochs=3, verbose=0).history
moving = [np.asarray(v).tolist() for v in (net.layers[1].moving_mean, net.layers[1].moving_variance)]
json.dump({"loss": history["loss"], "moving": moving}, open(sys.argv[1], "w"))
"""


# The hook of Keras 3 is in tests/division/test_relaxation.
@pytest.mark.parametrize("keras", some_of([3, 2], [2]))
def test_workers_normalise_their_own_rows(keras: int, pool: Pool, tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out.json"
    script.write_text(_SCRIPT)
    # Which Keras it is, is settled as TensorFlow is imported.
    way, environment = (processes, {"TF_USE_LEGACY_KERAS": "1"}) if keras == 2 else (warm, {})

    def trained(*options: str) -> tuple[dict[str, Any], int, str]:
        report = tmp_path / "report.json"
        given = ["--report", report, *options, *pool.options]
        finished = way.run_fdt(script, out, limit_s=_LIMIT_S, options=given, cwd=tmp_path, **environment).expect(0)
        ((divided,),) = [rank["divided"] for rank in json.loads(report.read_text())["fits"][0]["ranks"][:1]]
        return json.loads(out.read_text()), divided["exchanges"], finished.stderr

    way.run_python(script, out, limit_s=_LIMIT_S, cwd=tmp_path, **environment).expect(0)
    plain = json.loads(out.read_text())
    exact, exchanges, _ = trained()
    relaxed, fewer, said = trained("--relax", "batch-norm,random")
    np.testing.assert_allclose(exact["loss"], plain["loss"], rtol=1e-4)
    assert relaxed["loss"] != plain["loss"]
    np.testing.assert_allclose(relaxed["loss"], plain["loss"], rtol=0.05)
    np.testing.assert_allclose(relaxed["moving"], plain["moving"], atol=0.05)
    # What is left are the gradients, the loss's sums, and the moving statistics, for which nothing waits.
    assert fewer <= exchanges
    assert "--relax batch-norm: " in said and "--relax random: " in said
