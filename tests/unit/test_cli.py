"""The command line: what it accepts, what it refuses, and that it does not change by accident."""

import contextlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from fdt.base.config import Credentials, RunConfig, ServeConfig
from fdt.base.worker_bounds import Bounds
from fdt.cli import command_line, doctor, option_values, pool_commands, serve, settings
from fdt.cli import main as cli
from fdt.errors import FdtError, PoolUnreachableError, UsageError
from fdt.script import runner
from fdt.v1 import pool_pb2

_LIMIT_S = 60
_BOTH = ("sync", "async")

# Public, and therefore frozen: changing it is a decision, to be told in the CHANGELOG.
_PLACING_OPTIONS = ["--dry-run", "--gpus", "--interface", "--on", "--shared-folder", "--slots", "--trusted-network"]
_POOL_OPTIONS = ["--server", "--tls-ca", "--token-file"]
_ASYNC_OPTIONS = [
    "--average-every",
    "--ddc",
    "--lambda0",
    "--max-delay",
    "--outer",
    "--ps",
    "--ps-place",
    "--q",
    "--update",
]
# fmt: off
_OPTIONS = {
    "run": sorted([
        *_POOL_OPTIONS, *_ASYNC_OPTIONS, *_PLACING_OPTIONS, "--admit", "--batch", "--data-map", "--detach", "--disk", "--else",
        "--memory",
        "--mode", "--prediction", "--reconnect", "--report", "--scale-lr", "--scheduler-arg", "--stop-after", "--tensorboard",
        "--relax", "--variables",
        "--warm-up", "--wire", "--workers",
    ]),
    "check": sorted([
        *_ASYNC_OPTIONS, "--admit", "--else", "--memory", "--mode", "--relax", "--variables", "--wire", "--workers",
    ]),
    "verify": sorted([*_POOL_OPTIONS, "--steps", "--tolerance", "--workers"]),
    "serve": sorted([
        *_PLACING_OPTIONS, "--admit", "--audit-log", "--data", "--disk", "--grace", "--hosts", "--idle", "--join",
        "--join-token-file", "--limit", "--listen", "--log-json", "--log-level", "--memory", "--metrics", "--mode", "--name",
        "--no-token", "--no-walls", "--open-servers", "--page", "--record-events", "--share", "--state", "--tls-ca",
        "--tls-cert", "--tls-key", "--token-file", "--tokens", "--workers",
    ]),
    "token": ["--expires", "--listen", "--state", "--tokens"],
    "predict": sorted([
        *_POOL_OPTIONS, "--bandwidth", "--batch", "--calibrate", "--cost-per-hour", "--gpus-per-host", "--hosts", "--json",
        "--latency", "--load",
        "--measure", "--memory", "--overlap", "--plot", "--queueing", "--relax", "--wire", "--workers",
    ]),
    "compare": sorted([*_POOL_OPTIONS, "--out", "--prediction", "--repeat", "--seconds", "--steps", "--workers"]),
    "jobs": _POOL_OPTIONS,
    "logs": _POOL_OPTIONS,
    "cancel": _POOL_OPTIONS,
    "attach": ["--tail"],
    "page": _POOL_OPTIONS,
    "top": sorted([*_POOL_OPTIONS, "--interval"]),
    "doctor": _POOL_OPTIONS,
    "setup": ["--rebuild", "--wheel"],
    "config": [],
    "completion": [],
}
# fmt: on


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FDT_SERVER", "FDT_TOKEN_FILE", "FDT_TLS_CA"):
        monkeypatch.delenv(name, raising=False)
    # `serve` sets it for its own process, which here is that of the tests.
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")


