"""Options that are set in the environment and in files: which one holds, and what is said of one that is wrong."""

import os
from pathlib import Path
from typing import Any

import pytest

from fdt.cli import command_line, main, sources
from fdt.cli.option_fields import Description, Options, described
from fdt.cli.options import COMMANDS, Config

_BOTH = ("sync", "async")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the working directory; nothing is set."""
    for name in set(os.environ) - set(sources.cleared(os.environ)):
        monkeypatch.delenv(name)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(project)
    return project


@pytest.fixture
def users(folder: Path) -> Path:
    """Returns the user's own file, yet to be written."""
    sources.user_file().parent.mkdir(parents=True)
    return sources.user_file()


def _parse(*argv: str) -> Options:
    return command_line.parse("fdt", _BOTH, argv)


def test_command_line_before_environment_before_file_before_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _parse("run", "t.py").workers == (2, 2)
    (folder / "fdt.toml").write_text("workers = 3\n")
    assert _parse("run", "t.py").workers == (3, 3)
    (folder / "fdt.toml").write_text('workers = 3\n[run]\nworkers = "4..5"\n')
    assert _parse("run", "t.py").workers == (4, 5)
    assert _parse("verify", "t.py").workers == 3
    monkeypatch.setenv("FDT_WORKERS", "6")
    assert _parse("run", "t.py").workers == (6, 6)
    assert _parse("run", "--workers", "7", "t.py").workers == (7, 7)


def test_the_users_file_after_the_projects_but_for_what_is_not_a_projects(folder: Path, users: Path) -> None:
    users.write_text('workers = 3\nserver = "a:1"\n[run]\nbatch = "per-worker"\nreport = "r.json"\n')
    options: Any = _parse("run", "t.py")
    assert (options.workers, options.server, options.batch) == ((3, 3), "a:1", "per-worker")
    assert options.report == Path("r.json")
    (folder / "fdt.toml").write_text("workers = 4\n")
    assert (_parse("run", "t.py").workers, _parse("run", "t.py").server) == ((4, 4), "a:1")
    # Of a pool, workers are its operator's.
    assert _parse("serve").workers == 3


# What a project's file may set, of any command: how training goes. An option comes here by a decision alone.
_OF_TRAINING = {
    "average-every", "batch", "ddc", "else", "lambda0", "max-delay", "mode", "outer", "ps", "ps-place", "q", "reconnect",
    "relax", "repeat", "scale-lr", "seconds", "steps", "stop-after", "update", "variables", "warm-up", "wire", "workers",
}  # fmt: skip


def test_a_project_sets_how_training_goes() -> None:
    assert sources.names(None, of_training=True) == _OF_TRAINING
    for command in ("serve", "jobs", "logs", "cancel", "page", "top", "doctor", "setup", "attach", "config"):
        assert not sources.names(command, of_training=True)


@pytest.mark.parametrize("name", ["fdt.toml", "pyproject.toml"])
def test_a_project_sets_nothing_else(name: str, folder: Path, users: Path) -> None:
    """Whatever the command, of which the file need not speak: a clone of somebody's repository sends no token anywhere."""
    for command, _, option, about in _ALL:
        if about.of_training:
            continue
        for heading in (command,) if option in _OF_TRAINING else ("", command):
            table = ".".join(filter(None, ("tool.fdt" if name == "pyproject.toml" else "", heading)))
            value = "true" if about.parse is None else '"1"'
            (folder / name).write_text(f"{f'[{table}]' if table else ''}\n{option} = {value}\n")
            with pytest.raises(sources.SourceError) as refused:
                sources.read(COMMANDS["jobs"], _BOTH)
            said, where = str(refused.value), f" in [{command}]" if heading else ""
            assert said.startswith(f"{name}: {option!r}{where} cannot be set by a project's file")
            assert all(place in said for place in (f"--{option}", sources.variable(option), str(users)))


