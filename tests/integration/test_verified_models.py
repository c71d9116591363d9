"""`fdt verify` on the models that people train: the steps of two ranks are those of this machine."""

from pathlib import Path

import pytest

from tests.helpers.pool import Pool
from tests.helpers.warm import fdt

LIMIT_S = 200.0
ROOT = Path(__file__).parents[2]

MODEL = f"""\
import sys

sys.path.insert(0, {str(ROOT)!r})
import keras
import tensorflow as tf
from tests.helpers.divided_models import MODELS, batches, build_for

keras.utils.set_random_seed(1)
shape, build = MODELS[NAME]
net, (x, y) = build(), batches(shape, 96, 1)[0]
"""
FIT = """
if not net.compiled:
    net.compile()
net.fit(x, y, batch_size=16, verbose=0)
"""
LOOP = """
build_for(net, (x[:16], y[:16]))

@tf.function
def step(a, b):
    return net.train_step((a, b))

for start in range(0, 96, 16):
    step(x[start : start + 16], y[start : start + 16])
"""


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("variational_autoencoder", FIT),
        *(
            pytest.param(*which, marks=pytest.mark.thorough)
            for which in (
                ("resnet_34", FIT),
                ("text", FIT),
                ("vision_transformer", FIT),
                ("adversarial", FIT),
                ("adversarial", LOOP),
                ("text", LOOP),
            )
        ),
    ],
    ids=lambda value: {FIT: "fit", LOOP: "loop"}.get(value, value),
)
def test_two_ranks_make_the_same_steps(name: str, form: str, pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MODEL.replace("NAME", repr(name)) + form)
    options = ("--workers", "2", "--steps", "4", *pool.options)
    finished = fdt("verify", *options, "train.py", limit_s=LIMIT_S, cwd=tmp_path).expect(0)
    assert "4 steps compared" in finished.stderr, finished.describe()
