"""Converts options to configuration, with all checks that need neither a pool nor the script."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdt.cli.options import (
    DEFAULT_GRACE_S,
    DEFAULT_HOSTS,
    DEFAULT_LISTEN,
    DEFAULT_WORKERS,
    MODES,
    RUNTIME_OPTIONS,
    Check,
    OfRuntime,
    Predict,
    Run,
    Serve,
    Token,
    Verify,
)  # fmt: skip

if TYPE_CHECKING:
    from fdt.base.config import Credentials, JoinConfig, Network, PlacingConfig, RunConfig, ServeConfig
    from fdt.base.worker_bounds import Bounds


def _token(path: Path | None) -> str | None:
    from fdt.errors import UsageError

    if path is None:
        return None
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the token file: {error}. Expected one line of ASCII in {path}") from error
    if not token or not token.isprintable():
        raise UsageError(f"the token file must hold one line of printable text. Received: {path}")
    _warn_of_readers(path, "token")
    return token


def _token_of_a_pool(path: Path | None) -> str | None:
    """Reads the token that a pool will require; refuses one that is short enough to guess."""
    from fdt.errors import UsageError
    from fdt.transport.tokens import MIN_CHARACTERS

    token = _token(path)
    if token is not None and len(token) < MIN_CHARACTERS:
        raise UsageError(
            f"An attacker can try thousands of tokens a second. Expected at least {MIN_CHARACTERS} random characters in "
            f"the file: python3 -c 'import secrets; print(secrets.token_hex(32))' > {path}. Received: {len(token)} characters"
        )
    return token


def open_to_others(path: Path) -> str | None:
    """Returns the remedy if other users of this machine can read or write a secret's file; else None."""
    return f"chmod 600 {path}" if path.stat().st_mode & 0o066 else None


def _warn_of_readers(path: Path, what: str) -> None:
    remedy = open_to_others(path)
    if remedy is not None:
        warning = f"others on this machine can read the {what}; mend it with: {remedy}"
        print(f"fdt: warning: {warning}", file=sys.stderr, flush=True)


def _readable(path: Path | None, flag: str) -> Path | None:
    from fdt.errors import UsageError

    if path is not None and not (path.is_file() and os.access(path, os.R_OK)):
        raise UsageError(f"cannot read the file of {flag}. Received: {path}")
    return path


def credentials(options: argparse.Namespace, address: str | None) -> "Credentials":
    """Reads a client's credentials.

    Args:
        options: `token_file` and `tls_ca` are paths or None. Without a token file, takes the token that a pool of this
            user has published for the address.
        address: The pool's address; None for a pool that is not started yet.

    Raises:
        UsageError: A file cannot be read, or holds no token.
    """
    from fdt.base.config import Credentials
    from fdt.transport import tokens

    token = _token(options.token_file)
    found = tokens.find(address) if token is None and address is not None else None
    tls_ca = _readable(options.tls_ca, "--tls-ca")
    return Credentials(token=token or found, tls_ca=tls_ca, is_found=found is not None)


def run_config(options: Run) -> "RunConfig":
    """Builds the configuration of `run`.

    Raises:
        UsageError: A file cannot be read, or the report cannot be written.
    """
    from fdt.base.config import RunConfig, Timing
    from fdt.errors import UsageError

    report = options.report
    if report is not None and (report.is_dir() or not os.access(report.absolute().parent, os.W_OK)):
        raise UsageError(
            f"cannot write a report there: expected a file in a writable directory. Received: {report.absolute()}"
        )
    if options.prediction is not None:
        if report is None:
            raise UsageError("--prediction is compared with the run in its report: give --report FILE too")
        from fdt.forecast.forecasts import read

        read(options.prediction.absolute())
    return RunConfig(
        **_same(RunConfig, options),
        is_module=options.module,
        placing=_placing(options, _hosts_for(options)) if options.on is not None else None,
        network=_network(options) if options.on is not None else None,
        num_workers=options.workers[1],
        least_workers=options.workers[0],
        timing=Timing() if options.reconnect is None else Timing(reconnect_s=options.reconnect),
        credentials=credentials(options, options.server),
        options=runtime_options(options),
        bounds=_bounds(options),
        admitted=admitted(options.admit),
        else_local=options.otherwise == "local",
        mapped_folders=tuple(map(_mapped_folder, options.data_map)),
    )


def _mapped_folder(given: str) -> tuple[str, str]:
    from fdt.errors import UsageError

    here, _, there = given.partition("=")
    if not Path(here).is_dir() or not there.startswith("/"):
        raise UsageError(
            "--data-map: expected a folder of this machine and its absolute name where the pool's workers read it, such as "
            f"data=/mnt/data. Received: {given}"
        )
    return os.path.abspath(here), there


