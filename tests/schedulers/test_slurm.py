"""Slurm, real: two nodes on this machine, which a pool asks for, trains on, loses, gives back and leaves as they were."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdt.pool.scheduling.slurm import Slurm
from tests.helpers.placed import DIGITS, LIMIT_S, Pool, figures, left_alone, serving
from tests.helpers.processes import PYTHON, background, run, run_python
from tests.helpers.scheduler_contract import SchedulerContract, silent  # noqa: F401
from tests.helpers.slurm import Cluster, slurm
from tests.helpers.waiting import wait_until

EPOCHS = 40
# After these the run loses a host, each time in another way.
LOST_AFTER = {3: "killed", 10: "requeued", 17: "cancelled", 24: "killed", 31: "killed"}

# `tests/contract` has the same questions for a scheduler that is simulated.
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm() as running:
        yield running


@pytest.fixture
def pool(cluster: Cluster, tmp_path: Path) -> Iterator[Pool]:
    with serving(cluster, tmp_path) as running:
        yield running


class TestContract(SchedulerContract):
    @pytest.fixture
    def name(self) -> str:
        return "slurm"

    @pytest.fixture
    def scheduler(self, cluster: Cluster) -> Iterator[Slurm]:
        yield Slurm()
        wait_until(lambda: not cluster.queue(), lambda: str(cluster.queue()), LIMIT_S)


def test_two_nodes_of_which_five_are_lost_train_what_plain_python_does(
    cluster: Cluster, pool: Pool, tmp_path: Path
) -> None:
    """Hosts come for a job, those that are killed, requeued and cancelled are replaced, and idle ones go."""
    arguments = ("--epochs", str(EPOCHS))
    plain = run_python(DIGITS, *arguments, limit_s=LIMIT_S).expect(0)
    with background(pool.fdt("run", "--workers", "2", str(DIGITS), *arguments), cwd=tmp_path) as training:
        for number, (epoch, how) in enumerate(LOST_AFTER.items()):
            training.wait_for_line(f"Epoch {epoch}/", LIMIT_S)
            pool.waits_until_it_says("joined with 1 worker(s)", times=2 + number)
            if how == "killed":
                os.kill(pool.hosts()[-1].pid, signal.SIGKILL)
            else:
                cluster.ask(
                    *{"requeued": ("scontrol", "requeue"), "cancelled": ("scancel",)}[how], cluster.running()[0]
                )
        training.wait_for_end(2 * LIMIT_S).expect(0)
    gone = pool.said("was lost") + pool.said("left the pool")
    assert gone == len(LOST_AFTER), pool.process.so_far().describe()
    assert figures(training.so_far()) == figures(plain), training.so_far().describe()
    pool.waits_until_it_says("was given back", times=2)
    wait_until(lambda: not cluster.queue(), lambda: str(cluster.queue()), LIMIT_S)
    assert pool.reason().split()[1] == "finished"


def test_at_the_time_limit_a_host_says_goodbye_and_another_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    """A limit of two minutes and a notice of one: the host is told to go when Slurm looks at limits, twice a minute."""
    arguments = ("--epochs", "8")
    plain = run_python(DIGITS, *arguments, limit_s=LIMIT_S).expect(0)
    script = tmp_path / "waits.py"
    # In the middle of its training it waits for a line of input.
    script.write_text(WAITS.format(digits=str(DIGITS)))
    with serving(cluster, tmp_path, "--", "--time=2") as pool:
        with background(pool.fdt("run", "--workers", "2", str(script), *arguments), cwd=tmp_path) as training:
            training.wait_for_line("waits after epoch 4", LIMIT_S)
            pool.waits_until_it_says("left the pool")
            (tmp_path / "go-on").touch()
            training.wait_for_end(LIMIT_S).expect(0)
        assert figures(training.so_far()) == figures(plain), training.so_far().describe()
        assert pool.said("was lost") == 0, pool.process.so_far().describe()


WAITS = """
import pathlib, runpy, sys, threading
import keras

