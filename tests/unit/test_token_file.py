"""Tokens of persons: how they are kept, when the pool takes them, and when no longer."""

import json
import os
import stat
from pathlib import Path

import pytest

from fdt.cli import command_line, option_values
from fdt.cli import main as cli
from fdt.errors import UsageError
from fdt.pool import token_file
from fdt.pool.access import WRONG_TOKEN, Access, Caller
from fdt.pool.token_file import TokenFile, hashed

NOW_S = 1_790_000_000.0
DAY_S = 86400.0
CHECK = "fdt.v1.Pool/ListJobs"


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def add(path: Path, name: str, lasts_s: float | None = None) -> str:
    return token_file.add(path, name, NOW_S, lasts_s)


def holder(tokens: TokenFile, token: str) -> str | None:
    found = tokens.find(hashed(token.encode()))
    return None if found is None else found.name


def test_a_file_holds_hashes_and_is_its_owners_alone(path: Path) -> None:
    one, other = add(path, "anna", DAY_S), add(path, "bob@lab")
    assert len(one) == 64 and one != other
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and os.listdir(path.parent) == ["tokens.json"]
    written = path.read_text()
    assert one not in written and other not in written and hashed(one.encode()) in written
    assert [(each.name, each.added_s, each.expires_s) for each in token_file.read(path)] == [
        ("anna", NOW_S, NOW_S + DAY_S),
        ("bob@lab", NOW_S, None),
    ]
    tokens = TokenFile(path)
    assert (holder(tokens, one), holder(tokens, other), holder(tokens, "wrong")) == ("anna", "bob@lab", None)


def test_a_person_has_one_token(path: Path) -> None:
    add(path, "anna", DAY_S)
    with pytest.raises(UsageError, match=r"anna has a token.*fdt token revoke anna"):
        add(path, "anna")
    # One that has expired makes room.
    token_file.add(path, "anna", NOW_S + DAY_S)
    assert len(token_file.read(path)) == 1
    token_file.revoke(path, "anna")
    with pytest.raises(UsageError, match=r"anna has no token"):
        token_file.revoke(path, "anna")
    assert token_file.read(path) == []


@pytest.mark.parametrize("name", ["", "operator", "a b", "a:b", "-a", "a\nb", "é", "x" * 64])
def test_a_name_that_cannot_be_told_from_others(path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="expected a name"):
        add(path, name)
    assert not path.exists()


def test_a_pool_sees_what_has_changed(path: Path) -> None:
    told: list[tuple[list[str], list[str]]] = []
    tokens = TokenFile(path, on_change=lambda added, gone: told.append((added, gone)))
    assert tokens.names() == []
    one = add(path, "anna")
    assert holder(tokens, one) == "anna" and told == [(["anna"], [])]
    token_file.revoke(path, "anna")
    other = add(path, "bob")
    assert (holder(tokens, one), holder(tokens, other)) == (None, "bob")
    assert told[1:] == [(["bob"], ["anna"])]
    # Whoever deletes the file has revoked all.
    path.unlink()
    assert holder(tokens, other) is None and told[2:] == [([], ["bob"])]
    assert tokens.names() == [] and len(told) == 3


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_text("{"), "is damaged"),
        (lambda path: path.write_text("[]"), "is damaged"),
        (lambda path: path.write_text('{"version": 2, "tokens": []}'), "version 2, not 1"),
        (lambda path: path.write_text('{"version": 1, "tokens": [{"name": "eve"}]}'), "is damaged"),
        (lambda path: path.write_text(written(sha256="00")), "malformed"),
        (lambda path: path.write_text(written(expires_s="never")), "malformed"),
        (lambda path: path.write_text(written(expires_s=float("nan"))), "malformed"),
        (lambda path: path.write_text(written(name="operator")), "expected a name"),
        (lambda path: path.write_text(written(times=2)), "a name comes twice"),
        (lambda path: path.write_text(" " * (2 << 20)), "more than"),
        (lambda path: path.chmod(0o640), "chmod 600"),
        (lambda path: (path.rename(path.with_name("x")), path.symlink_to("x")), "no link"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    ],
)
def test_a_file_that_is_not_to_be_believed(path: Path, damage: object, said: str) -> None:
    """It is refused at a pool's start and by `fdt token`; a pool that runs goes on with whom it knows, and says so."""
    token = add(path, "anna")
    running = TokenFile(path)
    damage(path)  # type: ignore[operator]
    with pytest.raises(UsageError, match=said):
        TokenFile(path)
    with pytest.raises(UsageError, match=said):
        add(path, "bob")
    assert holder(running, token) == "anna" and running.names() == ["anna"]