def check_config(options: Check) -> "RunConfig":
    """Builds the configuration of `check`."""
    from fdt.base import held
    from fdt.base.config import RunConfig
    from fdt.base.worker_bounds import UNBOUNDED

    memory = options.memory or UNBOUNDED.memory_of_each(options.workers)
    return RunConfig(
        **_same(RunConfig, options),
        is_module=options.module,
        num_workers=options.workers,
        options={**runtime_options(options), held.MEMORY: str(memory)},
        only_looks=True,
        admitted=admitted(options.admit),
        else_local=options.otherwise == "local",
    )


def predict_config(options: Predict) -> "RunConfig":
    """Builds the configuration of `predict`, with two workers, so that steps are divided.

    Raises:
        UsageError: A file cannot be read.
    """
    from fdt.base.config import RunConfig

    return RunConfig(
        script=options.script,
        arguments=options.arguments,
        num_workers=2,
        server=options.server,
        credentials=credentials(options, options.server),
        options={} if options.relax is None else {"relax": options.relax},
    )


def verify_config(options: Verify) -> "RunConfig":
    """Builds the configuration of `verify`.

    Raises:
        UsageError: A file cannot be read.
    """
    from fdt.base.config import RunConfig

    return RunConfig(
        **_same(RunConfig, options),
        is_module=options.module,
        num_workers=options.workers,
        credentials=credentials(options, options.server),
        verify_steps=options.steps,
    )