def test_the_users_file_may_be_the_working_directorys(users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users.write_text('server = "a:1"\n')
    monkeypatch.chdir(users.parent)
    assert _parse("jobs").server == "a:1"


def test_pyproject_is_read_where_there_is_no_fdt_toml(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.fdt.run]\nmode = "async"\n')
    assert _parse("run", "t.py").mode == "async"
    (folder / "fdt.toml").write_text('[run]\nmode = "sync"\n')
    assert _parse("run", "t.py").mode == "sync"


def test_fdt_config_names_a_file_or_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "fdt.toml").write_text("workers = 3\n")
    (folder / "other.toml").write_text("workers = 4\n")
    monkeypatch.setenv("FDT_CONFIG", str(folder / "other.toml"))
    assert _parse("verify", "t.py").workers == 4
    monkeypatch.setenv("FDT_CONFIG", "")
    assert _parse("verify", "t.py").workers == 2


# A text for each option that it takes, and another one that it takes too.
_TEXTS = {
    "server": ("a:1", "b:2"), "workers": ("3", "4"), "memory": ("1GB", "2GB"), "disk": ("1GB", "2GB"),
    "page": ("127.0.0.1:1", "127.0.0.1:2"), "interval": ("1", "2"),
    "predict hosts": ("1", "2"), "hosts": ("1..2", "2..3"),
    "metrics": ("127.0.0.1:1", "127.0.0.1:2"), "join": ("a:1", "b:2"), "overlap": ("0.5", "1"),
    "tolerance": ("0.5", "0.1"),
}  # fmt: skip
_ALL = [
    (command, field, name, about)
    for command, kind in COMMANDS.items()
    for field, name, _, about in described(kind)
    if about.may_be_set
]


@pytest.mark.parametrize(
    ("command", "field", "name", "about"), _ALL, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_option_is_found_in_the_environment_and_in_a_file(
    command: str, field: str, name: str, about: Description, users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = about.choices[:2] or _TEXTS.get(f"{command} {name}") or _TEXTS.get(name, ("1", "2"))
    is_switch = about.parse is None
    users.write_text(f"[{command}]\n{name} = {'true' if is_switch else repr(first)}\n")
    in_file = sources.read(COMMANDS[command], _BOTH)
    assert (list(in_file), in_file[field].origin) == ([field], f"{users}: [{command}] {name}")
    monkeypatch.setenv(sources.variable(name), "off" if is_switch else second)
    in_environment = sources.read(COMMANDS[command], _BOTH)
    assert in_environment[field].origin == sources.variable(name)
    assert in_environment[field].value != in_file[field].value
    assert set(sources.cleared(os.environ)) & {sources.variable(name)} == {"FDT_NO_WALLS"} & {sources.variable(name)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("worker = 3", "fdt.toml: unknown option 'worker'. Did you mean workers?"),
        ("[run]\nwokers = 3", "fdt.toml: unknown option 'wokers' in [run]. Did you mean workers?"),
        ("[verify]\ndetach = true", "fdt.toml: unknown option 'detach' in [verify]."),
        ("[run]\nworkers = 0", "fdt.toml: [run] workers: expected a whole number of workers, 1 or more. Received: 0"),
        ("[run]\nworkers = true", "fdt.toml: [run] workers: expected what --workers takes. Received: True"),
        ("[run]\nworkers = [1]", "fdt.toml: [run] workers: expected what --workers takes. Received: [1]"),
        ('[run]\nbatch = "local"', "fdt.toml: [run] batch: expected one of global, per-worker. Received: local"),
        ('[run]\nscale-lr = "linear"', "--scale-lr goes with --batch per-worker"),
        ("[run", "cannot read fdt.toml: "),
        ("[serve]\nno-walls = true", "fdt.toml: 'no-walls' in [serve] cannot be set by a project's file: "),
    ],
)
def test_what_is_wrong_in_a_file_is_said(
    text: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "fdt.toml").write_text(text)
    with pytest.raises(SystemExit) as left:
        main.main(["run", "t.py"])
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert error.splitlines()[-1].startswith(f"fdt: {said}"), error


def test_what_is_wrong_in_the_users_file_is_said(users: Path) -> None:
    users.write_text("[run]\nscheduler-arg = 3")
    with pytest.raises(sources.SourceError, match=r"\[run\] scheduler-arg: expected a list of texts. Received: 3"):
        sources.read(COMMANDS["run"], _BOTH)
    users.write_text("[serve]\nno-wall = true")
    with pytest.raises(sources.SourceError, match=r"unknown option 'no-wall' in \[serve\]\. Did you mean no-walls?"):
        sources.read(COMMANDS["run"], _BOTH)


def test_a_file_of_another_user_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "fdt.toml").write_text("workers = 3\n")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    os_stat = Path.stat

    class Strange:
        st_uid = os.getuid() + 2

    monkeypatch.setattr(
        Path, "stat", lambda path, **more: Strange() if path.suffix == ".toml" else os_stat(path, **more)
    )
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    with pytest.raises(sources.SourceError, match="belongs to another user"):
        sources.read(COMMANDS["run"], _BOTH)