@pytest.fixture
def train(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def _parse(*argv: str, modes: tuple[str, ...] = _BOTH) -> types.SimpleNamespace:
    return types.SimpleNamespace(**vars(command_line.parse("fdt", modes, argv)))


def test_options_are_frozen() -> None:
    _, commands = command_line.build_parser("fdt", _BOTH)
    found = {
        name: sorted(
            text for action in parser._actions for text in action.option_strings if text not in ("-h", "--help")
        )
        for name, parser in commands.items()
    }
    assert found == _OPTIONS


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "--worker", "2", "train.py"], "unknown option '--worker'. Did you mean --workers?"),
        (["rum", "train.py"], "unknown command 'rum'. Did you mean run?"),
        (["serve", "--tls-cret", "x"], "Did you mean --tls-cert?"),
        (["run", "-c", "print()"], "write it to one"),
        (["run", "-m"], "the name of a module"),
        (["predict", "-m", "train"], "expected a SCRIPT. Received: -m train"),
        (["predict", "--hosts", "4", "train.py"], "needs the --bandwidth"),
        (
            ["predict", "--hosts", "4", "--bandwidth", "1Gbit", "--workers", "8", "train.py"],
            "4 workers at most on 4 hosts",
        ),
    ],
)
def test_what_cannot_be_meant_is_said(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        _parse(*argv)
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    # The usage of the command that was given, where it was one.
    assert error.startswith(f"usage: fdt {argv[0] if argv[0] != 'rum' else '['}")


def test_a_module_is_named_after_m() -> None:
    options = _parse("run", "--workers", "3", "-m", "package.train", "--workers", "4")
    assert (options.module, options.script, options.arguments) == (True, "package.train", ("--workers", "4"))


def test_options_behind_a_script_that_does_not_know_them_are_said() -> None:
    given = _parse("run", "train.py", "--workers", "2", "--epochs", "3")
    said = command_line.misplaced(given, "print('no options')")
    assert said is not None
    assert "fdt run --workers ... train.py" in said
    assert command_line.misplaced(given, "parser.add_argument('--workers')") is None
    assert command_line.misplaced(_parse("run", "train.py", "--epochs", "3"), "") is None


def test_run_by_default() -> None:
    options = _parse("run", "train.py")
    chosen = {k: v for k, v in vars(options).items() if k != "command"}
    assert chosen == {
        "script": "train.py", "arguments": (), "mode": "sync", "workers": (2, 2), "batch": "global", "scale_lr": "none",
        "report": None, "prediction": None, "tensorboard": None, "server": None, "token_file": None, "tls_ca": None,
        "ps": None, "ps_place": None, "update": None, "ddc": None, "lambda0": None, "q": None, "max_delay": None,
        "average_every": None, "outer": None, "stop_after": None, "warm_up": None, "wire": None,
        "relax": None, "variables": None,
        "otherwise": "refuse", "module": False, "reconnect": None, "detach": False, "memory": None, "disk": None,
        "admit": (), "data_map": (),
        "on": None, "slots": None, "gpus": None, "dry_run": False, "shared_folder": None, "trusted_network": None,
        "interface": None, "scheduler_args": (), "command_line": ("run", "train.py"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "name", "arguments"),
    [
        (["train.py", "--workers", "9", "--mode=async", "-h"], "train.py", ("--workers", "9", "--mode=async", "-h")),
        (["--workers", "4", "train.py", "--", "-x"], "train.py", ("--", "-x")),
        (["--workers=4", "train.py", "run", "train.py"], "train.py", ("run", "train.py")),
        (["--workers", "4", "--", "-train.py", "--", ""], "-train.py", ("--", "")),
        (["--workers", "4", "-", "a"], "-", ("a",)),
        (["--workers", "4", "a b/train.py", "@file", "--version"], "a b/train.py", ("@file", "--version")),
    ],
)
def test_everything_after_the_script_is_its_own(argv: list[str], name: str, arguments: tuple[str, ...]) -> None:
    options = _parse("run", *argv)
    assert (options.script, options.arguments) == (name, arguments)
    assert options.workers == ((4, 4) if any("--workers" in text for text in argv[:1]) else (2, 2))


def test_a_range_of_workers() -> None:
    assert _parse("run", "--workers", "2..8", "train.py").workers == (2, 8)
    with pytest.raises(SystemExit):
        _parse("run", "--workers", "4..2", "train.py")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "--workers", "0", "t.py"], "1 or more. Received: 0"),
        (["run", "--workers", "-1", "t.py"], "--workers"),
        (["run", "--workers", "two", "t.py"], "Received: two"),
        (["run", "--workers"], "--workers"),
        (["run"], "expected a SCRIPT"),
        (["run", "--workers", "2"], "expected a SCRIPT"),
        (["run", "--scale-lr", "linear", "t.py"], "--batch per-worker"),
        (["run", "--data-map", "/tmp=/data", "t.py"], "expected --server too"),
        (["run", "--mode", "fast", "t.py"], "fast"),
        (["run", "--work", "2", "t.py"], "--work"),
        (["run", "--unknown", "t.py"], "--unknown"),
        (["run", "--server", "host", "t.py"], "HOST:PORT"),
        (["run", "--server", "host:0", "t.py"], "HOST:PORT"),
        (["run", "--server", "host:99999", "t.py"], "HOST:PORT"),
        (["serve", "--tls-cert", "c.pem"], "belong together"),
        (["serve", "--workers", "-1"], "1 or more"),
        (["serve", "--slots", "2"], "--join"),
        (["serve", "--no-token", "--token-file", "t"], "not both"),
        (["serve", "--on", "slurm"], "--on needs --trusted-network"),
        (["serve", "--hosts", "0..2"], "expected --on NAME too"),
        (["serve", "--on", "slurm", "--trusted-network", "lo", "--hosts", "3..2"], "the least and the most"),
        (["serve", "--on", "slurm", "--trusted-network", "lo", "--hosts", "0"], "the least and the most"),
        (["serve", "--", "--partition=gpu"], "arguments for a scheduler need --on NAME"),
        (["serve", "--dry-run"], "--dry-run shows what"),
        (["serve", "--name", "x"], "--name goes with --join"),
        (["serve", "--join", "pool:1", "--slots", "2", "--trusted-network", "lo", "--name", "a b"], "letters"),
        (["serve", "--join", "pool:1", "--slots", "2", "--trusted-network", "lo", "--on", "slurm"], "not both"),
        (["run", "--on", "slurm", "--trusted-network", "lo", "--server", "pool:1", "t.py"], "expected one of them"),
        (["run", "--slots", "2", "t.py"], "expected --on NAME too"),
        (["run", "--scheduler-arg=-x", "t.py"], "arguments for a scheduler need --on NAME"),
        (["serve", "--join", "pool:1", "--slots", "2", "--no-token"], "--no-token is the pool's own"),
        (["serve", "--interface", "10.0.0.5"], "--trusted-network"),
        (["serve", "--open-servers"], "expected --trusted-network too"),
        (["serve", "--join", "pool", "--slots", "2", "--trusted-network", "lo"], "HOST:PORT"),
        (["serve", "--join", "pool:1", "--trusted-network", "lo"], "--slots N"),
        (["serve", "--join", "pool:1", "--slots", "0", "--trusted-network", "lo"], "1 or more"),
        (["serve", "--join", "pool:1", "--slots", "2"], "neither encrypted nor authenticated"),
        (["serve", "--join", "pool:1", "--slots", "2", "--workers", "2"], "--workers is the pool's own"),
        (["serve", "--join", "pool:1", "--slots", "2", "--listen", "0.0.0.0:1"], "--listen is the pool's own"),
        (["serve", "--join", "pool:1", "--slots", "2", "--mode", "sync"], "--mode is the pool's own"),
        (["serve", "--join", "pool:1", "--slots", "2", "--tls-cert", "c", "--tls-key", "k"], "give --tls-ca"),
        (["serve", "--join", "pool:1", "--slots", "2", "--state", "d"], "--state is the pool's own"),
        (["serve", "--memory", "4"], "such as 4GB or 512MiB. Received: 4"),
        (["run", "--disk", "0GB", "t.py"], "such as 4GB or 512MiB"),
        (["run", "--memory", "4GB", "--server", "pool:1", "t.py"], "`fdt serve --memory`"),
        (["attach"], "RUN"),
        (["attach", "run-1", "--tail", "0"], "1 or more"),
        (["logs"], "JOB"),
        ([], "COMMAND"),
        (["walk"], "walk"),
    ],
)
def test_wrong_command_lines(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(argv)
    error = capsys.readouterr().err
    assert leaving.value.code == 2
    assert message in error
    assert error.splitlines()[-1].startswith("fdt: ")


def test_flag_before_environment_before_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _parse("jobs").server == "127.0.0.1:7077"
    monkeypatch.setenv("FDT_SERVER", "pool:1")
    monkeypatch.setenv("FDT_TOKEN_FILE", "t")
    monkeypatch.setenv("FDT_TLS_CA", "c")
    options = _parse("run", "--token-file", "mine", "train.py")
    assert (options.server, options.token_file, options.tls_ca) == ("pool:1", Path("mine"), Path("c"))
    assert _parse("jobs", "--server", "other:2").server == "other:2"
    monkeypatch.setenv("FDT_SERVER", "")
    assert _parse("run", "train.py").server is None


def test_hfdt_and_nfdt_have_one_mode(capsys: pytest.CaptureFixture[str]) -> None:
    for main, other in ((cli.main_hfdt, "async"), (cli.main_nfdt, "sync")):
        with pytest.raises(SystemExit) as leaving:
            main(["run", "--mode", other, "t.py"])
        assert leaving.value.code == 2
        assert "--mode" in capsys.readouterr().err
    assert _parse("run", "t.py", modes=("async",)).mode == "async"
    assert _parse("serve", modes=("sync",)).mode == "sync"


def test_a_mode_without_a_runtime_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], train: str
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    for command in (["run", "--mode", "async", train], ["serve", "--mode", "async"]):
        assert cli.main(command) == 2
        assert "no runtime for asynchronous mode is installed (--mode async)" in capsys.readouterr().err
    assert cli.main_nfdt(["run", train]) == 2


