"""Implements `fdt serve`: a pool, or a host that joins one, until a signal stops it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fdt.cli.options import Serve
from fdt.cli.settings import join_config, makes_token, offered, require_launchers, serve_config, state_folder

if TYPE_CHECKING:
    import contextlib

    from fdt.base.config import ServeConfig
    from fdt.pool.server import Server
    from fdt.pool.state_folder import StateFolder

# Seconds after which `_Stopped` is raised again if it had no effect.
_AGAIN_S = 1.0


class _Stopped(BaseException):
    """Raised at SIGINT or SIGTERM."""


def serve(options: Serve) -> int:
    """Serves a pool, or joins one as a host."""
    from fdt.base.log import configure

    configure(options.log_level, options.log_json)
    if options.join is not None:
        return _serve_host(options)
    require_launchers(offered(options))
    config = serve_config(options)
    from fdt.base.installed import require_pool, slower
    from fdt.base.log import notice

    require_pool(config.modes, config.num_workers)
    if config.num_workers and (said := slower()) is not None:
        notice(said)
    if config.placing is not None and config.network is not None:
        from fdt.pool.scheduling import preflight

        if options.dry_run:
            print(preflight.show(config.placing, config.network, config.listen))
            return 0
        preflight.check(config.placing, config.network)
    import contextlib

    with contextlib.ExitStack() as ending:
        _serve_pool(options, config, ending)
    return 0


def _serve_pool(options: Serve, config: "ServeConfig", ending: "contextlib.ExitStack") -> None:
    """Serves until a signal stops the pool, or its jobs have been saved after SIGTERM. Registers cleanup in `ending`."""
    import dataclasses

    from fdt.pool.server import Server
    from fdt.pool.state_folder import AUDIT_LOG, TOKENS
    from fdt.transport import tokens

    kept = _kept(options)
    if kept is not None:
        ending.callback(kept.close)
        config = dataclasses.replace(
            config,
            tokens=config.tokens or kept.path / TOKENS,
            audit_log=config.audit_log or kept.path / AUDIT_LOG,
        )
        if makes_token(options) and config.token is not None:
            config = dataclasses.replace(config, token=kept.token(config.token))
    server = Server(config, kept=kept)
    leave = _stop_on_signals()
    try:
        address = server.start()
        if makes_token(options) and config.token is not None:
            ending.enter_context(tokens.published(address, config.token))
        _present(server, address, config, options.mode)
        leave.append(lambda: server.leave(config.grace_s))
        server.wait()
    except _Stopped:
        pass
    finally:
        _heard()
        server.stop()


def _present(server: "Server", address: str, config: "ServeConfig", mode: str) -> None:
    """Prints a pool's address and offer, and warns of the access that its options open."""
    from fdt.base.log import notice

    if config.token is None:
        notice(
            "this pool has no token (--no-token): it is open to every local user, who can run programs on its workers, "
            "fetch what others have sent, and cancel their jobs"
        )
    workers = f"{config.num_workers} worker{'' if config.num_workers == 1 else 's'}"
    print(f"fdt: pool at {address}, {workers}, mode {mode}", flush=True)
    if server.persons and config.token is not None:
        notice(f"{len(server.persons)} person(s) have tokens of their own: {config.tokens}")
    if config.page is not None:
        print(f"fdt: page at {server.link} (for one browser, once; `fdt page` prints others)", flush=True)
    if config.network is not None:
        notice(
            f"hosts may join over {config.network.interface} ({config.network.cidr}); what their synchronous workers "
            "exchange is neither encrypted nor authenticated"
        )
        if config.open_servers:
            notice(
                "asynchronous workers of several hosts open servers for everybody on these hosts' networks "
                "(--open-servers): anyone who reaches one can run code as the user who runs this pool"
            )
    notice(server.network)
    notice(_walls(config.walls))
    if config.data:
        notice(f"workers read files of data, if the client has the same: {', '.join(map(str, config.data))} (--data)")
    notice(str(config.bounds))


def _kept(options: Serve) -> "StateFolder | None":
    """Opens the state folder, which earlier pools may have used; returns None if there is none."""
    from fdt.base import user_folder
    from fdt.base.log import notice
    from fdt.pool.state_folder import StateFolder

    path, is_asked = state_folder(options)
    if path is not None and not is_asked:
        try:
            user_folder.make(path)
        except OSError as error:
            notice(f"the list of jobs will be lost when this pool ends: {error}. Name a folder for it with --state DIR")
            path = None
    return None if path is None else StateFolder(path)


def _serve_host(options: Serve) -> int:
    from fdt.base.installed import require_pool

    require_pool((), 0)
    config = join_config(options)
    from fdt.base.log import notice
    from fdt.pool.host import Membership

    _stop_on_signals()
    member = Membership(config)
    try:
        member.join()
        workers = f"{config.num_workers} worker{'' if config.num_workers == 1 else 's'}"
        print(f"fdt: joined the pool at {config.pool} with {workers}, at {config.network.address}", flush=True)
        notice(member.network)
        notice(_walls(config.walls))
        notice(str(config.bounds))
        notice(member.serve())
    except _Stopped:
        _heard()
        member.leave()
    finally:
        _heard()
        member.close()
    return 0


def _walls(wanted: bool) -> str:
    """Returns the line that describes the workers' sandbox."""
    if not wanted:
        return "workers are not walled in (--no-walls): a program in one has all rights of the user who runs this pool"
    from fdt.worker.sandbox import tried

    return str(tried())


def _stop_on_signals() -> list[Callable[[], None]]:
    """Makes SIGINT and SIGTERM raise `_Stopped`, and again every `_AGAIN_S` seconds until `_heard` is called.

    Once is not enough: Python discards an exception that is raised in a destructor or a callback.

    Returns:
        An empty list. If the caller adds a function, the next SIGTERM calls it, once, and does not raise.
    """
    import signal

    leave: list[Callable[[], None]] = []

    def stop(number: int, _: object) -> None:
        if number == signal.SIGTERM and leave:
            leave.pop()()
            return
        # Ignores further signals: stopping has its own limits, and an interrupted stop would leave workers behind.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
        raise _Stopped

    def again(_: int, __: object) -> None:
        raise _Stopped

    signal.signal(signal.SIGALRM, again)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return leave


def _heard() -> None:
    """Ends the signal handling of `_stop_on_signals`, and ignores signals during the shutdown."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
