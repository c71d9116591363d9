"""A pool that only looks like one, for its page: `python -m tests.helpers.shown_pool NUM_JOBS` shows it until input ends."""

import itertools
import math
import sys
import time
from pathlib import Path

from fdt.pool.observations import JobCurves, Traffic
from fdt.pool.page.app import PoolActions
from fdt.pool.page.feed import Feed
from fdt.pool.page.server import PageServer
from fdt.pool.snapshot import HostSnapshot, JobSnapshot, Snapshot, WorkerSnapshot
from fdt.v1 import job_pb2

_STATES = ("finished", "finished", "failed", "finished", "cancelled", "finished")
_SCRIPTS = ("train_resnet.py", "experiments/lstm_text.py", "vae.py", "/home/ada/projects/segmentation/unet_train.py")


class ShownPool:
    """So many jobs, the newest of which run, as they would be after some minutes."""

    def __init__(self, num_jobs: int) -> None:
        self.num_jobs, self.began_s = num_jobs, time.time()

    def snapshot(self) -> Snapshot:
        """Returns what it seems to know."""
        workers = [self._worker(number) for number in range(6)]
        hosts = [
            HostSnapshot("", 2, 2, 8, Traffic(0, 0, 0, 41e6, 39e6)),
            HostSnapshot("node-a (10.0.0.2)", 4, 3, 16, Traffic(0, 0, 0, 118e6, 121e6)),
        ]
        return Snapshot([self._job(number + 1) for number in range(self.num_jobs)], workers, hosts)

    def curves(self, job: str) -> JobCurves:
        """Returns ten minutes of a job."""
        curves = JobCurves()
        spent = dict.fromkeys(("compute", "exchange", "wait"), 0.0)
        steps = 0
        for second in range(0, 600, 2):
            time_s = self.began_s - 600 + second
            steps += int(2 * (24 + 3 * math.sin(second / 37) - (9 if 300 < second < 340 else 0)))
            curves.steps.add(time_s, {"steps": steps})
            noise = 0.03 * math.sin(second * 12.9898) * math.cos(second / 3)
            loss = 0.31 + 1.9 * math.exp(-second / 130) + noise
            curves.shown.add(time_s, {"loss": loss, "accuracy": 1 - 0.45 * loss + noise / 2})
            if second % 4 == 0:
                for name, part in (("compute", 0.62), ("exchange", 0.29), ("wait", 0.09)):
                    spent[name] += 8 * (part + (0.2 if name == "wait" and 300 < second < 340 else 0))
                curves.spent.add(time_s, spent)
        return curves

    def _job(self, number: int) -> JobSnapshot:
        last = self.num_jobs - number
        running, queued = last < 3 and number > 0, 3 <= last < 5
        state = "queued" if queued else "running" if running else _STATES[number % len(_STATES)]
        mode, begun_s = ("sync", "async")[number % 3 == 0], self.began_s - 620 - 300 * last
        steps = 0 if queued else 14_213 - 97 * (number % 31)
        usage = [
            job_pb2.WorkerUsage(
                rank=rank,
                steps=steps,
                samples=32 * steps,
                compute_s=370 + 12 * rank,
                exchange_s=171 - 11 * rank,
                wait_s=49,
                exchanged_bytes=7_400_000 * steps,
                peak_memory_bytes=1_310_000_000 + 4_000_000 * rank,
                delays={0: 10, 1: 90, 2: 30} if mode == "async" else {},
            )
            for rank in range(0 if queued else 2)
        ]
        reason = {
            "queued": "2 workers are busy, 3 are needed",
            "failed": "WorkerError: Rank 1 failed: ResourceExhaustedError: OOM when allocating a tensor of [64, 512, 512, 64]",
            "cancelled": "the script was interrupted (KeyboardInterrupt)",
        }.get(state, "")
        lost = (("job-0", "failed: Worker worker-3 (rank 1) ended with signal 9 (SIGKILL)."),) if last == 1 else ()
        ended_s = 0.0 if running or queued else begun_s + 240 + number % 60
        return JobSnapshot(
            f"job-{number}", mode, state, steps, usage, (), _SCRIPTS[number % len(_SCRIPTS)], 3 if queued else 2,
            begun_s, begun_s + 1, ended_s, reason, 23.7 if running else 0.0, lost, 2,
            "anna" if number % 100 == 0 else "",
        )  # fmt: skip

    def _worker(self, number: int) -> WorkerSnapshot:
        host, serves = ("", "node-a (10.0.0.2)")[number > 1], number != 5
        gpus = [
            job_pb2.Gpu(index=gpu, utilization=0.87 - gpu / 10, memory_bytes=11_400_000_000)
            for gpu in range(number // 2)
        ]
        sample = job_pb2.Sample(time_s=number, cores=3.7 * serves, memory_bytes=1_300_000_000 * (1 + serves), gpus=gpus)
        job = f"job-{self.num_jobs - number // 2}" if serves else ""
        state = "serving" if serves else "warm"
        return WorkerSnapshot(f"worker-{number + 1}", host, state, job, 0.3, sample, "sync", number % 2)


def serve(pool: ShownPool, log: Path) -> PageServer:
    """Begins to show a pool at a free port."""
    feed = Feed(pool.snapshot, pool.curves, look_s=0.2)
    return PageServer("127.0.0.1:0", feed, PoolActions(lambda job: "cancelled", lambda job: [log]))


def main() -> None:
    server = serve(ShownPool(int(sys.argv[1])), Path(__file__))
    for _ in itertools.count():
        print(server.link(), flush=True)
        if not sys.stdin.readline():
            break
    server.close()


if __name__ == "__main__":
    main()