def test_options_of_a_runtime_are_looked_at_before_anything_starts(
    capsys: pytest.CaptureFixture[str], train: str
) -> None:
    for given, expected in (
        (
            ["--mode", "async", "--max-delay", "-1"],
            "--max-delay must be a whole number, 0 or more. Received: --max-delay -1",
        ),
        (["--mode", "async", "--update", "sgd"], "--update must be one of"),
        (["--mode", "sync", "--update", "asgd"], "--update goes with --mode async"),
    ):
        assert cli.main(["run", *given, train]) == 2
        assert expected in capsys.readouterr().err


def test_an_asynchronous_run_has_nothing_to_scale(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (("--batch", "per-worker"), ("--batch", "per-worker", "--scale-lr", "linear")):
        with pytest.raises(SystemExit):
            _parse("run", "--mode", "async", *given, "t.py")
        assert "there is nothing to scale" in capsys.readouterr().err


def test_a_host_says_what_it_brings() -> None:
    chosen = _parse(
        "serve", "--join", "pool:7077", "--slots", "3", "--trusted-network", "127.0.0.1", "--tls-ca", __file__
    )
    config = settings.join_config(chosen)
    assert (config.pool, config.num_workers, config.credentials) == ("pool:7077", 3, Credentials(None, Path(__file__)))
    assert (config.network.address, config.network.interface) == ("127.0.0.1", "lo") and config.name


@pytest.mark.parametrize("mode", ["sync", "async", "both"])
def test_a_host_that_is_given_a_mode_is_told_what_to_do(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse("serve", "--join", "pool:1", "--slots", "2", "--trusted-network", "lo", "--mode", mode)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "fdt: --mode is the pool's own, and means nothing with --join: a host runs what its pool offers; leave it out here, "
        f"and give it where the pool is served. Received: --mode {mode}"
    )


def test_workers_are_walled_in_unless_the_operator_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    join = ("--join", "pool:7077", "--slots", "3", "--trusted-network", "127.0.0.1")
    assert settings.serve_config(_parse("serve")).walls and settings.join_config(_parse("serve", *join)).walls
    assert not settings.serve_config(_parse("serve", "--no-walls")).walls
    assert not settings.join_config(_parse("serve", "--no-walls", *join)).walls
    monkeypatch.setenv("FDT_NO_WALLS", "1")
    assert not settings.serve_config(_parse("serve")).walls


def test_operations_that_are_admitted_besides(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--admit", "DecodeJpeg,DecodePng", "--admit", "DecodePng, Empty")
    expected = ("DecodeJpeg", "DecodePng", "Empty")
    assert settings.serve_config(_parse("serve", *given)).admitted == expected
    assert settings.run_config(_parse("run", *given, train)).admitted == expected
    assert settings.check_config(_parse("check", *given, train)).admitted == expected
    assert settings.serve_config(_parse("serve")).admitted == ()
    for name, said in {"PyFunc": "no pool runs it: it runs Python", "decode": "such as DecodeJpeg"}.items():
        with pytest.raises(UsageError, match=rf"--admit: .*{said}.*Received: {name}"):
            settings.serve_config(_parse("serve", "--admit", name))
    for words, remedy in [
        (("run", "--server", "pool:1", "--admit", "Empty", train), "`fdt serve --admit`"),
        (("serve", "--join", "pool:1", "--slots", "1", "--admit", "Empty"), "give it where the pool is served"),
    ]:
        with pytest.raises(SystemExit):
            _parse(*words)
        assert remedy in capsys.readouterr().err


def test_a_pool_by_default_and_with_hosts() -> None:
    assert settings.serve_config(_parse("serve", "--no-token")) == ServeConfig()
    made, again = (settings.serve_config(_parse("serve")).token for _ in range(2))
    assert made and again and made != again and len(bytes.fromhex(made)) == 32
    # Off loopback nobody would find it: the pool asks for one that is given.
    assert settings.serve_config(_parse("serve", "--listen", "0.0.0.0:1")).token is None
    config = settings.serve_config(
        _parse("serve", "--workers", "0", "--trusted-network", "lo", "--interface", "127.0.0.1")
    )
    assert config.num_workers == 0 and config.network is not None and config.network.address == "127.0.0.1"
    with pytest.raises(UsageError, match="not on that network"):
        settings.serve_config(_parse("serve", "--trusted-network", "203.0.113.77"))


def test_what_each_worker_may_take() -> None:
    for text, num_bytes in (("4GB", 4 * 10**9), ("512MiB", 512 << 20), ("1.5kb", 1500), ("2 TiB", 2 << 40)):
        assert option_values.size(text) == num_bytes
    options = ("--memory", "4GB", "--disk", "1GB")
    join = ("--join", "pool:7077", "--slots", "3", "--trusted-network", "127.0.0.1")
    expected = Bounds(4 * 10**9, 10**9)
    assert settings.serve_config(_parse("serve", *options)).bounds == expected
    assert settings.join_config(_parse("serve", *options, *join)).bounds == expected
    assert settings.run_config(_parse("run", *options, "t.py")).bounds == expected


def test_where_a_pool_keeps_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path, is_asked = settings.state_folder(_parse("serve", "--listen", "127.0.0.1:1"))
    assert path is not None and path.is_relative_to(tmp_path / "fdt") and path.name == "127.0.0.1-1" and not is_asked
    # Nobody comes back to a port that the system chooses.
    assert settings.state_folder(_parse("serve", "--listen", "127.0.0.1:0")) == (None, False)
    assert settings.state_folder(_parse("serve", "--state", "/d")) == (Path("/d"), True)
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", "nowhere")
    assert settings.state_folder(_parse("serve"))[0] is None


def test_a_state_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert serve._kept(_parse("serve")) is None  # type: ignore[arg-type]
    assert "will be lost when this pool ends" in capsys.readouterr().err
    with pytest.raises(UsageError, match="--state DIR"):
        serve._kept(_parse("serve", "--state", str(tmp_path / "file/of")))  # type: ignore[arg-type]


def test_token_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    assert settings._token(None) is None
    file.write_text("secret\n")
    file.chmod(0o600)
    assert (settings._token(file), capsys.readouterr().err) == ("secret", "")
    file.chmod(0o644)
    assert settings._token(file) == "secret"
    warning = capsys.readouterr().err
    assert "warning" in warning and "chmod 600" in warning and "secret" not in warning


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602, 0o620, 0o777])
def test_a_private_key_that_others_can_read(mode: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_text("")
    key.write_text("")
    options = ["serve", "--tls-cert", str(certificate), "--tls-key", str(key)]
    key.chmod(0o600)
    settings.serve_config(_parse(*options))
    assert capsys.readouterr().err == ""
    key.chmod(mode)
    settings.serve_config(_parse(*options))
    warning = capsys.readouterr().err
    assert "private key" in warning and f"chmod 600 {key}" in warning and warning.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b" \n\n", b"a\nb\n", b"\xff\xfe", "schlüssel".encode(), None])