def test_a_host_that_joins_has_no_use_for_what_is_set_for_pools(users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler hands the environment on."""
    users.write_text("[serve]\nidle = 60\n")
    for name, value in {
        "WORKERS": "3",
        "MODE": "async",
        "ON": "slurm",
        "HOSTS": "0..4",
        "TRUSTED_NETWORK": "lo",
    }.items():
        monkeypatch.setenv(f"FDT_{name}", value)
    joining = ("serve", "--join", "pool:1", "--slots", "2", "--trusted-network", "lo")
    assert (_parse(*joining).slots, _parse(*joining).workers) == (2, None)
    assert (_parse("serve").workers, _parse("serve").on, _parse("serve").idle) == (3, "slurm", 60.0)


def test_config_shows_what_holds_and_where_from(
    folder: Path, users: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*argv: str) -> list[str]:
        assert main.main(["config", *argv]) == 0
        return capsys.readouterr().out.splitlines()

    assert shown() == ["nothing is set: no FDT_* of ours in the environment"]
    users.write_text('server = "a:1"\n')
    (folder / "fdt.toml").write_text("[verify]\nsteps = 5\n")
    monkeypatch.setenv("FDT_WORKERS", "3")
    rows = [line.split(maxsplit=2) for line in shown("verify")]
    assert rows == [
        ["verify.server", "a:1", f"{users}: server"],
        ["verify.token-file", "-", "default"],
        ["verify.tls-ca", "-", "default"],
        ["verify.workers", "3", "FDT_WORKERS"],
        ["verify.steps", "5", "fdt.toml: [verify] steps"],
        ["verify.tolerance", "0.0001", "default"],
    ]
    assert [line.split()[0] for line in shown() if "FDT_WORKERS" in line] == [
        f"{command}.workers" for command, _, name, _ in _ALL if name == "workers"
    ]
    with pytest.raises(sources.SourceError, match="expected a command"):
        sources.show(Config(of="walk"), _BOTH)


def test_a_run_is_detached_by_the_command_line_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it starts is the same command in the same environment: it would detach again, without end."""
    monkeypatch.setenv("FDT_DETACH", "1")
    assert not _parse("run", "t.py").detach and _parse("run", "--detach", "t.py").detach
    (folder / "fdt.toml").write_text("[run]\ndetach = true\n")
    with pytest.raises(sources.SourceError, match="unknown option 'detach'"):
        sources.read(COMMANDS["run"], _BOTH)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_every_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab", reason="an extra, fdt[completion]")
    assert main.main(["completion", shell]) == 0
    written: Any = capsys.readouterr().out
    assert all(f"--{name}" in written for _, _, name, _ in _ALL)
