"""A pool on loopback lets its own user in without an option, and nobody else."""

import re
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.helpers.processes import PYTHON, Background, Finished, background, run

LIMIT_S = 120.0


class User:
    """A user of this machine, as far as tokens go: a runtime folder and a home of its own."""

    def __init__(self, directory: Path) -> None:
        self.runtime = directory / "run"
        self.runtime.mkdir(parents=True, mode=0o700)
        self._environment = {"XDG_RUNTIME_DIR": str(self.runtime), "HOME": str(directory), "TMPDIR": str(directory)}

    def fdt(self, *arguments: str) -> Finished:
        return run([PYTHON, "-m", "fdt", *arguments], limit_s=LIMIT_S, **self._environment)

    def serve(self, *options: str) -> AbstractContextManager[Background]:
        command = [PYTHON, "-m", "fdt", "serve", "--listen", "127.0.0.1:0", "--workers", "1", *options]
        return background(command, **self._environment)


# Names as short as can be: a pool makes its folder elsewhere than asked where its socket's path would be too long.
@pytest.fixture
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    return User(tmp_path_factory.mktemp("u"))


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> User:
    return User(tmp_path_factory.mktemp("o"))


def port_of(process: Background) -> str:
    match = re.search(r"127\.0\.0\.1:(\d+)", process.wait_for_line("127.0.0.1:", limit_s=LIMIT_S))
    assert match
    return match[1]


def test_a_pool_makes_its_token(user: User, other: User, tmp_path: Path) -> None:
    with user.serve() as pool:
        port = port_of(pool)
        (token,) = (user.runtime / "fdt").iterdir()
        assert token.name == f"127.0.0.1-{port}.token" and token.stat().st_mode & 0o777 == 0o600
        for host in ("127.0.0.1", "localhost"):
            assert "no jobs" in user.fdt("jobs", "--server", f"{host}:{port}").expect(0).stdout
        secret = token.read_text().strip()
        for command in (["jobs"], ["logs", "job-1"], ["cancel", "job-1"]):
            refused = other.fdt(command[0], "--server", f"127.0.0.1:{port}", *command[1:]).expect(125)
            assert "another user's" in refused.stderr and "--token-file" in refused.stderr
        given = tmp_path / "given"
        given.touch(mode=0o600)
        given.write_text(secret)
        other.fdt("jobs", "--server", f"127.0.0.1:{port}", "--token-file", str(given)).expect(0)
        # One that is given wins, also over the right one that would be found.
        given.write_text("not the token")
        wrong = user.fdt("jobs", "--server", f"127.0.0.1:{port}", "--token-file", str(given)).expect(125)
        assert "does not accept this token" in wrong.stderr
        pool.process.send_signal(signal.SIGTERM)
        pool.process.wait(LIMIT_S)
        assert list((user.runtime / "fdt").iterdir()) == []
        assert secret not in pool.so_far().output


def test_a_pool_without_a_token_is_a_choice_that_is_said(user: User, other: User) -> None:
    with user.serve("--no-token") as pool:
        port = port_of(pool)
        assert not (user.runtime / "fdt").exists()
        other.fdt("jobs", "--server", f"127.0.0.1:{port}").expect(0)
        assert "open to every local user" in pool.so_far().stderr


def test_a_token_that_a_killed_pool_left_opens_nothing(user: User) -> None:
    with user.serve() as killed:
        port = port_of(killed)
        killed.process.kill()
        killed.process.wait(LIMIT_S)
    (stale,) = (user.runtime / "fdt").iterdir()
    old = stale.read_text()
    command = ["serve", "--listen", f"127.0.0.1:{port}", "--workers", "1"]
    with background([PYTHON, "-m", "fdt", *command], **user._environment) as pool:
        port_of(pool)
        assert stale.read_text() != old
        assert "no jobs" in user.fdt("jobs", "--server", f"localhost:{port}").expect(0).stdout
        # What the killed pool was sent has gone.
        assert len([path for path in user.runtime.parent.iterdir() if path.name.startswith("fdt-pool-")]) == 1


def test_a_host_finds_the_token_of_a_pool_of_its_user(user: User, other: User) -> None:
    join = ["serve", "--slots", "1", "--trusted-network", "lo", "--join"]
    with user.serve("--trusted-network", "lo", "--workers", "0") as pool:
        address = f"127.0.0.1:{port_of(pool)}"
        assert "another user's" in other.fdt(*join, address).expect(125).stderr
        with background([PYTHON, "-m", "fdt", *join, address], **user._environment) as host:
            host.wait_for_line("joined the pool", limit_s=LIMIT_S)
