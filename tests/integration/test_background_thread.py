"""Horovod's thread, which looks for work every millisecond, rests while its rank has none: tried on a rank that is alone."""

import subprocess
import sys

_LIMIT_S = 120
_CODE = """
import tensorflow as tf
from hfdt import background_thread
from hfdt.horovod import hvd

hvd.init()
print(background_thread.slept_idle(1, 0.5))
background_thread.sleep_when_idle()
print(background_thread.slept_idle(3, 30))
before = background_thread.cycle_sleeps()
print(background_thread.slept_idle(3, 30), background_thread.cycle_sleeps() == before)
with background_thread.at_work():
    for i in range(10000):
        total = hvd._allreduce(tf.constant([1.0, 2.0]), name=f"sum{i}", op=hvd.Sum)
        if background_thread.cycle_sleeps() > before:
            break
print(total.numpy().tolist(), background_thread.cycle_sleeps() > before)
print(background_thread.slept_idle(3, 30))
"""


def test_the_thread_rests_without_work_and_looks_for_it_with_work() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.stdout == "False\nTrue\nTrue True\n[1.0, 2.0] True\nTrue\n", done.stderr[-3000:]
