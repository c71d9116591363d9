"""Admitted operations with hostile shapes, values and attributes: none touches memory that is not its tensors'."""

import json
import os
import signal
import subprocess
import sys

# Of how long calls are made; `make fuzz` has 5,000 examples.
LIMIT_S = int(os.environ.get("FDT_FUZZ_EXAMPLES", "0")) / 8 or 8.0
# Importing TensorFlow, and the last call.
MORE_S = 200.0
# A null pointer (its fault is at 0x60) where there is no memory for the array's size: nothing else is touched.
NULL_WITHOUT_MEMORY = "TensorArrayV3"


def called(order: int, limit_s: float, *names: str) -> dict:
    """Makes calls in processes of their own; see `tests.helpers.hostile_inputs`."""
    command = [sys.executable, "-m", "tests.helpers.hostile_inputs", str(order), str(limit_s), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s + MORE_S, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def of_memory(ended: dict) -> list[str]:
    """Returns the calls that ended otherwise than by a check of TensorFlow's own, by an allocation, or by our limit of time.

    A check that fails ends the process before anything is touched: a program can do that to its own worker, and to no other.
    """
    own = [call for call, (number, said) in ended.items() if number == signal.SIGABRT and said]
    slow = [call for call, (number, _) in ended.items() if number == signal.SIGKILL]
    null = [call for call in ended if call.partition("/")[0] == NULL_WITHOUT_MEMORY]
    return sorted(set(ended) - {*own, *slow, *null})


def test_what_ends_a_process_is_seen() -> None:
    """Or a round in which nothing was found would show nothing: this call asks for more memory than there is."""
    found = called(1, LIMIT_S, "TensorArrayV3/5000375")
    assert list(found["ended"]) == ["TensorArrayV3/5000375"] and found["num_calls"] == 1


def test_no_admitted_operation_touches_other_memory() -> None:
    found = called(1, LIMIT_S)
    assert found["num_calls"] > 20, "the machine made few calls"
    # All refused before they did anything would show nothing.
    assert found["num_done"] > found["num_calls"] / 20
    assert of_memory(found["ended"]) == []