def _same(kind: type[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options that were given and have the name of a field of a configuration class.

    Makes paths absolute, since the script may change the current directory before they are used.
    """
    names = {field.name for field in dataclasses.fields(kind)} & vars(options).keys()
    given = {name: value for name in names if (value := vars(options)[name]) is not None}
    return {name: value.absolute() if isinstance(value, Path) else value for name, value in given.items()}


def require_launchers(modes: Sequence[str]) -> None:
    """Refuses a mode for which no runtime is installed."""
    from importlib.metadata import entry_points

    from fdt.errors import UsageError

    for mode in modes:
        if not entry_points(group="fdt.launchers", name=mode):
            raise UsageError(
                f"no runtime for {MODES[mode]} mode is installed (--mode {mode}). Install this package again: `pip install .` "
                "registers its runtimes"
            )


def check_runtime(options: Run | Check) -> None:
    """Has the runtime of the chosen mode check its options; imports it only if there are some."""
    require_launchers([options.mode])
    given = runtime_options(options)
    if given:
        from fdt.worker.runtime import find_launchers

        find_launchers((options.mode,))[options.mode].check(given)


def runtime_options(options: OfRuntime) -> dict[str, str]:
    """Returns the options that were given for the runtime, by their names in a job."""
    given = {name: vars(options)[name.replace("-", "_")] for name in RUNTIME_OPTIONS}
    return {name: value for name, value in given.items() if value is not None}


def offered(options: Serve) -> tuple[str, ...]:
    """Returns the modes that the pool offers."""
    return tuple(MODES) if options.mode == "both" else (options.mode,)


def makes_token(options: Serve) -> bool:
    """Returns whether the pool generates its token."""
    return options.token_file is None and not options.no_token


def serve_config(options: Serve) -> "ServeConfig":
    """Builds the configuration of `serve`.

    Raises:
        UsageError: A file cannot be read, or holds no token.
    """
    import secrets

    from fdt.base.config import ServeConfig
    from fdt.base.limits import DEFAULT, changed
    from fdt.transport import tokens

    listen, token, join_token = (
        options.listen or DEFAULT_LISTEN,
        _token_of_a_pool(options.token_file),
        _token_of_a_pool(options.join_token_file),
    )
    if makes_token(options):
        # Off loopback clients would not find it: `fdt.transport.rpc.check_listen` demands --token-file there.
        token = secrets.token_hex(32) if tokens.is_local(listen) else None
    if options.on is not None and join_token is None:
        join_token = secrets.token_hex(32)
    if options.tls_key is not None and options.tls_key.is_file():
        _warn_of_readers(options.tls_key, "private key of the certificate")
    return ServeConfig(
        listen=listen,
        grace_s=DEFAULT_GRACE_S if options.grace is None else options.grace,
        modes=offered(options),
        num_workers=(DEFAULT_WORKERS if options.on is None else 0) if options.workers is None else options.workers,
        token=token,
        tokens=options.tokens.absolute() if options.tokens is not None else None,
        share=options.share,
        audit_log=options.audit_log.absolute() if options.audit_log is not None else None,
        join_token=join_token,
        tls_cert=_readable(options.tls_cert, "--tls-cert"),
        tls_key=_readable(options.tls_key, "--tls-key"),
        network=_network(options) if options.trusted_network is not None else None,
        placing=_placing(options, options.hosts or DEFAULT_HOSTS) if options.on is not None else None,
        open_servers=options.open_servers,
        metrics=options.metrics,
        page=options.page,
        record_events=options.record_events,
        walls=not options.no_walls,
        bounds=_bounds(options),
        admitted=admitted(options.admit),
        data=tuple(map(_folder_of_data, options.data)),
        limits=changed(DEFAULT, options.limit or ()),
    )


def _folder_of_data(given: str) -> Path:
    from fdt.errors import UsageError

    # Resolved, as what a client names is: a name leads out of a folder by a link or not at all.
    folder = Path(given).resolve()
    if not folder.is_dir() or folder == Path("/"):
        raise UsageError(f"--data: expected a folder of data sets, which is not the whole disk. Received: {given}")
    return folder


def state_folder(options: Serve | Token) -> tuple[Path | None, bool]:
    """Returns the pool's state folder, None for none, and whether --state named it.

    A pool whose port the system chooses has none, since its next start gets another port.
    """
    from fdt.base import user_folder
    from fdt.transport import tokens

    if options.state is not None:
        return options.state.absolute(), True
    host, port = tokens.parts(options.listen or DEFAULT_LISTEN)
    home = user_folder.state_folder()
    return (None if home is None or port == "0" else home / "pools" / f"{host}-{port}"), False


def join_config(options: Serve) -> "JoinConfig":
    """Builds the configuration of `serve --join`.

    Raises:
        UsageError: A file cannot be read, or this machine is not on the trusted network.
    """
    import platform

    from fdt.base.config import Credentials, JoinConfig

    assert options.join is not None and options.slots is not None, "`fdt.cli.combinations` checks this"
    network, proof = _network(options), credentials(options, options.join)
    if options.join_token_file is not None:
        proof = Credentials(_token(options.join_token_file), proof.tls_ca)
    return JoinConfig(
        pool=options.join,
        num_workers=options.slots,
        network=network,
        name=options.name or platform.node() or network.address,
        open_servers=options.open_servers,
        walls=not options.no_walls,
        bounds=_bounds(options),
        credentials=proof,
        data=tuple(map(_folder_of_data, options.data)),
    )


def admitted(given: Sequence[str]) -> tuple[str, ...]:
    """Returns the operations that `--admit` names.

    Raises:
        UsageError: A name is no operation, or that operation may run on no pool.
    """
    from fdt.errors import UsageError
    from fdt.program.admission import check_admissible

    names = tuple(dict.fromkeys(name.strip() for text in given for name in text.split(",")))
    for name in names:
        try:
            check_admissible(name)
        except ValueError as error:
            raise UsageError(f"--admit: {error}. Received: {name}") from error
    return names


def _bounds(options: argparse.Namespace) -> "Bounds":
    from fdt.base.worker_bounds import Bounds

    return Bounds(options.memory, options.disk)


def _placing(options: argparse.Namespace, hosts: tuple[int, int]) -> "PlacingConfig":
    """Builds the configuration of a scheduler's hosts, with their least and most number."""
    from fdt.base.config import PlacingConfig, walls_are_off

    tls_ca = options.tls_ca or getattr(options, "tls_cert", None)
    return PlacingConfig(
        scheduler=options.on,
        least=hosts[0],
        most=hosts[1],
        folder=(options.shared_folder or Path("~/.local/state/fdt")).expanduser().absolute(),
        slots=slots_each(options),
        gpus=options.gpus or 0,
        idle_s=getattr(options, "idle", None) or PlacingConfig.idle_s,
        arguments=options.scheduler_args,
        tls_ca=_readable(tls_ca, "--tls-ca"),
        open_servers=getattr(options, "open_servers", False),
        walls=not (vars(options).get("no_walls") or walls_are_off()),
        bounds=_bounds(options),
    )


def slots_each(options: argparse.Namespace) -> int:
    """Returns the number of workers of each host from a scheduler."""
    return int(options.slots or options.gpus or 1)


def _hosts_for(options: argparse.Namespace) -> tuple[int, int]:
    """Returns the least and the most hosts that a run's workers need."""
    least, most = (-(-number // slots_each(options)) for number in options.workers)
    return least, most


def _network(options: argparse.Namespace) -> "Network":
    from fdt.base.config import Network
    from fdt.base.network import trusted

    if getattr(options, "dry_run", False) and "/" in options.trusted_network:
        # The machine of a dry run need not be on this network.
        return Network("", "POOL", options.trusted_network)
    return trusted(options.trusted_network, options.interface)
