"""Runs a script against a pool: connects, opens the job, and ends both."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from fdt.base import held, installed
from fdt.base.config import RunConfig
from fdt.base.progress_line import WAITING
from fdt.base.versions import versions
from fdt.client import embedded_pool
from fdt.client.job import Job
from fdt.client.report import FitRecord, Report, say
from fdt.client.verification import Verification
from fdt.errors import CapacityError, FdtError, UnsupportedError, UsageError
from fdt.script import file_overlay
from fdt.transport import rpc, statuses, tokens
from fdt.transport.blob_client import BlobClient, SharedStore
from fdt.v1 import job_pb2, pool_pb2, pool_pb2_grpc


class Session:
    """Runs a script against a pool: connects, opens the job, and ends both.

    Attributes:
        distributed: Whether the script reached a training step for the pool, even if that failed.
        config: The run's configuration.
        verification: The comparison of `fdt verify`; else None.
    """

    def __init__(self, config: RunConfig):
        self.config = config
        self.verification = (
            Verification(config.verify_steps, config.tolerance, config.in_double) if config.verify_steps else None
        )
        self.distributed = False
        self._report = Report(config)
        self._resources = contextlib.ExitStack()
        self._channel: grpc.Channel | None = None
        self._job: Job | None = None
        # The pool's own store, where this process may use its files.
        self._store: Path | None = None
        self._said: set[str] = set()
        self._endings: list[Callable[[], None]] = []
        self._pid = os.getpid()
        self._closed = False
        self._steps = 0

    def __enter__(self) -> "Session":
        """Connects to the pool, or starts one for the length of the run.

        Raises:
            PoolError: No pool, no access, another version, too few workers.
        """
        config = self.config
        address, credentials = config.server, config.credentials
        if address is None:
            if config.placing is not None and config.network is not None:
                # Checked before anything is started; imported here since few runs need it.
                from fdt.pool.scheduling.preflight import check

                check(config.placing, config.network)
            pool = embedded_pool.start(config)
            if config.placing is None and (slower := installed.slower()) is not None:
                say(slower)
            # It ends with this run; it is never restarted.
            self.config = config = dataclasses.replace(
                config, timing=dataclasses.replace(config.timing, reconnect_s=0.0)
            )
            self._resources.callback(pool.close)
            self._keep_files(pool.store.parent)
            with WAITING.doing("starting a pool for this run"):
                pool.wait()
            address, credentials = pool.address, pool.credentials
            self._store = pool.store
        else:
            self._keep_files()
        self._channel = rpc.connect(address, credentials, config.timing)
        # Asynchronous workers of a host are threads of one process.
        processes = config.num_workers if config.mode == "sync" else 1
        self._resources.callback(rpc.close, self._channel, config.timing.stop_s)
        with statuses.translated(address), WAITING.doing("connecting to the pool"):
            stub = pool_pb2_grpc.PoolStub(self._channel)
            described = stub.Describe(
                pool_pb2.DescribeRequest(versions=versions(), workers=processes),
                timeout=config.timing.connect_s,
                wait_for_ready=True,
            )
        self._check(described, address)
        self._address = address
        return self

    def _keep_files(self, *kept: Path) -> None:
        """Keeps a script that `fdt verify` runs from changing files; called while this process has one thread."""
        if self.verification is not None:
            say(file_overlay.enter(kept))

    def _check(self, described: pool_pb2.DescribeReply, address: str) -> None:
        self._report.pool = described.versions
        if self.config.mode not in described.modes:
            raise UsageError(
                f"The pool at {address} does not offer --mode {self.config.mode}; it offers "
                f"{', '.join(described.modes)}. Choose one of these, or start a pool with `fdt serve --mode both`."
            )
        least, most = self.config.least_workers or self.config.num_workers, self.config.num_workers
        there_may_be = max(described.num_workers, described.max_workers)
        if least > there_may_be:
            raise CapacityError(
                f"The pool at {address} has {there_may_be} workers, {least} were asked for. "
                f"Ask for at most {there_may_be}, or start a larger pool with `fdt serve --workers N`."
            )
        self._workers = range(least, most + 1)
        self.config = dataclasses.replace(
            self.config,
            num_workers=min(most, max(least, described.num_free)),
            options=self._with_memory(described.worker_memory_bytes),
        )

    def _with_memory(self, described: int) -> dict[str, str]:
        """Returns the runtime's options; what workers hold is chosen, or refused, by what each process may use of memory."""
        # Hosts that a scheduler is yet to bring are not described.
        memory = described or self.config.bounds.memory_bytes
        told = {held.MEMORY: str(memory)} if memory else {}
        return {**self.config.options, **told}

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        self.close()

    @property
    def has_workers_here(self) -> bool:
        """Whether the pool, and so its workers, are on this machine."""
        if self.config.server is None:
            return self.config.placing is None
        return tokens.is_local(self.config.server)

    def job(self) -> Job:
        """Returns the run's job; the first call asks the pool for workers and does not wait for them.

        Raises:
            UnsupportedError: The run is over, or this is a forked child of the process that runs the script.
        """
        if os.getpid() != self._pid:
            raise UnsupportedError(
                "model.fit was called in a forked child process of the script. The job belongs to the process that runs "
                "the script: call model.fit there."
            )
        if self._closed or self._channel is None:
            raise UnsupportedError(
                "model.fit was called after the script had ended (in a thread or at exit). Wait for the thread before "
                "the script's last line."
            )
        if self._job is None:
            blobs = BlobClient(self._channel, self.config.timing) if self._store is None else SharedStore(self._store)
            self._job = Job(self._channel, self._address, self.config, blobs, self._workers)
            self.distributed = True
        return self._job

    def has(self, job: Job) -> bool:
        """Whether a job is the run's present one, and has not failed."""
        return job is self._job and not job.failed and not self._closed

    def renew(self) -> bool:
        """Drops a failed job, whose useful values have been fetched; the next call of `job` opens another one.

        Returns:
            Whether it had failed.
        """
        if self._job is None or not self._job.failed:
            return False
        job, self._job = self._job, None
        self._close(job)
        say("the job before has failed; the training that begins now gets another one")
        return True

    def opening(self, lines: Sequence[str]) -> None:
        """Prints opening lines, each once a run."""
        for line in lines:
            if line not in self._said:
                self._said.add(line)
                say(line)

    def before_close(self, do: Callable[[], None]) -> None:
        """Registers a function to be called while the job still exists."""
        self._endings.append(do)

    def count(self, steps: int, leave_out: Callable[[], None]) -> None:
        """Counts steps that the script has made; ends the script after `stop_after` steps.

        Args:
            steps: Number of steps just made.
            leave_out: Begins the account of this training anew; called once, when the warm-up is over.
        """
        before, self._steps = self._steps, self._steps + steps
        if before < self.config.warm_up <= self._steps:
            leave_out()
        if 0 < self.config.stop_after <= self._steps:
            # SystemExit, so that the script does not catch it by accident.
            raise SystemExit(0)

    def record(self, fit: FitRecord) -> None:
        """Adds a finished `fit` to the report."""
        self._report.fits.append(fit)

    def close(self, exit_status: int = 0) -> None:
        """Ends the job and, if the pool was started for this run, the pool."""
        # The error of a failed job has been raised already.
        with contextlib.suppress(FdtError):
            while self._endings:
                self._endings.pop()()
        self._closed = True
        if self._job is not None:
            job, self._job = self._job, None
            self._report.processes = self._close(job, exit_status)
            line = self._report.closing_line()
            if line is not None:
                say(line)
        self._resources.close()

    def _close(self, job: Job, exit_status: int = 0) -> list[job_pb2.ProcessUsage]:
        self._report.faults += job.faults
        return job.close(exit_status)

    def report(self, exit_status: int) -> dict[str, Any]:
        """Returns the content that `write_report` would write now."""
        return self._report.content(exit_status)

    def write_report(self, exit_status: int) -> None:
        """Writes the JSON report, if one was asked for."""
        self._report.write(exit_status)
        if self.config.tensorboard is not None:
            from fdt.client import tensorboard

            tensorboard.write(self.config.tensorboard, self._report.processes)
