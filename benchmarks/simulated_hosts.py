"""The control process of a large pool: hosts and workers that compute nothing, over real gRPC, and jobs that begin on them.

    python benchmarks/simulated_hosts.py                       # writes benchmarks/results/simulated_hosts.{json,md}
    python benchmarks/simulated_hosts.py --hosts 50 --quick    # one size, prints only

Each simulated host has one connection, over which its workers attach too (real ones have one each). Hosts, workers and
clients are coroutines of one process; the pool is a process of its own, as `fdt serve` is, with Horovod's launcher. Both share
this machine.
"""

import argparse
import asyncio
import dataclasses
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import IO, Any

import grpc
import psutil
from processes import RunFailedError
from record import Content, Record
from tables import table

from fdt.base.config import Network, ServeConfig, Timing
from fdt.base.limits import Limits
from fdt.base.versions import host_versions
from fdt.transport.rpc import TOKEN_KEY
from fdt.v1 import host_pb2, job_pb2, worker_pb2

TOKEN, SLOTS = "clients", 8
# For every wait: the largest sizes take minutes on two cores.
LIMIT_S = 600.0
# Over how much of a quiet time the processor is measured.
QUIET_S = 10.0
# The pool lets one connection have 16 jobs.
_JOBS_EACH = 16
_MESSAGES = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 4 << 20)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[50, 100, 250, 500, 1000])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument(
        "--heartbeats", type=float, nargs="+", default=[1.0, 10.0], help="seconds between two of a worker"
    )
    parser.add_argument("--quick", action="store_true", help="nothing is written")
    parser.add_argument("--pool", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    if options.pool is not None:
        serve(options.pool, options.heartbeats[0])
        return
    record = Record("simulated_hosts", vars(options), ("fdt", "grpcio"), markdown, keep=not options.quick)
    for heartbeat in options.heartbeats:
        for hosts in options.hosts:
            one_size = functools.partial(measured, hosts, heartbeat, options.jobs)
            record.add("cluster", lambda size=one_size: asyncio.run(size()), hosts=hosts, heartbeat=heartbeat)
    print(markdown(record.content))


# ---- the pool ---------------------------------------------------------------------------------------------------------


def serve(hosts: int, heartbeat_s: float) -> None:
    """Is the pool, until standard input ends."""
    from fdt.pool.server import Server

    # A heartbeat that waits behind ten thousand others must not count as silence.
    timing = dataclasses.replace(
        Timing(), heartbeat_s=heartbeat_s, heartbeat_limit_s=LIMIT_S, warm_s=LIMIT_S, join_s=LIMIT_S, connect_s=LIMIT_S
    )
    limits = Limits(hosts=hosts, joined_workers=hosts * SLOTS, connections=2 * hosts + 256, queued_jobs=1024)
    limits = dataclasses.replace(limits, unread_s=LIMIT_S, handshake_s=LIMIT_S, first_message_s=LIMIT_S, idle_s=LIMIT_S)
    network = Network("lo", "127.0.0.1", "127.0.0.0/8")
    config = ServeConfig(
        listen="127.0.0.1:0",
        num_workers=0,
        token=TOKEN,
        network=network,
        timing=timing,
        limits=limits,
        open_servers=True,
    )
    server = Server(config)
    print(server.start(), flush=True)
    sys.stdin.read()
    server.stop()


class Pool:
    """The pool's process, and what it has taken of the machine."""

    def __init__(self, hosts: int, heartbeat_s: float) -> None:
        self._said: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, __file__, "--pool", str(hosts), "--heartbeats", str(heartbeat_s)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        self._seen = psutil.Process(self._process.pid)

    def cpu_s(self) -> float:
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    def memory_mb(self) -> float:
        return float(self._seen.memory_info().rss / 1e6)

    def threads(self) -> int:
        return int(self._seen.num_threads())

    def last_words(self) -> str:
        """Returns the end of what it said, but for who joined."""
        self._said.seek(0)
        return "".join([line for line in self._said if " joined with " not in line][:20])

    def close(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=30)
        self._process.kill()
        self._process.wait()


class Stream:
    """A call on which one writes at a time."""

    def __init__(self, call: Any) -> None:
        self._call, self._lock = call, asyncio.Lock()

    async def write(self, message: Any) -> None:
        async with self._lock:
            await self._call.write(message)

    def __aiter__(self) -> AsyncIterator[Any]:
        found: AsyncIterator[Any] = self._call.__aiter__()
        return found

    def done(self) -> bool:
        return bool(self._call.done())


# ---- who comes to it --------------------------------------------------------------------------------------------------


class Cluster:
    """Hosts and their workers, which say what real ones say, and do nothing."""

    def __init__(self, address: str, heartbeat_s: float) -> None:
        self._address, self._heartbeat_s = address, heartbeat_s
        self._changed = asyncio.Condition()
        self.ready = 0
        self.failed: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._versions = host_versions()
        self._channels: list[grpc.aio.Channel] = []

    def start(self, hosts: int) -> None:
        for number in range(hosts):
            self._begin(self._host(number))

    async def wait(self, workers: int) -> None:
        """Waits until so many are ready."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: self.ready >= workers or self.failed), LIMIT_S)
        if self.failed:
            raise RunFailedError(self.failed[0])

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._noted(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _noted(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except grpc.aio.AioRpcError as error:
            async with self._changed:
                self.failed.append(f"{error.code()}: {error.details()}")
                self._changed.notify_all()

    async def _host(self, number: int) -> None:
        channel = grpc.aio.insecure_channel(self._address, options=_MESSAGES)
        self._channels.append(channel)
        attach = channel.stream_stream(
            "/fdt.v1.Hosts/Attach",
            request_serializer=host_pb2.HostEvent.SerializeToString,
            response_deserializer=host_pb2.HostInstruction.FromString,
        )
        call = Stream(attach(metadata=((TOKEN_KEY, TOKEN),)))
        hello = host_pb2.Hello(
            name=f"host{number}", num_workers=SLOTS, num_cores=SLOTS, address="127.0.0.1", interface="lo"
        )
        hello.versions.update(self._versions)
        hello.open_servers = True
        await call.write(host_pb2.HostEvent(hello=hello))
        self._begin(self._beats(call, host_pb2.HostEvent(heartbeat={})))
        async for instruction in call:
            if instruction.HasField("start"):
                self._begin(self._worker(channel, call, instruction.start))

    async def _worker(self, channel: grpc.aio.Channel, host: Any, start: host_pb2.StartWorker) -> None:
        attach = channel.stream_stream(
            "/fdt.v1.Workers/Attach",
            request_serializer=worker_pb2.WorkerEvent.SerializeToString,
            response_deserializer=worker_pb2.WorkerInstruction.FromString,
        )
        call = Stream(attach(metadata=((TOKEN_KEY, start.secret),)))
        await call.write(worker_pb2.WorkerEvent(ready=worker_pb2.Ready(worker=start.worker, pid=1, tensorflow="2")))
        async with self._changed:
            self.ready += 1
            self._changed.notify_all()
        self._begin(self._beats(call, worker_pb2.WorkerEvent(heartbeat={})))
        async for instruction in call:
            if instruction.HasField("assignment"):
                await call.write(worker_pb2.WorkerEvent(joined=worker_pb2.Joined()))
            elif instruction.instruction.HasField("close"):
                closed = job_pb2.Event(closed=job_pb2.Closed(processes=[job_pb2.ProcessUsage()]))
                await call.write(worker_pb2.WorkerEvent(event=closed))
        async with self._changed:
            self.ready -= 1
        await host.write(host_pb2.HostEvent(exit=host_pb2.WorkerExit(worker=start.worker)))

    async def _beats(self, call: Any, beat: Any) -> None:
        with suppress(asyncio.InvalidStateError):
            while not call.done():
                await asyncio.sleep(self._heartbeat_s)
                await call.write(beat)


async def job(channel: grpc.aio.Channel, workers: int) -> AsyncIterator[float]:
    """Submits a job; yields the seconds until all of its workers have joined it, and ends it afterwards."""
    train = channel.stream_stream(
        "/fdt.v1.Jobs/Train",
        request_serializer=job_pb2.Instruction.SerializeToString,
        response_deserializer=job_pb2.Event.FromString,
    )
    call = train(metadata=((TOKEN_KEY, TOKEN),))
    opening = job_pb2.OpenJob(mode="sync", num_workers=workers, script="train.py")
    began_s = time.perf_counter()
    await call.write(job_pb2.Instruction(open=opening))
    async for event in call:
        if event.HasField("started"):
            yield time.perf_counter() - began_s
            await call.write(job_pb2.Instruction(close=job_pb2.CloseJob()))
        elif event.HasField("closed") and not event.closed.remaining:
            break
        elif event.HasField("failed"):
            raise RunFailedError(event.failed.message)
    await call.done_writing()
    call.cancel()


# ---- the measurement --------------------------------------------------------------------------------------------------


async def measured(hosts: int, heartbeat_s: float, num_jobs: int) -> dict[str, Any]:
    pool = Pool(hosts, heartbeat_s)
    cluster = Cluster(pool.address, heartbeat_s)
    channels = [grpc.aio.insecure_channel(pool.address, options=_MESSAGES) for _ in range(-(-num_jobs // _JOBS_EACH))]
    try:
        empty_mb, began_s, before_s = pool.memory_mb(), time.perf_counter(), pool.cpu_s()
        cluster.start(hosts)
        await cluster.wait(hosts * SLOTS)
        joining = {"join_s": time.perf_counter() - began_s, "join_cpu_s": pool.cpu_s() - before_s}
        before_s = pool.cpu_s()
        await asyncio.sleep(QUIET_S)
        quiet = {"idle_cores": (pool.cpu_s() - before_s) / QUIET_S, "threads": pool.threads()}
        memory = {"memory_mb": pool.memory_mb(), "mb_each_host": (pool.memory_mb() - empty_mb) / hosts}
        alone = [await one(channels[0], SLOTS) for _ in range(10)]
        before_s = pool.cpu_s()
        together = await asyncio.wait_for(all_at_once(channels, num_jobs, hosts * SLOTS), LIMIT_S)
        jobs = {
            "jobs_cpu_s": pool.cpu_s() - before_s,
            "alone_ms": _milliseconds(alone),
            "together_ms": _milliseconds(together),
        }
        return {**joining, **quiet, **memory, **jobs}
    except (TimeoutError, grpc.aio.AioRpcError, RunFailedError) as error:
        raise RunFailedError(f"{type(error).__name__}: {error}\n{pool.last_words()}") from error
    finally:
        await cluster.close()
        for channel in channels:
            await channel.close()
        pool.close()


async def one(channel: grpc.aio.Channel, workers: int) -> float:
    found = [seconds async for seconds in job(channel, workers)]
    return found[0]


async def all_at_once(channels: list[grpc.aio.Channel], jobs: int, workers: int) -> list[float]:
    """All workers are asked for by so many jobs at the same moment."""
    each = max(1, workers // jobs)
    return list(await asyncio.gather(*(one(channels[number // _JOBS_EACH], each) for number in range(jobs))))


def _milliseconds(seconds: list[float]) -> list[float]:
    """Returns the median and the most."""
    return [1e3 * statistics.median(seconds), 1e3 * max(seconds)]


def markdown(content: Content) -> str:
    settings, rows = content["settings"], []
    for each in content["measurements"]:
        if "failed" in each:
            rows.append(
                [
                    str(each["hosts"]),
                    str(each["hosts"] * SLOTS),
                    f"{each['heartbeat']:g}",
                    str(each["failed"])[:60],
                    *[""] * 7,
                ]
            )
            continue
        rows.append(
            [
                str(each["hosts"]),
                str(each["hosts"] * SLOTS),
                f"{each['heartbeat']:g}",
                f"{each['join_s']:.1f}",
                f"{each['join_cpu_s']:.1f}",
                f"{each['idle_cores']:.2f}",
                f"{each['memory_mb']:.0f}",
                str(each["threads"]),
                "{:.0f} ({:.0f})".format(*each["alone_ms"]),
                "{:.0f} ({:.0f})".format(*each["together_ms"]),
                f"{1e3 * each['jobs_cpu_s'] / settings['jobs']:.0f}",
            ]
        )
    header = ["hosts", "workers", "heartbeat, s", "all there, s", "of it CPU, s", "cores, idle", "MB", "threads"]
    header += ["a job alone, ms", f"{settings['jobs']} at once, ms", "CPU a job, ms"]
    return "\n".join(
        [
            "# The control process with simulated hosts",
            "",
            f"`{content['command'].strip()}`, {content['date']}, {json.dumps(content['machine'])}.",
            "",
            f"Hosts of {SLOTS} workers over gRPC on loopback, each with a heartbeat; the "
            "simulation itself takes the other core. All there: from the first connection to the last worker's `ready`. A job "
            "alone has 8 workers; those at once have all workers between them. Milliseconds from a client's `open` to its "
            "`started`: median (most).",
            "",
            table(header, rows),
            "",
        ]
    )


if __name__ == "__main__":
    main()