def test_token_file_that_holds_no_token(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match="token file"):
        settings._token(file)


@pytest.mark.parametrize("option", ["--token-file", "--join-token-file"])
def test_a_pool_asks_for_no_token_that_can_be_guessed(option: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    for short in ("x", "fifteen letters"):
        file.write_text(short + "\n")
        with pytest.raises(UsageError, match=rf"at least 16 random .*token_hex.*Received: {len(short)} characters$"):
            settings.serve_config(_parse("serve", option, str(file)))
    file.write_text("sixteen letters!\n")
    config = settings.serve_config(_parse("serve", option, str(file)))
    assert "sixteen letters!" in (config.token, config.join_token)


# ---- run, with a session that is none -------------------------------------------------------------------------------


class _Session:
    """Notes what is done with it."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.distributed, self.verification = config, False, None
        self.calls: list[str] = []
        _Session.last = self

    last: "_Session"
    failure: FdtError | None = None

    def __enter__(self) -> Self:
        if _Session.failure is not None:
            raise _Session.failure
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append("exit")

    def close(self, status: int) -> None:
        self.calls.append(f"close {status}")

    def write_report(self, status: int) -> None:
        self.calls.append(f"report {status}")


@pytest.fixture
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A session and hooks that do nothing; nothing the run changes in this process is left."""
    import fdt

    capture = types.SimpleNamespace(hooks=lambda _, **__: contextlib.nullcontext())
    purpose = types.SimpleNamespace(Training=lambda session: session)
    monkeypatch.setitem(sys.modules, "fdt.client.session", types.SimpleNamespace(Session=_Session))
    monkeypatch.setitem(sys.modules, "fdt.capture", capture)
    monkeypatch.setitem(sys.modules, "fdt.capture.purpose", purpose)
    monkeypatch.setattr(fdt, "capture", capture, raising=False)
    monkeypatch.setattr(settings, "require_launchers", lambda _: None)
    monkeypatch.setattr(_Session, "failure", None)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    # What other tests import may have put its own in its place.
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    yield


@pytest.mark.usefixtures("_stand_in")
def test_run_ends_the_session_then_reports(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(train).write_text("import sys; print(sys.argv[1:]); sys.exit(3)")
    assert cli.main(["run", "--workers", "3", train, "--epochs", "2"]) == 3
    printed = capsys.readouterr()
    assert printed.out == "['--epochs', '2']\n"
    assert printed.err == f"fdt: no training step was found in {train}; nothing was distributed\n"
    assert _Session.last.calls == ["close 3", "report 3", "exit"]
    assert _Session.last.config.num_workers == 3


@pytest.mark.usefixtures("_stand_in")
def test_error_of_ours_in_the_script(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(train).write_text(
        "from fdt.errors import WorkerError\ndef fit():\n    raise WorkerError('rank 1 died')\nfit()\n"
    )
    assert cli.main(["run", train]) == 125
    error = capsys.readouterr().err
    assert error.endswith("in fit\n    raise WorkerError('rank 1 died')\nfdt: rank 1 died\n")
    assert error.count("File ") == 2 and "nothing was distributed" not in error


@pytest.mark.usefixtures("_stand_in")
def test_error_of_ours_that_the_script_handles(train: str) -> None:
    Path(train).write_text("from fdt.errors import WorkerError\ntry: raise WorkerError('x')\nexcept Exception: pass\n")
    assert cli.main(["run", train]) == 0


@pytest.mark.usefixtures("_stand_in")
def test_error_before_the_script(
    train: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(train).write_text("print('ran')")
    monkeypatch.setattr(_Session, "failure", PoolUnreachableError("No pool answers at there:1."))
    assert cli.main(["run", "--server", "there:1", train]) == 125
    assert capsys.readouterr() == ("", "fdt: No pool answers at there:1.\n")


@pytest.mark.usefixtures("_stand_in")
def test_interrupt_closes_the_session(train: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(train).write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        cli.main(["run", train])
    assert _Session.last.calls == ["close 130", "report 130", "exit"]
    assert capsys.readouterr().err.endswith("KeyboardInterrupt\n")


@pytest.mark.usefixtures("_stand_in")
def test_report_is_checked_before_the_script_runs(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "--report", str(tmp_path / "no" / "r.json"), train]) == 2
    assert "cannot write a report" in capsys.readouterr().err


@pytest.mark.usefixtures("_stand_in")
def test_report_that_fails_is_told(
    train: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_Session, "write_report", fail)
    assert cli.main(["run", train]) == 125
    assert "No space left" in capsys.readouterr().err
    Path(train).write_text("raise SystemExit(4)")
    assert cli.main(["run", train]) == 4


def test_missing_script_needs_no_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing.py")
    assert cli.main(["run", "--server", "nowhere:1", missing]) == 2
    assert capsys.readouterr().err == f"{runner.unreadable(missing)}\n"


# ---- the other commands ---------------------------------------------------------------------------------------------


def test_table_of_jobs() -> None:
    jobs = [
        pool_pb2.JobSummary(job="a1", state="running", script="train.py", mode="sync", num_workers=4, steps=12345,
                            submitted_s=1000.0),
        pool_pb2.JobSummary(job="b22", state="failed", script="x\n.py", mode="sync", num_workers=1, submitted_s=1000.0,
                            ended_s=8265.0, reason="rank 0 died:\n  killed"),
    ]  # fmt: skip
    assert pool_commands.format_jobs(jobs, now_s=1061.5) == [
        "JOB  STATE    MODE  WORKERS   STEPS    TIME  SCRIPT    REASON",
        "a1   running  sync        4  12,345  1m 01s  train.py",
        "b22  failed   sync        1       0  2h 01m  x .py     rank 0 died: killed",
    ]
    jobs[0].owner = "anna"
    assert pool_commands.format_jobs(jobs, now_s=1061.5) == [
        "JOB  STATE    MODE  WORKERS   STEPS    TIME  OWNER  SCRIPT    REASON",
        "a1   running  sync        4  12,345  1m 01s  anna   train.py",
        "b22  failed   sync        1       0  2h 01m  -      x .py     rank 0 died: killed",
    ]


def test_no_pool_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    # A port that was free a moment ago, on loopback.
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert cli.main(["jobs", "--server", address]) == 125
    error = capsys.readouterr().err
    assert error.startswith("fdt: ") and address in error and error.count("\n") == 1


def test_a_reader_may_leave() -> None:
    # As `fdt logs JOB | head` does, for a log that is longer than a pipe.
    code = (
        "import sys\nfrom fdt.cli import pool_commands\n"
        "with pool_commands._reader_may_leave():\n  while True: sys.stdout.buffer.write(b'line\\n' * 10_000)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stderr is not None
        assert writer.stdout.readline() == b"line\n"
        writer.stdout.close()
        assert (writer.stderr.read(), writer.wait(_LIMIT_S)) == (b"", 0)


def test_serve_tells_of_a_port_in_use_in_one_line() -> None:
    import socket

    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-m", "fdt", "serve", "--workers", "1", "--listen", address],
            capture_output=True, text=True, timeout=_LIMIT_S, env=environment, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fdt: Cannot listen there") and done.stderr.count("\n") == 1


def test_doctor_names_what_is_broken_and_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    working, broken = ("print('1.2')", "none"), ("raise ImportError('no such file')", "build it")
    monkeypatch.setattr(doctor, "_PROBES", {"grpc": working, "horovod": broken})
    assert cli.main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "ok     grpc        1.2\n" in printed
    assert "BROKEN horovod     ImportError: no such file\n" in printed and "remedy: build it\n" in printed
    monkeypatch.setattr(doctor, "_PROBES", {"grpc": working})
    assert cli.main(["doctor"]) == 0


def test_doctor_does_not_call_a_slow_machine_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_PROBES", {"grpc": ("import time; time.sleep(60)", "grpcio")})
    monkeypatch.setattr(doctor, "_PROBE_LIMIT_S", 0.2)
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "BROKEN" not in printed and "-      grpc        did not import within 0 s" in printed
    assert "install" not in printed


@pytest.mark.parametrize(
    ("pip", "uv", "expected"),
    [
        (True, True, "-m pip install"),
        (False, True, "uv pip install --python"),
        (False, False, "into the environment of"),
    ],
)
def test_doctor_recommends_what_is_there(
    pip: bool, uv: bool, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_PROBES", {"grpc": ("import no_such_module", "grpcio>=1.62")})
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object() if pip else None)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/uv" if name == "uv" and uv else None)
    assert cli.main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert f"{expected} " in printed and "grpcio>=1.62" in printed


@pytest.mark.parametrize("address", ["http://localhost:7077", "https://pool:7077", "grpc://pool:1", "pool:1/x", "pool"])
def test_an_address_that_is_none_is_refused_before_anything_runs(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["run", "--server", address, "no_such_script.py"])
    assert left.value.code == 2
    assert "expected HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["pool.example:7077", "10.0.0.5:1", "[::1]:7077", "my_pool:65535"])
def test_addresses(address: str) -> None:
    assert option_values.address(address) == address


_HEAVY = ("tensorflow", "keras", "numpy", "grpc", "google")


@pytest.mark.parametrize("argv", [["--help"], ["run", "--help"], ["--version"], ["run", "--workers", "0", "x"]])
def test_starts_without_heavy_imports(argv: list[str]) -> None:
    code = (
        "import json, sys\nfrom fdt.cli.main import main\ntry: main(sys.argv[1:])\n"
        "except SystemExit: print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=_LIMIT_S, env=dict(os.environ),
        check=True,
    )  # fmt: skip
    imported = json.loads(done.stderr.splitlines()[-1])
    assert [
        name for name in imported if name.partition(".")[0] in _HEAVY and name not in sys.builtin_module_names
    ] == []


@pytest.mark.usefixtures("_stand_in")
def test_after_a_syntax_error_nothing_more_is_said(
    train: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("last_type", "last_value", "last_traceback"):
        monkeypatch.setattr(sys, name, None, raising=False)
    Path(train).write_text("print(")
    assert cli.main(["run", train]) == 1
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1].startswith("SyntaxError: ")
    # One that the script itself meets is its own affair: some of it has run.
    Path(train).write_text("exec('print(')")
    assert cli.main(["run", train]) == 1
    assert "no training step was found" in capsys.readouterr().err


def test_serve_puts_its_jobs_away_at_the_first_sigterm_and_stops_at_the_second() -> None:
    code = (
        "import os, signal; from fdt.cli import serve as cli\n"
        "leave = cli._stop_on_signals(); leave.append(lambda: print('leaves'))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "try: os.kill(os.getpid(), signal.SIGTERM); print('goes on')\n"
        "except cli._Stopped: print('stops')\n"
        "os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGINT); print('to its end')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n") == ["leaves", "stops", "to its end", ""]


def test_a_stop_that_is_lost_in_a_destructor_is_asked_for_again() -> None:
    code = (
        "import os, signal, threading; from fdt.cli import serve as cli\n"
        "class Lost:\n    def __del__(self): os.kill(os.getpid(), signal.SIGTERM)\n"
        "cli._AGAIN_S = 0.05; cli._stop_on_signals()\n"
        "try: Lost(); print('goes on'); threading.Event().wait(50); print('was never stopped')\n"
        "except cli._Stopped: cli._heard(); print('stops')\n"
        "os.kill(os.getpid(), signal.SIGALRM); os.kill(os.getpid(), signal.SIGINT); print('to its end')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n") == ["goes on", "stops", "to its end", ""]


def test_commands_clients_and_the_control_process_load_no_tensorflow() -> None:
    """It takes seconds and half a gigabyte, and a pool's control process has nothing to compute."""
    modules = (
        "fdt.pool.server fdt.pool.supervisor fdt.pool.host fdt.pool.reconciler fdt.pool.examiner fdt.cli.settings "
        "fdt.cli.doctor fdt.cli.setup fdt.cli.pool_commands fdt.cli.detached fdt.client.session fdt.client.job "
        "fdt.transport.blob_client fdt.worker.tunnel fdt.worker.sandbox fdt.pool.scheduling.slurm hfdt.launch nfdt.launch"
    ).split()
    code = f"import importlib, sys; list(map(importlib.import_module, {modules})); print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    assert done.stdout == "False\n"
