"""A pool of several hosts: where a job's workers go, and every way in which a host can go, as lists of events."""

import ipaddress
from collections.abc import Mapping, Sequence

import pytest

from fdt.base.config import Network, ServeConfig
from fdt.base.limits import DEFAULT
from fdt.base.network import choose, holds
from fdt.base.worker_bounds import Bounds, all_workers_bytes
from fdt.errors import FdtError, UsageError, VersionError
from fdt.pool import hosts
from fdt.pool.relay import Outbox
from fdt.pool.state.entities import JobState
from fdt.pool.state.events import (
    Assign,
    DropHost,
    EndJob,
    EndWorker,
    HostGone,
    HostJoined,
    Instruction,
    KillWorker,
    Say,
    StartWorker,
    Submitted,
    TellFailed,
    TellQueued,
    TellStarted,
    Tick,
    WelcomeHost,
    WorkerClosed,
    WorkerExited,
    WorkerJoined,
    WorkerReady,
    WorkerSilent,
)
from fdt.pool.state.worker_starts import MAX_FAILED_STARTS, Processes
from fdt.pool.worker_keys import WorkerKeys
from fdt.v1 import host_pb2
from fdt.worker import network_namespace
from fdt.worker.runtime import Place, Placement
from tests.unit.test_jobs import MODES, ONE_PROCESS, Pool, failed, only

TWO_MODES = {**MODES, "async": ONE_PROCESS}


class Hosts(Pool):
    """One worker of its own, and two on a host that joined."""

    def __init__(self, own: int = 1, joined: Sequence[int] = (2,), modes: Mapping[str, Processes] = MODES) -> None:
        super().__init__(own, modes)
        for number, slots in enumerate(joined, 1):
            self.join(number, slots)
        self.warm()

    def join(self, number: int, slots: int = 2) -> list[Instruction]:
        return self(HostJoined(0.5, f"host-{number}", f"node{number} (10.0.0.{number})", slots))

    def lose(self, number: int = 1, reason: str = "left the pool", time_s: float = 5.0) -> list[Instruction]:
        return self(HostGone(time_s, f"host-{number}", reason))

    def on(self, number: int) -> list[str]:
        """The names of the workers of a host."""
        return [name for name, worker in self.state.workers.items() if worker.host == f"host-{number}"]


def test_a_host_brings_its_workers() -> None:
    pool = Hosts()
    assert only(StartWorker, pool.out) == [
        StartWorker("sync-1", "sync"),
        StartWorker("sync-2", "sync", "host-1"),
        StartWorker("sync-3", "sync", "host-1"),
    ]
    assert pool.out.index(WelcomeHost("host-1")) < pool.out.index(StartWorker("sync-2", "sync", "host-1"))
    assert only(Say, pool.out) == [Say("host node1 (10.0.0.1) joined with 2 worker(s); the pool has 3")]
    assert pool.state.hosts.num_workers == 3


def test_ranks_fill_the_own_machine_first_then_hosts_as_they_joined() -> None:
    pool = Hosts(own=1, joined=(2, 2))
    assert pool.submit("a", 4) == [Assign("a", ("sync-1", "sync-2", "sync-3", "sync-4"))]
    assert pool.state.jobs["a"].places == (("", 1), ("host-1", 2), ("host-2", 1))
    assert pool.submit("b", 1) == [Assign("b", ("sync-5",))]
    assert pool.state.jobs["b"].places == (("host-2", 1),)
    assert pool.submit("c", 1) == [TellQueued("c", 1, "5 of 5 worker(s) are busy")]


def test_a_pool_whose_hosts_bring_all_workers() -> None:
    pool = Hosts(own=0, joined=())
    assert pool.out == []
    assert "has 0 worker(s)" in only(TellFailed, pool.submit("a", 1))[0].message
    pool.join(1, 1)
    pool.warm()
    assert pool.submit("b", 1) == [Assign("b", ("sync-1",))]


