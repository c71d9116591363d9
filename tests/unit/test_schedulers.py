"""What schedulers would be told, beside files that a person has read; and what they refuse before anything is started.

`FDT_WRITE_GOLDEN=1` writes the files anew.
"""

import itertools
import json
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fdt.base.config import Network, PlacingConfig
from fdt.base.worker_bounds import Bounds
from fdt.cli import option_values
from fdt.errors import UsageError
from fdt.pool.scheduling.kubernetes import Kubernetes
from fdt.pool.scheduling.preflight import check, show
from fdt.pool.scheduling.ray import Ray
from fdt.pool.scheduling.request import HostRequest, SchedulerUnreachableError, find_renderer, find_scheduler
from fdt.pool.scheduling.slurm import Slurm

GOLDEN = Path(__file__).parent / "golden"
NETWORK = Network("eth0", "10.0.0.1", "10.0.0.0/16")
ARGUMENTS = {
    "slurm": ("--partition=gpu", "--time=4:00:00"),
    "kubernetes": ("image=registry.example/fdt:0.1", "namespace=research", "queue=gpus"),
    "ray": ("placement=spread", "restarts=2"),
}


def placing(scheduler: str, **changes: Any) -> PlacingConfig:
    folder = changes.pop("folder", Path("/shared"))
    fields: dict[str, Any] = {"slots": 4, "gpus": 4, "arguments": ARGUMENTS[scheduler], **changes}
    return PlacingConfig(scheduler, 0, 8, folder, **fields)


