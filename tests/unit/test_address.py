"""The name that a loaded library is told: tried on Python's own socket module, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from fdt.errors import WorkerError
from hfdt import address

_LIMIT_S = 60
_CODE = """
import _socket, platform, sys
from pathlib import Path
from hfdt.address import answer_gethostname
library = Path(getattr(_socket, "__file__", None) or sys.executable).resolve()
for name in ("127.0.0.7", "10.0.0.1"):
    answer_gethostname(library, name)
    print(_socket.gethostname(), _socket.getaddrinfo(_socket.gethostname(), None)[0][4][0])
import os
print(os.uname().nodename == platform.node())
"""


def test_a_library_is_told_another_name_and_nobody_else() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.stdout == "127.0.0.7 127.0.0.7\n10.0.0.1 10.0.0.1\nTrue\n", done.stderr


def test_a_library_that_does_not_ask_for_the_name() -> None:
    import _json

    with pytest.raises(ValueError, match="does not call gethostname"):
        address.answer_gethostname(Path(_json.__file__), "127.0.0.1")


def test_no_library(tmp_path: Path) -> None:
    text = tmp_path / "library.so"
    text.write_text("no library")
    with pytest.raises(ValueError, match="not loaded"):
        address.answer_gethostname(text, "127.0.0.1")


def test_where_it_cannot_be_done_the_machines_name_must_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "library.so"
    library.touch()
    monkeypatch.setattr(address.socket, "gethostname", lambda: "127.0.0.5")
    address.hold_to(library, "127.0.0.5")
    with pytest.raises(WorkerError, match="/etc/hosts") as refused:
        address.hold_to(library, "192.0.2.7")
    assert "127.0.0.5" in str(refused.value) and "192.0.2.7" in str(refused.value)
