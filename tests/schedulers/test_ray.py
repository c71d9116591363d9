"""Ray, real: two nodes on this machine, which a pool asks for, trains on, loses, gives back and leaves as they were."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fdt.pool.scheduling.ray import Ray
from tests.helpers.placed import DIGITS, LIMIT_S, Pool, figures, hosts_of, left_alone, serving
from tests.helpers.processes import PYTHON, background, run, run_python
from tests.helpers.ray import Cluster, ray_cluster
from tests.helpers.scheduler_contract import SchedulerContract, silent  # noqa: F401
from tests.helpers.waiting import wait_until

# `tests/contract` has the same questions for a scheduler that is simulated.
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_cluster() as running:
        yield running


@pytest.fixture
def pool(cluster: Cluster, tmp_path: Path) -> Iterator[Pool]:
    with serving(cluster, tmp_path, "--", "placement=spread") as running:
        yield running


class TestContract(SchedulerContract):
    @pytest.fixture
    def name(self) -> str:
        return "ray"

    @pytest.fixture
    def scheduler(self, cluster: Cluster) -> Iterator[Ray]:
        scheduler = Ray()
        yield scheduler
        scheduler.sweep("")
        wait_until(lambda: not cluster.queue(), lambda: str(cluster.queue()), LIMIT_S)


def test_two_nodes_of_which_one_is_killed_train_what_plain_python_does(
    cluster: Cluster, pool: Pool, tmp_path: Path
) -> None:
    """Hosts come for a job, each to a node of its own; a killed one is begun again by Ray, and idle ones go."""
    arguments = ("--epochs", "12")
    plain = run_python(DIGITS, *arguments, limit_s=LIMIT_S).expect(0)
    with background(pool.fdt("run", "--workers", "2", str(DIGITS), *arguments), cwd=tmp_path) as training:
        training.wait_for_line("Epoch 3/", LIMIT_S)
        assert len(cluster.nodes_in_use()) == 2 and pool.said("joined with 1 worker(s)") == 2
        for pid in (pool.process.pid, *(host.pid for host in pool.hosts())):
            assert "_raylet" not in Path(f"/proc/{pid}/maps").read_text(), "only the driver has loaded Ray"
        killed = pool.hosts()[1]
        names = sorted(_name(host) for host in pool.hosts())
        os.kill(killed.pid, signal.SIGKILL)
        pool.waits_until_it_says("joined with 1 worker(s)", times=3)
        assert sorted(_name(host) for host in pool.hosts()) == names, "begun again, not replaced"
        training.wait_for_end(LIMIT_S).expect(0)
    assert pool.said("was lost") == 1, pool.process.so_far().describe()
    assert figures(training.so_far()) == figures(plain), training.so_far().describe()
    pool.waits_until_it_says("was given back", times=2)
    wait_until(lambda: not cluster.queue(), lambda: str(cluster.queue()), LIMIT_S)


def test_who_waits_is_told_rays_reason_and_who_is_cancelled_leaves_nothing(
    cluster: Cluster, pool: Pool, tmp_path: Path
) -> None:
    with cluster.occupied(), background(pool.fdt("run", "--workers", "2", str(DIGITS)), cwd=tmp_path) as training:
        training.wait_until(lambda so_far: "asked of ray: pending (" in so_far.stderr, LIMIT_S)
        assert re.search(r"2 more host\(s\) asked of ray: pending \(no node has 1 CPU free", pool.reason())
        run(pool.fdt("cancel", "job-1"), limit_s=LIMIT_S).expect(0)
        assert training.process.wait(LIMIT_S) != 0
        wait_until(lambda: not cluster.queue(), lambda: str(cluster.queue()), LIMIT_S)


def test_who_counts_on_nodes_to_come_waits_for_them(cluster: Cluster, tmp_path: Path) -> None:
    """With `autoscaling=yes`, what no node has is waited for; nobody else begins nodes here, so none comes."""
    with serving(cluster, tmp_path, "--gpus", "1", "--", "autoscaling=yes") as pool:
        with background(pool.fdt("run", "--workers", "1", str(DIGITS)), cwd=tmp_path) as training:
            training.wait_until(lambda so_far: "1 GPU" in so_far.stderr, LIMIT_S)
            assert re.search(r"1 more host\(s\) asked of ray: pending \(no node has 1 CPU, 1 GPU", pool.reason())
            run(pool.fdt("cancel", "job-1"), limit_s=LIMIT_S).expect(0)
            assert training.process.wait(LIMIT_S) != 0
        wait_until(lambda: not cluster.queue(), lambda: str(cluster.queue()), LIMIT_S)


def test_a_run_brings_its_hosts_and_takes_them_along(cluster: Cluster, tmp_path: Path) -> None:
    """Asynchronous, over two nodes, with a pool, a certificate and tokens that live as long as the run."""
    shared = tmp_path / "shared"
    options = ["--mode", "async", "--workers", "2", "--shared-folder", str(shared), "--scheduler-arg=placement=spread"]
    command = [PYTHON, "-m", "fdt", "run", *cluster.on, *options, str(DIGITS), "--epochs", "6"]
    with background(command, cwd=tmp_path) as training:
        training.wait_for_line("Epoch 1/", LIMIT_S)
        wait_until(lambda: len(cluster.hosts()) == 2, lambda: training.so_far().describe(), LIMIT_S)
        hosts = cluster.hosts()
        address = hosts[0].cmdline()[hosts[0].cmdline().index("--join") + 1]
        secret = (cluster.folder / "token").read_text()
        for process in [each for host in hosts for each in (host, *host.children(recursive=True))]:
            assert secret not in repr(process.environ()) and "RAY_AUTH" not in repr(process.environ())
        training.wait_for_end(LIMIT_S).expect(0)
    assert "was lost" not in training.so_far().stderr and training.so_far().stderr.count("host(s) asked of ray") < 10
    (accuracy,) = re.findall(r"test accuracy (\S+)", training.so_far().stdout)
    assert float(accuracy) > 0.85
    left_alone(cluster, shared, address)


def test_a_pool_that_is_killed_takes_its_hosts_along(cluster: Cluster, tmp_path: Path) -> None:
    """Ray ends the actors of a driver that is no more."""
    options = ["--hosts", "1", "--listen", "127.0.0.1:0", "--shared-folder", str(tmp_path / "shared")]
    with background([PYTHON, "-m", "fdt", "serve", *cluster.on, *options], cwd=tmp_path) as process:
        pool = Pool(process)
        pool.waits_until_it_says("joined with 1 worker(s)")
        process.process.kill()
        wait_until(lambda: not cluster.queue(), lambda: str(cluster.queue()), LIMIT_S)
        wait_until(lambda: not hosts_of(pool.address), lambda: str(hosts_of(pool.address)), LIMIT_S)


@pytest.mark.parametrize(
    ("arguments", "changes", "words"),
    [
        (["--gpus", "4"], {}, "expected 4 CPU, 4 GPU, and the most that one has is 2 CPU, 0 GPU"),
        ([], {"RAY_AUTH_MODE": "disabled"}, "lets everybody in"),
        ([], {"RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": "a" * 64}, "Ray"),
        (["--scheduler-arg=address=127.0.0.1:9"], {}, "Ray does not answer"),
        (["--scheduler-arg=placement=wide"], {}, "placement=pack or spread"),
    ],
)
def test_what_ray_would_never_grant_is_refused_before_the_script_starts(
    cluster: Cluster, tmp_path: Path, arguments: list[str], changes: dict[str, str], words: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('the script has begun')\n")
    command = [PYTHON, "-m", "fdt", "run", *cluster.on, "--shared-folder", str(tmp_path / "s"), *arguments, str(script)]
    finished = run(command, limit_s=LIMIT_S, cwd=tmp_path, **changes).expect(2)
    assert words in finished.stderr and "begun" not in finished.stdout
    assert not cluster.queue() and not (tmp_path / "s").exists()


def _name(host: psutil.Process) -> str:
    return host.cmdline()[host.cmdline().index("--name") + 1]
