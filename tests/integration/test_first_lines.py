"""Settings that TensorFlow takes only before it is initialised: a script finds it as `python` leaves it, in every command."""

from pathlib import Path

import pytest

from tests.helpers import warm
from tests.helpers.pool import Pool

_LIMIT_S = 120.0
_SCRIPT = """
import sys
import tensorflow as tf
import {keras}
{attach}
from tensorflow.python.eager import context
made = context.context_safe()
print("initialised:", made is not None and made._initialized, file=sys.stderr)
tf.config.threading.set_inter_op_parallelism_threads(2)
processor = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
print("devices:", len(tf.config.list_logical_devices("CPU")), file=sys.stderr)
"""
_IN_PLACE = ("-m", "fdt.cli.timed_run", "result.json", "1", "1", "0")


# These begin as those before them do.
THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    ("command", "attach", "keras"),
    [
        pytest.param(("-m", "fdt", "run", "--workers", "1"), "", "keras", id="run"),
        pytest.param(("-m", "fdt", "run", "--workers", "1"), "", "tf_keras", id="run_keras_2", marks=THOROUGH),
        pytest.param(("-m", "fdt", "check"), "", "keras", id="check"),
        pytest.param(("-m", "fdt", "verify"), "", "keras", id="verify"),
        pytest.param(("-m", "fdt", "predict"), "", "keras", id="predict", marks=THOROUGH),
        pytest.param(_IN_PLACE, "", "keras", id="compare", marks=THOROUGH),
        pytest.param((), "import fdt; fdt.attach(workers=1)", "keras", id="attach"),
        pytest.param(
            (), "from fdt.cli.notebook import fdt; fdt('attach --workers 1')", "keras", id="notebook", marks=THOROUGH
        ),
    ],
)
def test_tensorflow_is_not_initialised_before_the_script_begins(
    command: tuple[str, ...], attach: str, keras: str, pool: Pool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT.format(attach=attach, keras=keras))
    where = {"FDT_SERVER": pool.address, "FDT_TOKEN_FILE": str(pool.token_file)}
    if command:
        finished = warm.run_module(*command[1:], script, limit_s=_LIMIT_S, cwd=tmp_path, **where)
    else:
        finished = warm.run_python(script, limit_s=_LIMIT_S, cwd=tmp_path, **where)
    assert "initialised: False\n" in finished.stderr and "devices: 2\n" in finished.stderr, finished.describe()