@pytest.mark.parametrize("scheduler", sorted(ARGUMENTS))
def test_dry_run(scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = tmp_path / "ca.pem"
    certificate.write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    monkeypatch.setattr("sys.executable", "/opt/fdt/bin/python")
    shown = show(placing(scheduler, tls_ca=certificate), NETWORK, "10.0.0.1:7077") + "\n"
    file = GOLDEN / f"{scheduler}.txt"
    if os.environ.get("FDT_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown)
    assert shown == file.read_text()
    assert str(tmp_path) not in shown


def request(scheduler: str = "slurm", **changes: Any) -> HostRequest:
    return HostRequest.of(placing(scheduler, **changes), NETWORK, "10.0.0.1:7077", "secret", pool="fdt-a")


def test_hosts_take_the_workers_bounds_along() -> None:
    asked = request(bounds=Bounds(memory_bytes=4_000_000_001, disk_bytes=1 << 20))
    command = asked.command()
    given = dict(itertools.pairwise(command))
    assert option_values.size(given["--memory"]) == 3_906_251 * 1024 and option_values.size(given["--disk"]) == 1 << 20


def test_schedulers_are_found_by_name() -> None:
    assert isinstance(find_scheduler("slurm"), Slurm)
    assert isinstance(find_scheduler("ray"), Ray)
    assert isinstance(find_renderer("kubernetes"), Kubernetes)
    with pytest.raises(UsageError, match="there is: kubernetes, ray, slurm"):
        find_renderer("cron")
    with pytest.raises(UsageError, match="add --dry-run"):
        find_scheduler("kubernetes")


# ---- Slurm ----------------------------------------------------------------------------------------------------------


class Commands:
    """Slurm's commands, as programs that answer what a test wants; they write down how they were called."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def answer(self, name: str, stdout: str = "", stderr: str = "", status: int = 0) -> None:
        script = f"""#!/bin/sh
printf '%s ' "$0" "$@" >> {self._directory}/calls; echo >> {self._directory}/calls
[ {name} = sbatch ] && cat >> {self._directory}/stdin
printf '%s' {shlex.quote(stdout)}; printf '%s' {shlex.quote(stderr)} >&2; exit {status}
"""
        (self._directory / name).write_text(script)
        (self._directory / name).chmod(0o700)

    @property
    def calls(self) -> list[str]:
        text = (self._directory / "calls").read_text()
        return [line.replace(f"{self._directory}/", "").strip() for line in text.splitlines()]

    @property
    def stdin(self) -> str:
        return (self._directory / "stdin").read_text()


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    commands = Commands(tmp_path)
    for name in ("sbatch", "squeue", "scancel"):
        commands.answer(name)
    return commands


def test_a_submission_returns_its_number(commands: Commands) -> None:
    commands.answer("sbatch", "sbatch: lua: a word of the site's\n4711;cluster\n")
    assert Slurm().start(request()) == "4711"
    assert commands.calls == ["sbatch --parsable --partition=gpu --time=4:00:00 /shared/host.sh"]


def test_a_check_submits_nothing(commands: Commands) -> None:
    check(placing("slurm"), NETWORK)
    assert commands.calls == ["sbatch --test-only --partition=gpu --time=4:00:00"]
    assert "exec " in commands.stdin and "--gpus-per-node=4" in commands.stdin


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("sbatch: error: invalid partition specified: gpu", UsageError),
        ("allocation failure: Requested node configuration is not available", UsageError),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
         SchedulerUnreachableError),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", SchedulerUnreachableError),
    ],
)  # fmt: skip
def test_slurms_own_words_are_passed_on(commands: Commands, said: str, error: type[Exception]) -> None:
    commands.answer("sbatch", stderr=said + "\n", status=1)
    commands.answer("sinfo", "idle")
    with pytest.raises(error) as caught:
        Slurm().start(request())
    assert said in str(caught.value)
    with pytest.raises(UsageError) as checked:
        Slurm().check(request())
    assert said in str(checked.value)


@pytest.mark.parametrize(("states", "refused"), [("idle\ndrained\n", True), ("idle*\ndown\n", False), ("", False)])
def test_for_nodes_that_are_away_a_request_may_wait(commands: Commands, states: str, refused: bool) -> None:
    commands.answer("sbatch", stderr="allocation failure: Requested node configuration is not available\n", status=1)
    commands.answer("sinfo", states)
    if refused:
        with pytest.raises(UsageError, match="node configuration"):
            check(placing("slurm"), NETWORK)
    else:
        check(placing("slurm"), NETWORK)
    assert commands.calls[-1] == "sinfo --noheader --format=%T --partition=gpu"


def test_no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="sbatch is not installed on this machine"):
        check(placing("slurm"), NETWORK)


@pytest.mark.parametrize("argument", ["--nodes=2", "-N", "--array=0-3", "--output=x", "--job-name=mine", "--wrap=true"])
def test_arguments_that_would_undo_one_job_a_host(argument: str) -> None:
    with pytest.raises(UsageError, match=argument.partition("=")[0]):
        Slurm().render(request(arguments=(argument,)))


def test_states(commands: Commands) -> None:
    commands.answer(
        "squeue",
        "1|PENDING|Resources|\n2|RUNNING|None|c1\n3|COMPLETING|None|c1\n4|FAILED|NonZeroExitCode|c2\n"
        "5|TIMEOUT|TimeLimit|c2\n6|REQUEUE_HOLD|launch failed requeued held|\n",
    )
    seen = Slurm().observe("fdt-a", {str(number): request() for number in range(1, 8)})
    assert [(each.waits, each.ended) for each in seen.values()] == [
        (True, False), (False, False), (False, False), (False, True), (False, True), (True, False), (False, True),
    ]  # fmt: skip
    assert seen["1"].reason == "pending (Resources)" and seen["4"].reason == "failed (NonZeroExitCode) on c2"
    assert seen["2"].log == Path("/shared/host.log")


def test_stop_and_sweep(commands: Commands) -> None:
    Slurm().stop([])
    Slurm().stop(["1", "2"])
    Slurm().sweep("fdt-a")
    assert commands.calls == ["scancel --quiet 1 2", "scancel --quiet --name=fdt-a"]


@pytest.mark.parametrize("name", ["plain", "two words", "it's", 'a"b', "$HOME", "a`id`", "100%j", "a\\b"])
def test_a_script_for_every_folder(tmp_path: Path, name: str) -> None:
    """The shell takes it, sees the token there, and says what is the matter where there is none."""
    folder = tmp_path / name
    folder.mkdir()
    asked = HostRequest.of(placing("slurm", folder=folder), NETWORK, "10.0.0.1:7077", "secret", pool="fdt-a")
    files = {file.name: file for file in Slurm().render(asked).files}
    script = folder / "host.sh"
    script.write_text(files["host.sh"].text.replace("exec ", "printf '%s ' "))
    missing = subprocess.run(["sh", script], capture_output=True, text=True, check=False, timeout=20)
    assert missing.returncode == 3 and str(folder) in missing.stdout
    (folder / "join-token").write_text("secret")
    there = subprocess.run(["sh", script], capture_output=True, text=True, check=False, timeout=20)
    assert there.returncode == 0 and f"--join-token-file {folder}/join-token" in there.stdout
    assert stat.filemode(stat.S_IFREG | files["join-token"].mode) == "-rw-------"
    assert "secret" not in files["host.sh"].text


# ---- Kubernetes -----------------------------------------------------------------------------------------------------


def manifests(**changes: Any) -> list[dict[str, Any]]:
    (file,) = Kubernetes().render(request("kubernetes", **changes)).files
    assert file.mode == 0o600, "it holds the token"
    items: list[dict[str, Any]] = json.loads(file.text)["items"]
    return items


def test_the_schema_takes_the_manifests_and_finds_a_planted_fault() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for item in manifests():
        validate.validate(item, "1.29", strict=True)
    job = manifests()[2]
    job["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] = "yes"
    with pytest.raises(validate.ValidationError):
        validate.validate(job, "1.29", strict=True)
    job = manifests()[2]
    job["spec"]["completion"] = 8
    with pytest.raises(validate.ValidationError):
        validate.validate(job, "1.29", strict=True)


def test_the_token_is_in_the_secret_alone() -> None:
    secret, *others = manifests()
    assert secret["stringData"]["join-token"] == "secret"
    assert "secret" not in json.dumps(others).replace('"secret": {"secretName"', "")


@pytest.mark.parametrize("arguments", [(), ("namespace=x",), ("image",), ("image=",), ("image=a", "imge=b")])
def test_arguments_that_make_no_sense(arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="image="):
        manifests(arguments=arguments)


# ---- Ray ------------------------------------------------------------------------------------------------------------


def test_an_actor_is_told_all_that_its_host_needs_and_nothing_is_written() -> None:
    rendering = Ray().render(request("ray"))
    actor = json.loads(rendering.submission)
    assert (rendering.files, rendering.commands) == ((), ())
    assert "secret" not in repr(rendering) and "secret" not in " ".join(actor["arguments"]["command"])
    assert actor["arguments"]["files"] == {"join-token": "secret"}
    assert actor["placement_group"]["bundle"] == {
        "CPU": actor["options"]["num_cpus"],
        "GPU": actor["options"]["num_gpus"],
    }


@pytest.mark.parametrize(
    "argument", ["placement=wide", "restarts=many", "restarts=-1", "authentication=off", "partition=gpu"]
)
def test_what_ray_is_not_told(argument: str) -> None:
    with pytest.raises(UsageError, match=argument):
        Ray().render(request("ray", arguments=(argument,)))


def test_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'fdt\[ray\]'"):
        check(placing("ray"), NETWORK)


@pytest.mark.parametrize(("autoscaling", "asked"), [("no", ["connect", "check"]), ("yes", ["connect"])])
def test_the_sizes_of_nodes_count_where_no_others_come(
    autoscaling: str, asked: list[str], driver: Callable[[str], Ray], tmp_path: Path
) -> None:
    driver(_WRITES_DOWN.format(file=str(tmp_path / "asked")))
    check(placing("ray", arguments=(f"autoscaling={autoscaling}",)), NETWORK)
    assert (tmp_path / "asked").read_text().split() == asked


def test_without_a_driver_there_are_no_hosts() -> None:
    asked = request("ray")
    assert Ray().observe("fdt-a", {"host": asked})["host"].ended
    Ray().stop(["host"])
    Ray().sweep("fdt-a")


_CONNECTS = """
import json, sys
def answer(number, said=None):
    print(json.dumps({"number": number, "kind": "done", "said": said}), flush=True)
sys.stdin.readline()
answer(1)
"""
_WRITES_DOWN = """
file = open({file!r}, "w")
print("connect", file=file, flush=True)
for line in sys.stdin:
    question = json.loads(line)
    print(question["do"], file=file, flush=True)
    answer(question["number"])
"""
_LATE = """
sys.stdin.readline()
answer(2)
sys.stdin.readline(), sys.stdin.readline()
for number in (3, 4):
    answer(number, {"host": {"waits": number == 4, "ended": False, "reason": "r"}})
sys.stdin.read()
"""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Ray]:
    """Ray with a driver that does what a test wants once it is connected."""

    def of(code: str) -> Ray:
        monkeypatch.setattr("fdt.pool.scheduling.ray._COMMAND", [sys.executable, "-c", _CONNECTS + code])
        monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
        return Ray()

    return of


def test_a_driver_that_ends_is_a_cluster_that_does_not_answer(driver: Callable[[str], Ray]) -> None:
    scheduler = driver("sys.exit('the cluster is gone')")
    with pytest.raises(SchedulerUnreachableError, match="the cluster is gone"):
        scheduler.start(request("ray"))
    assert scheduler.observe("fdt-a", {"host": request("ray")})["host"].ended
    scheduler.sweep("fdt-a")


def test_an_answer_that_comes_late_is_not_taken_for_the_next_one(
    driver: Callable[[str], Ray], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = driver(_LATE)
    scheduler.start(request("ray"))
    with monkeypatch.context() as patch:
        patch.setattr("fdt.pool.scheduling.ray._LIMIT_S", 0.0)
        with pytest.raises(SchedulerUnreachableError, match="no answer"):
            scheduler.stop(["host"])
    assert scheduler.observe("fdt-a", {"host": request("ray")})["host"].waits
    monkeypatch.setattr("fdt.pool.scheduling.ray._LIMIT_S", 0.0)
    with pytest.raises(SchedulerUnreachableError):
        scheduler.sweep("fdt-a")
