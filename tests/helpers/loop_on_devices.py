"""Loops of workers on devices of their own, as GPUs are, beside the same ones on the servers' device.

python -m tests.helpers.loop_on_devices  # prints what differs, a line each
"""

import numpy as np
import tensorflow as tf

from nfdt.feed import Arrays
from nfdt.loop import Loop
from nfdt.rules import make_rule
from nfdt.servers import ParameterServers
from tests.helpers.programs import traced
from tests.helpers.table_models import two_lookups
from tests.servers.test_cut import OPTIMIZERS, WORDS, X, Y, dense_model, embedding_model

_CPU = "/CPU:0"
_ROWS = [np.roll(np.arange(len(Y)), number)[:3] for number in range(7)]


def main() -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    models = (dense_model, X, "momentum"), (embedding_model, WORDS, "adam"), (two_lookups, WORDS, "adam")
    for build, x, optimizer in models:
        step = traced(build(OPTIMIZERS[optimizer]()), (x, Y), mode="async")
        arrays = Arrays([tf.constant(x), tf.constant(Y)])
        found = []
        for devices in ([_CPU] * 2, ["/CPU:1", "/CPU:2"]):
            kept = ParameterServers(step.program, make_rule("ddc-asgd"), [_CPU], devices)
            kept.assign(step.values())
            for worker in (0, 1, 0):
                kept.steps(worker, arrays, _ROWS)
            if not isinstance(kept._step((devices[0], _CPU)), Loop):
                print(f"no loop on {devices}")
            found.append(kept.read(range(len(step.variables))))
        for i, value in found[0].items():
            if not np.array_equal(value, found[1][i]):
                print(f"{optimizer}: {step.program.variables[i].tensor.name}")


if __name__ == "__main__":
    main()
