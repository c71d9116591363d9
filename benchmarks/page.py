"""What does it cost to watch a pool? Processor time of its control process, with and without an open page, in turn.

    python benchmarks/page.py [--jobs N...] [--seconds S] [--rounds N]

No worker trains here: pictures are taken of a pool's own state with so many jobs, compared, encoded and sent, and one job is
shown in full with curves of ten minutes.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))
from fdt.base.config import Timing
from fdt.base.limits import DEFAULT
from fdt.pool import snapshot
from fdt.pool.observations import JobCurves, Observations
from fdt.pool.page.app import PoolActions
from fdt.pool.page.feed import Feed
from fdt.pool.page.server import PageServer
from fdt.pool.state.entities import Job, JobState
from fdt.pool.state.pool_state import PoolState
from tests.helpers.shown_pool import ShownPool


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def watch(client: httpx.Client, address: str, job: str, opened: threading.Event, ended: threading.Event) -> None:
    """Reads one stream as a browser does; its own reading is in the figure."""
    with client.stream("GET", f"http://{address}/events?job={job}") as stream:
        for _ in stream.iter_raw():
            opened.set()
            if ended.is_set():
                return


def pool_with(shown: ShownPool) -> Callable[[], snapshot.Snapshot]:
    """Returns what takes a picture of a pool's state that has the jobs of another, each with its workers' accounts."""
    seen, jobs, steps = Observations(DEFAULT.account_bytes), [], {}
    for job in shown.snapshot().jobs:
        names = tuple(f"worker-{rank}" for rank in range(job.num_processes))
        ends = {"state": JobState(job.state), "started_s": job.started_s, "ended_s": job.ended_s}
        jobs.append(
            Job(
                job.name,
                job.mode,
                job.num_workers,
                job.script,
                job.submitted_s,
                **ends,
                reason=job.reason,
                workers=names,
            )
        )
        seen.accounted(job.name, job.workers, job.started_s)
        steps[job.name] = job.steps
    state = PoolState(2, {"sync": lambda number: number}, Timing(), before=jobs)
    return lambda: snapshot.take(state, {}, seen, {}, lambda worker: "", steps.__getitem__)


def cost(num_jobs: int, seconds: float, *, is_watched: bool) -> float:
    """Returns seconds of a processor a second."""
    pool = ShownPool(num_jobs)
    kept = pool.curves(f"job-{num_jobs}")

    def curves(_: str) -> JobCurves:
        """What a job that runs has each second: rows more than before."""
        now_s = time.time()
        kept.steps.add(now_s, {"steps": 25 * now_s})
        kept.shown.add(now_s, {"loss": 0.3, "accuracy": 0.8})
        kept.spent.add(now_s, {"compute": 1.2 * now_s, "exchange": 0.5 * now_s, "wait": 0.3 * now_s})
        return kept.copy()

    server = PageServer("127.0.0.1:0", Feed(pool_with(pool), curves), PoolActions(str, lambda job: []))
    opened, ended = threading.Event(), threading.Event()
    with httpx.Client(timeout=60) as client:
        client.get(server.link())
        thread = threading.Thread(target=watch, args=(client, server.address, f"job-{num_jobs}", opened, ended))
        if is_watched:
            thread.start()
            opened.wait(30)
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        time.sleep(seconds)
        found = (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)
        ended.set()
        server.close()
        if is_watched:
            thread.join(30)
    return found


def main() -> int:
    options = parse_arguments()
    for num_jobs in options.jobs:
        taken: dict[bool, list[float]] = {False: [], True: []}
        for number in range(options.rounds):
            for is_watched in (False, True) if number % 2 == 0 else (True, False):
                taken[is_watched].append(cost(num_jobs, options.seconds, is_watched=is_watched))
        without, watched = (1e3 * statistics.median(taken[each]) for each in (False, True))
        print(f"{num_jobs:5} jobs: {watched:.1f} core-ms a second with a watcher, {without:.1f} without", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
