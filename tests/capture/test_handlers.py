"""Whether a script handles each step's errors by itself is read from its source, around the call."""

import textwrap
from pathlib import Path

import pytest

from fdt.capture.loop.handlers import handles_each_step

EACH = {
    "a handler in the loop": "for _ in range(1):\n  try: step()\n  except tf.errors.InvalidArgumentError: pass",
    "any error": "while True:\n  try:\n    step(); break\n  except Exception: pass",
    "a function that a handler in the loop is around": "for _ in range(1):\n  try: called()\n  except: pass",
    "suppressed": "for _ in range(1):\n  with contextlib.suppress(tf.errors.OpError): step()",
    "without a loop": "try: step()\nexcept tf.errors.ResourceExhaustedError: pass",
}
NOT_EACH = {
    "no handler": "for _ in range(1): step()",
    "a handler around the loop": "try:\n  for _ in range(1): step()\nexcept Exception: pass",
    "a loop in a function": "def train():\n  for _ in range(1): step()\ntry: train()\nexcept Exception: pass",
    "other errors": "for _ in range(1):\n  try: step()\n  except (KeyboardInterrupt, tf.errors.OutOfRangeError): pass",
    "in the handler": "for _ in range(1):\n  try: raise ValueError\n  except ValueError: step()",
    "behind": "for _ in range(1):\n  try: pass\n  except Exception: pass\n  step()",
}


@pytest.mark.parametrize(
    ("code", "expected"), [*((c, True) for c in EACH.values()), *((c, False) for c in NOT_EACH.values())]
)
def test_a_handler_that_is_nearer_than_any_loop(tmp_path: Path, code: str, expected: bool) -> None:
    script, found = tmp_path / "script.py", []
    script.write_text("def called():\n  step()\n" + textwrap.dedent(code))
    names = {
        "step": lambda: found.append(handles_each_step()),
        "tf": __import__("tensorflow"),
        "contextlib": __import__("contextlib"),
    }
    exec(compile(script.read_text(), str(script), "exec"), names)
    assert found == [expected]
