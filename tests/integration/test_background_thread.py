"""Horovod's thread, which looks for work every millisecond, rests while its rank has none: tried on a rank that is alone."""

import _json
import subprocess
import sys
from pathlib import Path

from hfdt import background_thread

_LIMIT_S = 120
_CODE = """
from pathlib import Path
import tensorflow as tf
from hfdt import background_thread
from hfdt.horovod import hvd

hvd.init()
(library,) = Path(str(hvd.__file__)).parent.glob("mpi_lib*.so")
print(background_thread.install(library))
print(background_thread.rested(3, 30))
before = background_thread.naps()
print(background_thread.rested(3, 30), background_thread.naps() == before)
with background_thread.at_work():
    for i in range(10000):
        total = hvd._allreduce(tf.constant([1.0, 2.0]), name=f"sum{i}", op=hvd.Sum)
        if background_thread.naps() > before:
            break
print(total.numpy().tolist(), background_thread.naps() > before)
print(background_thread.rested(3, 30))
"""


def test_the_thread_rests_without_work_and_looks_for_it_with_work() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.stdout == "None\nTrue\nTrue True\n[1.0, 2.0] True\nTrue\n", done.stderr[-3000:]


def test_a_library_that_never_sleeps_is_left_as_it_is() -> None:
    assert background_thread.install(Path(_json.__file__)) == "it does not call nanosleep"