def test_slots_decide_not_who_is_warm_first() -> None:
    pool = Pool(1)
    pool(HostJoined(0.5, "host-1", "node1", 1))
    pool(WorkerReady(1.0, "sync-2"))
    assert pool.submit("a", 1) == [TellQueued("a", 1, "workers are starting")]
    assert pool(WorkerReady(2.0, "sync-1")) == [Assign("a", ("sync-1",))]


def test_whole_life_over_hosts() -> None:
    pool = Hosts()
    workers = pool.running("a")
    assert only(TellStarted, pool.out) == [TellStarted("a")]
    out = pool(*(WorkerClosed(4.0, name) for name in workers))
    assert only(EndWorker, out) == [EndWorker(name) for name in workers]
    assert only(StartWorker, out) == [
        StartWorker("sync-4", "sync"),
        StartWorker("sync-5", "sync", "host-1"),
        StartWorker("sync-6", "sync", "host-1"),
    ], "each host is warm again by itself"


@pytest.mark.parametrize("mode", TWO_MODES)
def test_a_job_is_on_one_host_if_one_has_room(mode: str) -> None:
    pool = Hosts(own=1, joined=(2, 3), modes=TWO_MODES)
    pool.submit("a", 2, mode=mode)
    assert pool.state.jobs["a"].places == (("host-1", 2),)
    pool.submit("b", 3, mode=mode)
    assert pool.state.jobs["b"].places == (("host-2", 3),)


def test_a_mode_with_a_process_a_host() -> None:
    pool = Hosts(own=1, joined=(2, 3), modes=TWO_MODES)
    pool.submit("a", 6, mode="async")
    job = pool.state.jobs["a"]
    assert job.places == (("", 1), ("host-1", 2), ("host-2", 3))
    assert [pool.state.workers[name].host for name in job.workers] == ["", "host-1", "host-2"]


def test_a_job_with_a_process_on_the_pools_own_machine_beside_those_of_its_workers() -> None:
    pool = Hosts(own=0, joined=(2,), modes=TWO_MODES)
    out = pool(Submitted(2.0, "a", "async", 2, needs_pool=True))
    (own,) = only(StartWorker, out)
    assert (own.mode, own.host) == ("async", ""), "none was kept ready"
    out = pool(WorkerReady(3.0, own.worker))
    job = pool.state.jobs["a"]
    assert job.places == (("", 0), ("host-1", 2))
    assert job.workers[0] == own.worker and only(Assign, out) == [Assign("a", job.workers)]
    assert pool.state.num_busy == 2
    out = pool(*(WorkerJoined(4.0, name) for name in job.workers), *(WorkerClosed(5.0, name) for name in job.workers))
    assert [worker.host for worker in only(StartWorker, out)] == ["host-1"], "nor is one afterwards"


def test_a_job_that_has_a_worker_there_needs_no_other_process() -> None:
    pool = Hosts(own=1, joined=(2,), modes=TWO_MODES)
    pool(Submitted(2.0, "a", "async", 3, needs_pool=True))
    assert pool.state.jobs["a"].places == (("", 1), ("host-1", 2))


@pytest.mark.parametrize(
    "reason", ["left the pool", "was lost: its connection broke", "has stopped answering: nothing was heard for 11 s"]
)
def test_a_host_goes_and_its_jobs_fail_by_its_name(reason: str) -> None:
    pool = Hosts()
    own, *others = pool.running("a")
    out = pool.lose(1, reason)
    cause = pool.failure("a")
    assert (cause.error, cause.rank) == ("WorkerLostError", 1)
    assert cause.message == f"Host node1 (10.0.0.1) {reason}. Rank(s) [1, 2] of job a ran there."
    assert only(KillWorker, out) == [KillWorker(own)], "the others went with their host"
    assert only(EndJob, out) == [EndJob("a")] and DropHost("host-1", reason) in out
    assert only(StartWorker, out) == [StartWorker("sync-4", "sync")]
    assert not set(others) & set(pool.state.workers) and pool.state.hosts.num_workers == 1


