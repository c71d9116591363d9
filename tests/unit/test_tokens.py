"""Where a pool leaves its token, and who finds it."""

import os
from pathlib import Path

import pytest

from fdt.errors import UsageError
from fdt.transport import tokens


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's runtime folder and home."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return runtime


def test_a_token_is_there_for_its_user_alone_and_goes_with_the_pool(runtime: Path) -> None:
    old = os.umask(0)
    try:
        with tokens.published("127.0.0.1:7077", "secret") as path:
            assert path == runtime / "fdt/127.0.0.1-7077.token"
            assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
            assert tokens.find("127.0.0.1:7077") == "secret"
            assert tokens.find("127.0.0.1:7078") is None
    finally:
        os.umask(old)
    assert list(path.parent.iterdir()) == [] and tokens.find("127.0.0.1:7077") is None


@pytest.mark.parametrize(
    ("listen", "named", "found"),
    [
        ("127.0.0.1:1", "localhost:1", True),
        ("[::1]:1", "localhost:1", True),
        ("localhost:1", "127.0.0.1:1", True),
        ("localhost:1", "[::1]:1", True),
        ("127.0.0.1:1", "[::1]:1", False),
        ("127.0.0.2:1", "127.0.0.1:1", False),
        ("127.0.0.1:1", "10.0.0.1:1", False),
        ("unix:/tmp/a", "unix:/tmp/a", True),
        ("unix:/tmp/a", "unix:/tmp/b", False),
    ],
)
def test_spellings_of_loopback(listen: str, named: str, found: bool) -> None:
    with tokens.published(listen, "secret"):
        assert tokens.find(named) == ("secret" if found else None)


def test_a_name_from_elsewhere_is_no_path(runtime: Path) -> None:
    (runtime / "token").write_text("outside")
    with tokens.published("127.0.0.1:1", "secret"):
        for address in ("../../token:1", "localhost:../../token", "localhost/../..:1", "127.0.0.1", ""):
            assert tokens.find(address) is None


def test_a_stale_token_is_overwritten_and_a_newer_one_stays() -> None:
    with tokens.published("127.0.0.1:1", "of the first"):
        with tokens.published("127.0.0.1:1", "of the second"):
            assert tokens.find("127.0.0.1:1") == "of the second"
        assert tokens.find("127.0.0.1:1") is None
    with tokens.published("127.0.0.1:1", "of the first"):
        os.replace(_write(tokens._writable() / "new", "of another"), tokens._writable() / "127.0.0.1-1.token")
    assert tokens.find("127.0.0.1:1") == "of another"


def test_without_a_session_it_is_in_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    with tokens.published("127.0.0.1:1", "secret") as path:
        assert path.is_relative_to(tmp_path / "home/.local/state/fdt")
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
        assert tokens.find("127.0.0.1:1") == "secret", "a client in a session finds what a service has left"


def test_folders_that_others_could_read_or_have_made(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "nowhere")
    folder = runtime / "fdt"
    folder.mkdir(mode=0o755)
    _write(folder / "127.0.0.1-1.token", "planted")
    with (
        pytest.raises(UsageError, match=r"chmod 700.*Received|Received.*chmod 700"),
        tokens.published("127.0.0.1:1", "secret"),
    ):
        pass
    assert tokens.find("127.0.0.1:1") is None
    folder.chmod(0o700)
    assert tokens.find("127.0.0.1:1") == "planted"
    monkeypatch.setattr(tokens.os, "geteuid", lambda: os.getuid() + 1)
    assert tokens.find("127.0.0.1:1") is None
    with pytest.raises(UsageError, match="another user"), tokens.published("127.0.0.1:1", "secret"):
        pass
    monkeypatch.undo()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("HOME", "nowhere")
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert tokens.find("127.0.0.1:1") is None
    with pytest.raises(UsageError, match="not a folder"), tokens.published("127.0.0.1:1", "secret"):
        pass


def test_a_link_in_the_place_of_a_token_is_not_followed(runtime: Path, tmp_path: Path) -> None:
    target = _write(tmp_path / "target", "another secret")
    (runtime / "fdt").mkdir(mode=0o700)
    (runtime / "fdt/127.0.0.1-1.token").symlink_to(target)
    assert tokens.find("127.0.0.1:1") is None
    with tokens.published("127.0.0.1:1", "secret"):
        assert tokens.find("127.0.0.1:1") == "secret"
    assert target.read_text() == "another secret"


def test_nowhere_to_write(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(UsageError, match="--no-token"), tokens.published("127.0.0.1:1", "secret"):
        pass


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