def written(**fields: object) -> str:
    times = fields.pop("times", 1)
    about = {"name": "eve", "sha256": "0" * 64, "added_s": 1.0, "expires_s": None, **fields}
    return json.dumps({"version": 1, "tokens": [about] * times})  # type: ignore[operator]


def test_damage_is_told_once_and_a_mended_file_is_read(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = TokenFile(path)
    one = add(path, "anna")
    path.chmod(0o644)
    assert holder(tokens, one) is None and holder(tokens, one) is None
    assert capsys.readouterr().err.count("chmod 600") == 1
    path.chmod(0o600)
    assert holder(tokens, one) == "anna"


# ---- who calls ------------------------------------------------------------------------------------------------------


def test_a_token_is_valid_until_it_expires_or_is_revoked(path: Path) -> None:
    clock = Clock()
    one, other = add(path, "anna", DAY_S), add(path, "bob")
    access = Access("the operator's own", persons=TokenFile(path, clock))
    anna = Caller("anna", False, hashed(one.encode()))
    assert access.complaint(CHECK, one.encode()) is None and access.lost(anna) is None
    assert list(access.while_valid(anna, [1, 2])) == [1, 2]
    clock.now_s += DAY_S
    assert "The token of anna has expired" in str(access.complaint(CHECK, one.encode()))
    assert "has expired" in str(access.lost(anna)) and access.complaint(CHECK, other.encode()) is None
    token_file.revoke(path, "bob")
    assert access.complaint(CHECK, other.encode()) == WRONG_TOKEN
    bob = Caller("bob", False, hashed(other.encode()))
    assert "The token of bob was revoked" in str(access.lost(bob))
    # One that is made anew does not bring the old one back.
    add(path, "bob")
    assert "was revoked" in str(access.lost(bob))
    assert access.lost(Caller()) is None


def test_what_is_not_in_the_table_is_the_operators(path: Path) -> None:
    token = add(path, "anna").encode()
    access = Access("the operator's own", persons=TokenFile(path))
    assert access.complaint("fdt.v1.Pool/Novelty", b"the operator's own") is None
    assert "operator alone" in str(access.complaint("fdt.v1.Pool/Novelty", token))


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"

    def fdt(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(["token", *arguments, "--state", str(state)])
        said = capsys.readouterr()
        return status, said.out, said.err

    assert fdt("list")[1].startswith("nobody has a token")
    status, token, about = fdt("add", "anna", "--expires", "30d")
    assert status == 0 and len(token.strip()) == 64 and "anna's token, shown this once" in about
    assert TokenFile(state / "tokens.json").names() == ["anna"]
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert fdt("add", "bob")[0] == 0
    lines = fdt("list")[1].splitlines()
    assert lines[0].split() == ["NAME", "ADDED", "EXPIRES"] and lines[2].split()[::3] == ["bob", "never"]
    assert fdt("add", "bob") == (2, "", fdt("add", "bob")[2]) and "bob has a token" in fdt("add", "bob")[2]
    assert fdt("revoke", "anna") == (0, "anna: revoked\n", "")
    assert TokenFile(state / "tokens.json").names() == ["bob"]


def test_a_state_folder_that_others_may_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o755)
    assert cli.main(["token", "add", "anna", "--state", str(tmp_path)]) == 2
    assert "chmod 700" in capsys.readouterr().err and list(tmp_path.iterdir()) == []
    # A file that is named may be anywhere.
    assert cli.main(["token", "add", "anna", "--tokens", str(tmp_path / "t")]) == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("token add", "add NAME"),
        ("token list anna", "Received: list anna"),
        ("token revoke anna --expires 1d", "--expires says how long a new token"),
        ("token add anna --expires 30", "such as 30d"),
        ("serve --no-token --tokens t", "--no-token lets everybody do everything"),
        ("serve --join 10.0.0.1:1 --slots 1 --trusted-network lo --share", "--share is the pool's own"),
        ("serve --join 10.0.0.1:1 --slots 1 --trusted-network lo --tokens t", "--tokens is the pool's own"),
    ],
)
def test_what_cannot_be_meant(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.parse("fdt", ("sync", "async"), command.split())
    assert said in capsys.readouterr().err


def test_periods() -> None:
    assert [option_values.period(text) for text in ("5m", "12h", "30d")] == [300.0, 43200.0, 30 * DAY_S]
