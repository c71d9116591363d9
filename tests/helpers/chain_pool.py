"""A pool of the toy runtime in a process of its own: python -m tests.helpers.chain_pool PORT FOLDER TOKEN [OPTIONS]

SIGTERM has it put its jobs away for a restart. With --hosts it takes hosts over loopback (`tests.helpers.toy_host`); with
--point it is killed there (`tests.helpers.failpoints`).
"""

import argparse
import dataclasses
import signal
from pathlib import Path

from fdt.base.config import Network, ServeConfig, Timing
from fdt.pool.server import Server
from fdt.pool.state_folder import StateFolder
from tests.helpers import failpoints
from tests.helpers.chain_engine import ChainLauncher

TIMING = Timing(
    connect_s=5.0,
    call_s=10.0,
    warm_s=30.0,
    join_s=20.0,
    heartbeat_s=0.1,
    heartbeat_limit_s=1.0,
    snapshot_s=0.05,
    run_ahead_s=0.2,
    reconnect_s=20.0,
)
GRACE_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port")
    parser.add_argument("folder", type=Path)
    parser.add_argument("token")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--silence", type=float, default=TIMING.heartbeat_limit_s)
    parser.add_argument("--stall", type=float, default=TIMING.stall_s)
    parser.add_argument("--hosts", action="store_true")
    parser.add_argument("--point", choices=tuple(failpoints.OF_POOL))
    options = parser.parse_args()
    if options.point is not None:
        failpoints.OF_POOL[options.point]()
    config = ServeConfig(
        listen=f"127.0.0.1:{options.port}",
        token=options.token,
        timing=dataclasses.replace(TIMING, heartbeat_limit_s=options.silence, stall_s=options.stall),
        num_workers=options.workers,
        network=Network("lo", "127.0.0.1", "127.0.0.0/8") if options.hosts else None,
        walls=False,
    )
    options.folder.mkdir()
    kept = StateFolder(options.state) if options.state is not None else None
    server = Server(config, {"sync": ChainLauncher()}, options.folder, kept)
    address = server.start()
    signal.signal(signal.SIGTERM, lambda *_: server.leave(GRACE_S))
    print(f"listens on {address}", flush=True)
    server.wait()
    server.stop()
    if kept is not None:
        kept.close()


if __name__ == "__main__":
    main()