def test_the_pool_is_usable_with_what_is_left() -> None:
    pool = Hosts()
    pool.running("a")
    pool.lose()
    pool.warm()
    assert pool.submit("b", 1)[0] == Assign("b", ("sync-4",))
    assert "has 1 worker(s)" in only(TellFailed, pool.submit("c", 3))[0].message
    pool.join(2, 2)
    pool.warm()
    assert pool.submit("d", 2)[0] == Assign("d", ("sync-5", "sync-6"))


def test_jobs_elsewhere_go_on() -> None:
    pool = Hosts(own=1, joined=(1, 1))
    pool.submit("a", 1)
    pool.submit("b", 1)
    pool.submit("c", 1)
    pool.lose(1)
    assert pool.failure("b").rank == 0
    assert [pool.state_of(job) for job in "abc"] == [JobState.STARTING, JobState.FAILED, JobState.STARTING]


def test_a_waiting_job_that_no_longer_fits_is_told() -> None:
    pool = Hosts(own=1, joined=(2,))
    pool.submit("a", 1)
    pool.submit("b", 3)
    pool.submit("c", 1)
    out = pool.lose(1)
    cause = pool.failure("b")
    assert cause.error == "CapacityError" and "node1" in cause.message and "has 1 worker(s)" in cause.message
    assert TellQueued("c", 1, "1 of 1 worker(s) are busy") in out


def test_errors_of_the_others_before_the_host_is_missed() -> None:
    """Horovod's ranks fail within half a second of a lost peer, and say so first."""
    pool = Hosts()
    own, *_ = pool.running("a")
    assert pool(failed(own, time_s=4.9, noticed_s=4.9)) == []
    pool.lose(1, "was lost: its connection broke", time_s=5.0)
    assert "node1" in pool.failure("a").message


def test_errors_of_the_others_after_the_host_is_missed() -> None:
    pool = Hosts()
    own, *others = pool.running("a")
    pool.lose(1)
    late = [failed(own, 5.1), WorkerExited(5.1, own, -9), *(WorkerExited(5.2, name, -9) for name in others)]
    late += [WorkerReady(5.3, others[0]), WorkerSilent(5.4, others[1], 9.0), WorkerClosed(5.5, others[0])]
    assert only(TellFailed, pool(*late)) == []
    assert "node1" in pool.failure("a").message


def test_a_host_that_goes_twice_or_never_came() -> None:
    pool = Hosts()
    pool.lose(1)
    assert pool.lose(1, "was lost: its connection broke") == []
    assert pool.lose(7) == []


def test_the_own_machine_cannot_go() -> None:
    pool = Hosts()
    assert pool(HostGone(5.0, "", "left the pool")) == [] and pool.state.hosts.num_workers == 3


def test_a_host_goes_while_its_job_starts() -> None:
    pool = Hosts()
    pool.submit("a", 3)
    pool(WorkerJoined(3.0, "sync-1"))
    pool.lose(1)
    assert pool.failure("a").rank == 1 and only(TellStarted, pool.out) == []


def test_a_host_goes_when_its_ranks_have_handed_in_everything() -> None:
    pool = Hosts()
    own, *others = pool.running("a")
    pool(*(WorkerClosed(4.0, name) for name in others))
    pool.lose(1)
    assert pool.state_of("a") is JobState.RUNNING
    pool(WorkerClosed(5.0, own))
    assert pool.state_of("a") is JobState.FINISHED


def test_a_host_goes_when_its_job_has_ended() -> None:
    pool = Hosts()
    workers = pool.running("a")
    pool(*(WorkerClosed(4.0, name) for name in workers))
    assert only(TellFailed, pool.lose(1)) == []


