"""From options to configuration: what the commands were told, checked as far as that needs no pool and no script."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdt.options import DEFAULT_LISTEN, DEFAULT_WORKERS, MODES, RUNTIME_OPTIONS

if TYPE_CHECKING:
    from fdt.config import Credentials, JoinConfig, Network, RunConfig, ServeConfig


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


def open_to_others(path: Path) -> str | None:
    """Returns the remedy for a file that holds a secret and that others on this machine can read or write."""
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
    """Reads how a client proves itself.

    Args:
        options: That may name a token file; if they do not, a pool of this user's has left its token.
        address: Of the pool; None for one that is yet to be started.

    Raises:
        UsageError: A file cannot be read, or holds no token.
    """
    from fdt import keys
    from fdt.config import Credentials

    token = _token(options.token_file)
    if token is None and address is not None:
        token = keys.find(address)
    return Credentials(token=token, tls_ca=_readable(options.tls_ca, "--tls-ca"))


def run_config(options: argparse.Namespace) -> "RunConfig":
    """Builds the configuration of `run`.

    Raises:
        UsageError: A file cannot be read, or the report not be written.
    """
    from fdt.config import RunConfig
    from fdt.errors import UsageError

    report: Path | None = options.report
    if report is not None:
        # The script may change the directory before the report is written.
        report = report.absolute()
        if report.is_dir() or not os.access(report.parent, os.W_OK):
            raise UsageError(
                f"cannot write a report there: expected a file in a writable directory. Received: {report}"
            )
    prediction: Path | None = options.prediction
    if prediction is not None:
        if report is None:
            raise UsageError("--prediction is compared with the run in its report: give --report FILE too")
        prediction = prediction.absolute()
        from fdt.predicting.forecasts import read

        read(prediction)
    return RunConfig(
        script=options.script,
        arguments=options.arguments,
        is_module=options.module,
        mode=options.mode,
        num_workers=options.workers,
        prediction=prediction,
        tensorboard=None if options.tensorboard is None else options.tensorboard.absolute(),
        server=options.server,
        batch=options.batch,
        scale_lr=options.scale_lr,
        report=report,
        credentials=credentials(options, options.server),
        options=runtime_options(options),
        stop_after=options.stop_after or 0,
        warm_up=options.warm_up or 0,
        else_local=options.otherwise == "local",
    )


def check_config(options: argparse.Namespace) -> "RunConfig":
    """Builds the configuration of `check`."""
    from fdt.config import RunConfig

    return RunConfig(
        script=options.script,
        arguments=options.arguments,
        is_module=options.module,
        mode=options.mode,
        num_workers=options.workers,
        options=runtime_options(options),
        only_looks=True,
        else_local=options.otherwise == "local",
    )


def predict_config(options: argparse.Namespace) -> "RunConfig":
    """Builds the configuration of `predict`: that of a step which is divided.

    Raises:
        UsageError: A file cannot be read.
    """
    from fdt.config import RunConfig

    return RunConfig(
        script=options.script,
        arguments=options.arguments,
        num_workers=2,
        server=options.server,
        credentials=credentials(options, options.server),
        options={} if options.relax is None else {"relax": options.relax},
    )


def verify_config(options: argparse.Namespace) -> "RunConfig":
    """Builds the configuration of `verify`.

    Raises:
        UsageError: A file cannot be read.
    """
    from fdt.config import RunConfig

    return RunConfig(
        script=options.script,
        arguments=options.arguments,
        is_module=options.module,
        num_workers=options.workers,
        server=options.server,
        credentials=credentials(options, options.server),
        verify_steps=options.steps,
        tolerance=options.tolerance,
    )


def runtime_options(options: argparse.Namespace) -> dict[str, str]:
    """Returns the runtime's options that were given, by their names in a job."""
    given = {name: getattr(options, name.replace("-", "_")) for name in RUNTIME_OPTIONS}
    return {name: value for name, value in given.items() if value is not None}


def offered(options: argparse.Namespace) -> tuple[str, ...]:
    """Returns the modes that a pool is to offer."""
    return tuple(MODES) if options.mode == "both" else (options.mode,)


def makes_token(options: argparse.Namespace) -> bool:
    """Returns whether a pool is to make its token by itself."""
    return options.token_file is None and not options.no_token


def serve_config(options: argparse.Namespace) -> "ServeConfig":
    """Builds the configuration of `serve`.

    Raises:
        UsageError: A file cannot be read, or holds no token.
    """
    import secrets

    from fdt import keys
    from fdt.config import ServeConfig

    listen, token = options.listen or DEFAULT_LISTEN, _token(options.token_file)
    if makes_token(options):
        # Off loopback nobody would find it: `fdt.rpc.check_listen` asks for one that is given.
        token = secrets.token_hex(32) if keys.is_local(listen) else None
    if options.tls_key is not None and options.tls_key.is_file():
        _warn_of_readers(options.tls_key, "private key of the certificate")
    return ServeConfig(
        listen=listen,
        modes=offered(options),
        num_workers=DEFAULT_WORKERS if options.workers is None else options.workers,
        token=token,
        tls_cert=_readable(options.tls_cert, "--tls-cert"),
        tls_key=_readable(options.tls_key, "--tls-key"),
        network=_network(options) if options.trusted_network is not None else None,
        open_servers=options.open_servers,
        metrics=options.metrics,
        walls=not options.no_walls,
    )


def join_config(options: argparse.Namespace) -> "JoinConfig":
    """Builds the configuration of `serve --join`.

    Raises:
        UsageError: A file cannot be read, or this machine is not on the trusted network.
    """
    import platform

    from fdt.config import JoinConfig

    network = _network(options)
    return JoinConfig(
        pool=options.join,
        num_workers=options.slots,
        network=network,
        name=platform.node() or network.address,
        open_servers=options.open_servers,
        walls=not options.no_walls,
        credentials=credentials(options, options.join),
    )


def _network(options: argparse.Namespace) -> "Network":
    from fdt.pool.network import trusted

    return trusted(options.trusted_network, options.interface)
