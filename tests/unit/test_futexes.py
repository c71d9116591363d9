"""A process of thousands of threads asks the kernel for slots to find them by."""

import subprocess
import sys

# In a process of its own: slots stay.
ASKED = """
import threading
from fdt.worker import futexes
threading.Thread(target=lambda: None).start()
before = futexes.num_slots()
print(before, futexes.make_room(3000), futexes.num_slots(), futexes.make_room(5), futexes.num_slots())
"""


def test_there_is_a_slot_for_each_thread() -> None:
    said = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True).stdout.split()
    before, is_given, slots, still, kept = said
    if is_given == "False":
        # Linux before 6.16, which has one table for all processes.
        assert int(before) <= 0 and int(slots) <= 0
        return
    assert int(before) < int(slots) == 4096
    assert still == "True" and int(kept) == 4096