def test_a_rank_elsewhere_is_named_with_its_host() -> None:
    for event, words in (
        (WorkerExited(5.0, "sync-3", -9), "Rank 2 of job a on host node1 (10.0.0.1) ended with signal 9 (SIGKILL)"),
        (WorkerSilent(5.0, "sync-3", 11.0), "Rank 2 of job a on host node1 (10.0.0.1) has stopped answering"),
    ):
        pool = Hosts()
        pool.running("a")
        pool(event)
        assert words in pool.failure("a").message
    pool = Hosts()
    pool.running("a")
    pool(failed("sync-3", 5.0, 5.0), Tick(5.5))
    assert pool.failure("a").message == "from sync-3 (It ran on host node1 (10.0.0.1).)"


def test_ranks_that_do_not_meet_are_named_with_their_host() -> None:
    pool = Hosts()
    pool.submit("a", 3, time_s=2.0)
    pool(WorkerJoined(3.0, "sync-1"), WorkerJoined(3.0, "sync-2"), Tick(52.0))
    assert "Rank(s) [2]" in pool.failure("a").message and "node1" in pool.failure("a").message


def test_a_host_that_cannot_start_workers_is_sent_away() -> None:
    pool = Hosts(own=1, joined=())
    pool.running("a")
    pool.join(1, 1)
    for number in range(MAX_FAILED_STARTS):
        (name,) = pool.on(1)
        out = pool(WorkerExited(3.0 + number, name, 1, "ImportError: no runtime"))
    (dropped,) = only(DropHost, out)
    assert "ImportError: no runtime" in dropped.reason and "exit status 1" in dropped.reason
    assert pool.state_of("a") is JobState.RUNNING and pool.state.hosts.num_workers == 1


def test_hosts_too_slow_to_start_are_sent_away_once() -> None:
    pool = Hosts(own=1, joined=())
    pool.running("a")
    pool.join(1, 3)
    out = pool(Tick(1000.0))
    assert len(only(DropHost, out)) == 1 and not pool.on(1)
    assert "not ready after 100 s" in only(DropHost, out)[0].reason


# ---- who may join ---------------------------------------------------------------------------------------------------

NETWORK = Network("eth1", "10.0.0.1", "10.0.0.0/24")
VERSIONS = {"fdt": "0.1.0", "tensorflow": "2.18.1", "horovod": "0.28.1", "python": "3.11"}


NOW_S = 1.7e9


def hello(**changes: object) -> host_pb2.Hello:
    fields = {"name": "node7", "num_workers": 2, "num_cores": 4, "address": "10.0.0.7", "interface": "eth0"}
    return host_pb2.Hello(**{**fields, "versions": VERSIONS, **changes})


def admit(asking: host_pb2.Hello, network: Network | None = NETWORK, joined: Sequence[hosts.JoinedHost] = ()) -> None:
    hosts.admit(asking, ServeConfig(token="t", network=network), VERSIONS, joined, NOW_S)


def test_a_host_like_the_pool_may_join() -> None:
    admit(hello())


@pytest.mark.parametrize(("workers", "each"), [(1, 6_000), (2, 5_000), (8, 5_000)])
def test_workers_of_a_job_share_the_memory_of_their_host(workers: int, each: int) -> None:
    """Two of them are there at most; the bound of one worker is 6,000 bytes."""
    telling = hello(worker_memory_bytes=6_000, all_memory_bytes=10_000)
    assert hosts.JoinedHost("host-1", telling, Outbox(1), WorkerKeys()).memory_of_each(workers) == each
    assert hosts.JoinedHost("host-2", hello(), Outbox(1), WorkerKeys()).memory_of_each(workers) is None
    together = all_workers_bytes()
    assert Bounds(together).memory_of_each(workers) == together // workers
    assert Bounds(1_000).memory_of_each(workers) == 1_000