class Waits(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 3:
            print("waits after epoch 4", flush=True)
            while not pathlib.Path("go-on").exists():
                threading.Event().wait(0.1)

fit = keras.Model.fit
keras.Model.fit = lambda self, *given, **named: fit(self, *given, callbacks=[Waits()], **named)
sys.argv[0] = {digits!r}
runpy.run_path({digits!r}, run_name="__main__")
"""


def test_who_waits_is_told_slurms_reason_and_who_is_cancelled_leaves_nothing(
    cluster: Cluster, pool: Pool, tmp_path: Path
) -> None:
    cluster.drain("drain")
    try:
        with background(pool.fdt("run", "--workers", "2", str(DIGITS)), cwd=tmp_path) as training:
            training.wait_until(lambda so_far: "asked of slurm: pending (" in so_far.stderr, LIMIT_S)
            told = r"2 more host\(s\) asked of slurm: pending \(.*(Node|Resources|DOWN|DRAINED)"
            wait_until(lambda: re.search(told, pool.reason()), pool.reason, LIMIT_S)
            assert cluster.queue() == ["PENDING"] * 2
            run(pool.fdt("cancel", "job-1"), limit_s=LIMIT_S).expect(0)
            assert training.process.wait(LIMIT_S) != 0
        wait_until(lambda: not cluster.queue(), lambda: str(cluster.queue()), LIMIT_S)
    finally:
        cluster.drain("resume")


def test_hosts_whose_workers_cannot_start_are_not_replaced_without_end(cluster: Cluster, tmp_path: Path) -> None:
    """With a bound on memory in which TensorFlow has no room."""
    with serving(cluster, tmp_path, "--memory", "32MiB") as pool:
        finished = run(pool.fdt("run", "--workers", "1", str(DIGITS)), limit_s=2 * LIMIT_S).expect(125)
        assert "3 hosts in a row could not serve a job" in finished.stderr and "32" in finished.stderr
        assert "cannot start workers of mode" in pool.reason()
        assert pool.said("joined with 1 worker(s)") == 3
        wait_until(lambda: not cluster.queue(), lambda: str(cluster.queue()), LIMIT_S)


def test_a_run_brings_its_hosts_and_takes_them_along(cluster: Cluster, tmp_path: Path) -> None:
    """Asynchronous, over two nodes, with a pool, a certificate and tokens that live as long as the run."""
    shared = tmp_path / "shared"
    options = ["--mode", "async", "--workers", "2", "--shared-folder", str(shared), str(DIGITS), "--epochs", "6"]
    with background([PYTHON, "-m", "fdt", "run", *cluster.on, *options], cwd=tmp_path) as training:
        training.wait_for_line("Epoch 1/", LIMIT_S)
        wait_until(lambda: len(cluster.hosts()) == 2, lambda: training.so_far().describe(), LIMIT_S)
        hosts = cluster.hosts()
        address = hosts[0].cmdline()[hosts[0].cmdline().index("--join") + 1]
        (token,) = shared.glob("*/join-token")
        secret = token.read_text().strip()
        for host in hosts:
            assert secret not in " ".join(host.cmdline()) and secret not in "".join(host.environ().values())
        training.wait_for_end(LIMIT_S).expect(0)
    (accuracy,) = re.findall(r"test accuracy (\S+)", training.so_far().stdout)
    assert float(accuracy) > 0.85
    left_alone(cluster, shared, address)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scheduler-arg=--partition=nope"], "invalid partition specified: nope"),
        (["--gpus", "4"], "generic resource"),
        (["--slots", "64", "--workers", "64"], "Requested node configuration is not available"),
    ],
)
def test_what_slurm_would_never_grant_is_refused_before_the_script_starts(
    cluster: Cluster, tmp_path: Path, arguments: list[str], words: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('the script has begun')\n")
    command = [PYTHON, "-m", "fdt", "run", *cluster.on, "--shared-folder", str(tmp_path / "s"), *arguments, str(script)]
    finished = run(command, limit_s=LIMIT_S, cwd=tmp_path).expect(2)
    assert words in finished.stderr and "begun" not in finished.stdout
    assert cluster.queue() == [] and not (tmp_path / "s").exists()
