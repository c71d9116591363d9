"""Runs a pool for the length of one run: the same server in a child process, on a unix socket in a private directory."""

import contextlib
import dataclasses
import json
import os
import secrets
import subprocess
import time

from fdt.base import interpreter
from fdt.base.config import (
    ADDRESS,
    Credentials,
    Network,
    PlacingConfig,
    RunConfig,
    ServeConfig,
    Timing,
    walls_are_off,
)
from fdt.base.installed import require_pool
from fdt.base.temporary_folders import OwnFolder
from fdt.base.worker_bounds import UNBOUNDED, Bounds
from fdt.errors import PoolUnreachableError
from fdt.transport.blobs import STORE

_LOG = "pool.log"


class EmbeddedPool:
    """The pool of one run.

    Attributes:
        address: "unix:...", or the address at which hosts reach it; known once it listens.
        token: The token that its socket requires.
        credentials: The token as `fdt.transport.rpc.connect` takes it.
        store: Directory of its blobs.
    """

    def __init__(
        self,
        modes: tuple[str, ...],
        num_workers: int,
        timing: Timing,
        num_threads: int | None = None,
        bounds: Bounds = UNBOUNDED,
        placing: PlacingConfig | None = None,
        network: Network | None = None,
        admitted: tuple[str, ...] = (),
    ) -> None:
        """Starts the process and does not wait for it; see `wait`.

        Args:
            modes: The modes that it offers.
            num_workers: Number of its workers, all for one job.
            timing: All waits and intervals.
            num_threads: Threads that one operation of a worker may use; None for its share of the machine's.
            bounds: Limits of each worker process's share of the machine.
            placing: Hosts that a scheduler provides; None if all workers are on this machine.
            network: The network over which these hosts are reached.
            admitted: Operations that it admits besides those of `fdt.program.operations`.

        Raises:
            UsageError: A package that its processes import is not installed.
        """
        require_pool(modes, num_workers if placing is None else 0)
        self._stop_s, self._warm_s = timing.stop_s, timing.warm_s
        self._end_s = 4 * timing.stop_s + (timing.sweep_s if placing is not None else 0.0)
        self._folder = OwnFolder("fdt-run-")
        self._directory = self._folder.path
        self.address = f"unix:{self._directory}/pool.sock"
        self.store = self._directory / STORE
        self.token = secrets.token_hex(32)
        self.credentials = Credentials(token=self.token)
        serve = ServeConfig(
            listen=self.address,
            modes=modes,
            num_workers=num_workers,
            num_threads=num_threads,
            max_jobs=1,
            token=self.token,
            walls=not walls_are_off(),
            # Other hosts may have other files, and their workers other folders.
            of_one_run=placing is None,
            bounds=bounds,
            admitted=admitted,
            timing=timing,
        )
        if placing is not None and network is not None:
            serve = self._for_hosts(serve, placing, network)
        self._process = self._start()
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        # The token must not appear in arguments or the environment.
        fields = {**dataclasses.asdict(serve), "directory": self._directory}
        self._pipe.write(json.dumps(fields, default=str).encode() + b"\n")
        self._pipe.flush()
        # The pool lives until the last copy of this pipe is closed: a forked child of the script must not hold one.
        os.register_at_fork(after_in_child=self._abandon)

    def _start(self) -> "subprocess.Popen[bytes]":
        with open(self._directory / _LOG, "wb") as log:
            return subprocess.Popen(
                interpreter.of_module("fdt.pool.server"),
                env={"GRPC_VERBOSITY": "NONE", **os.environ},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C at the terminal is the script's; the pool ends with us.
                start_new_session=True,
            )

    def _for_hosts(self, serve: ServeConfig, placing: PlacingConfig, network: Network) -> ServeConfig:
        """Makes the pool listen for other hosts, without workers here, with a certificate of its own."""
        # Imported here: only runs on several hosts need it.
        from fdt.worker.certificate import self_signed

        certificate, key = self._directory / "pool.pem", self._directory / "pool.key"
        for path, text in zip((certificate, key), self_signed(network.address), strict=True):
            path.write_text(text)
        self.credentials = dataclasses.replace(self.credentials, tls_ca=certificate)
        return dataclasses.replace(
            serve,
            listen=f"{network.address}:0",
            num_workers=0,
            join_token=secrets.token_hex(32),
            tls_cert=certificate,
            tls_key=key,
            network=network,
            placing=dataclasses.replace(placing, tls_ca=certificate),
            open_servers=placing.open_servers,
        )

    def wait(self) -> None:
        """Waits until the pool listens, however long a busy machine takes to start a process of ours.

        Raises:
            PoolUnreachableError: The process ended, or did not listen within `warm_s`.
        """
        end_s = time.monotonic() + self._warm_s
        while not (self._directory / ADDRESS).exists():
            if (status := self._process.poll()) is not None:
                log = (self._directory / _LOG).read_text(errors="replace").strip()
                raise PoolUnreachableError(
                    f"The run's own pool ended at its start, with status {status}: {log[-2000:]}"
                )
            if time.monotonic() > end_s:
                raise PoolUnreachableError(
                    f"The run's own pool was started and did not listen within {self._warm_s:g} s. Is the machine very busy, "
                    "or short of memory? Try again, or start a pool beforehand with `fdt serve` and name it with --server."
                )
            time.sleep(0.02)
        self.address = (self._directory / ADDRESS).read_text()

    def close(self) -> None:
        """Ends the pool with all its workers and removes its files."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()
        try:
            self._process.wait(self._end_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(self._stop_s)
        self._folder.remove()

    def _abandon(self) -> None:
        self._folder.abandon()
        with contextlib.suppress(OSError, ValueError):
            self._pipe.close()


def start(config: RunConfig) -> EmbeddedPool:
    """Starts a pool with the run's mode, workers and timing.

    Returns quickly: the workers import TensorFlow while the script does.
    """
    return EmbeddedPool(
        (config.mode,),
        config.num_workers,
        config.timing,
        bounds=config.bounds,
        placing=config.placing,
        network=config.network,
        admitted=config.admitted,
    )