@pytest.mark.parametrize(
    ("name", "version"), [("fdt", "0.2.0"), ("tensorflow", "2.17.0"), ("horovod", ""), ("python", "3.12")]
)
def test_other_versions_are_named_with_the_remedy(name: str, version: str) -> None:
    with pytest.raises(VersionError) as refused:
        admit(hello(versions={**VERSIONS, name: version}))
    text = str(refused.value)
    assert f"{name} {version or 'none'} on the host, {VERSIONS[name]} in the pool" in text
    assert "make install" in text and "node7" in text
    assert not [other for other in VERSIONS if other != name and f"{other} {VERSIONS[other]}" in text]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"address": "10.0.1.7"}, "10.0.0.0/24"),
        ({"address": "127.0.0.1"}, "trusted network"),
        ({"address": "fe80::1"}, "trusted network"),
        ({"address": "pool"}, "trusted network"),
        ({"num_workers": 0}, "slots=0"),
        ({"num_workers": 100_000}, "slots=100000"),
        ({"interface": ""}, "interface"),
    ],
)
def test_hosts_that_make_no_sense(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        admit(hello(**changes))


@pytest.mark.parametrize(("ahead_s", "words"), [(3600.0, "3600 s apart.*ahead"), (-300.0, "300 s apart.*behind")])
def test_clocks_apart(ahead_s: float, words: str) -> None:
    with pytest.raises(UsageError, match=f"node7 .*{words}") as refused:
        admit(hello(time_s=NOW_S + ahead_s))
    assert "NTP" in str(refused.value)


@pytest.mark.parametrize("time_s", [0.0, NOW_S - 30.0, NOW_S + 30.0])
def test_clocks_that_agree_or_are_not_told(time_s: float) -> None:
    admit(hello(time_s=time_s))


def test_all_hosts_open_servers_or_none() -> None:
    with pytest.raises(UsageError, match="on the pool False, on the host True"):
        admit(hello(open_servers=True))
    open_pool = ServeConfig(token="t", network=NETWORK, open_servers=True)
    with pytest.raises(UsageError, match="on the pool True, on the host False"):
        hosts.admit(hello(), open_pool, VERSIONS, (), NOW_S)
    hosts.admit(hello(open_servers=True), open_pool, VERSIONS, (), NOW_S)


def test_a_host_that_has_no_namespaces_is_named_with_what_is_missing() -> None:
    able = hosts.JoinedHost("host-1", hello(), Outbox(1), WorkerKeys())
    unable = hosts.JoinedHost("host-2", hello(unisolated="no\nnamespace"), Outbox(1), WorkerKeys())
    hosts.check_tunnels([able, able])
    with pytest.raises(UsageError) as caught:
        hosts.check_tunnels([able, unable])
    assert f"{unable.label}: nonamespace. Remedy:" in str(caught.value)
    assert "--open-servers" in str(caught.value)


@pytest.mark.parametrize(
    ("tunnels", "several", "is_open", "missing", "expected"),
    [
        (False, False, False, "", network_namespace.Network.SHARED),
        (True, False, False, "", network_namespace.Network.OWN),
        (True, True, False, "", network_namespace.Network.TUNNEL),
        (False, True, False, "", network_namespace.Network.HOST),
        (True, True, True, "", network_namespace.Network.HOST),
        *(
            (tunnels, several, False, "no", network_namespace.Network.HOST)
            for tunnels in (False, True)
            for several in (False, True)
        ),
    ],
)
def test_which_network_workers_see(
    tunnels: bool, several: bool, is_open: bool, missing: str, expected: network_namespace.Network
) -> None:
    assert network_namespace.network_for(tunnels, several, is_open, missing) is expected


def test_it_is_said_which_network_workers_see() -> None:
    own, host = network_namespace.Network.TUNNEL, network_namespace.Network.HOST
    assert network_namespace.describe({"async": own}, "") == "worker processes see no network but their job's"
    assert network_namespace.describe({"async": own, "sync": host}, "").endswith(
        "except for --mode sync: this machine's"
    )
    assert "see this machine's network (no namespace). Remedy: allow" in network_namespace.describe(
        {"async": host}, "no namespace"
    )


def test_a_pool_that_takes_no_hosts() -> None:
    with pytest.raises(UsageError, match="--trusted-network"):
        admit(hello(), network=None)


def test_a_pool_that_is_full_of_hosts() -> None:
    others = [
        hosts.JoinedHost(f"host-{n}", hello(num_workers=1), Outbox(1), WorkerKeys()) for n in range(DEFAULT.hosts)
    ]
    with pytest.raises(UsageError, match="as large as it may be"):
        admit(hello(), joined=others)
    with pytest.raises(UsageError, match="as large as it may be"):
        admit(
            hello(),
            joined=[hosts.JoinedHost("host-1", hello(num_workers=DEFAULT.joined_workers), Outbox(1), WorkerKeys())],
        )


@pytest.mark.parametrize(
    "config",
    [
        ServeConfig(num_workers=0),
        ServeConfig(num_workers=-1, network=NETWORK, token="t"),
        ServeConfig(network=NETWORK),
        ServeConfig(network=NETWORK, token="t", join_token="t"),
    ],
)
def test_pools_that_make_no_sense(config: ServeConfig) -> None:
    with pytest.raises(FdtError):
        hosts.check(config)
    hosts.check(ServeConfig(num_workers=0, network=NETWORK, token="t"))
    hosts.check(ServeConfig(num_workers=0, network=NETWORK, token="t", join_token="u"))


def test_a_name_from_elsewhere_is_shown_in_one_line() -> None:
    host = hosts.JoinedHost("host-1", hello(name="no\nde\x1b[2J" + "x" * 1000), Outbox(1), WorkerKeys())
    assert host.label.startswith("node[2J") and len(host.label) < 100


# ---- the network that the operator trusts ---------------------------------------------------------------------------

OWN = {
    "lo": [ipaddress.IPv4Interface("127.0.0.1/8")],
    "eth0": [ipaddress.IPv4Interface("192.0.2.5/24")],
    "eth1": [ipaddress.IPv4Interface("10.0.0.5/16"), ipaddress.IPv4Interface("10.9.0.5/16")],
    "wg0": [ipaddress.IPv4Interface("10.8.0.5/32")],
}


@pytest.mark.parametrize(
    ("named", "address", "expected"),
    [
        ("eth0", None, Network("eth0", "192.0.2.5", "192.0.2.0/24")),
        ("192.0.2.5", None, Network("eth0", "192.0.2.5", "192.0.2.0/24")),
        ("eth1", "10.9.0.5", Network("eth1", "10.9.0.5", "10.9.0.0/16")),
        ("10.0.0.0/24", None, Network("eth1", "10.0.0.5", "10.0.0.0/24")),
        ("10.8.0.0/24", None, Network("wg0", "10.8.0.5", "10.8.0.0/24")),
    ],
)
def test_network(named: str, address: str | None, expected: Network) -> None:
    assert choose(OWN, named, address) == expected


@pytest.mark.parametrize(
    ("named", "address", "words"),
    [
        ("eth1", None, "--interface ADDRESS"),
        ("0.0.0.0/0", None, "--interface ADDRESS"),
        ("eth9", None, "not on that network"),
        ("0.0.0.0", None, "not on that network"),
        ("192.0.2.6", None, "not on that network"),
        ("eth0", "10.0.0.5", "not on that network"),
        ("10.0.0.0/99", None, "such as 10.0.0.0/24"),
        ("fe80::/10", None, "such as 10.0.0.0/24"),
    ],
)
def test_networks_that_make_no_sense(named: str, address: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose(OWN, named, address)


def test_what_a_network_holds() -> None:
    assert holds(NETWORK, "10.0.0.254")
    assert not any(holds(NETWORK, address) for address in ("10.0.1.1", "::1", "node", ""))


def test_placement() -> None:
    one, two = Place("host-1", "10.0.0.2", "eth0"), Place("host-2", "10.0.0.3", "eth0")
    assert Placement((Place(), Place())).hosts == ("",)
    spread = Placement((Place(), one, one, two))
    assert spread.hosts == ("", "host-1", "host-2")
    assert Placement((one, one)).hosts == ("host-1",)
