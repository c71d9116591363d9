"""Checks the combinations of options on a command line, and refuses those that have no meaning."""

import argparse
from collections.abc import Sequence

# Commands that can also run a module by its name.
_WITH_MODULES = ("run", "check", "verify")
# Options of `serve` that do not apply to a joining host, each with the remedy.
_POOLS_OWN = {
    "--mode": "a host runs what its pool offers; leave it out here, and give it where the pool is served",
    "--workers": "a host has --slots N, the number of workers that it offers",
    "--listen": "a host opens no port for clients, which call the pool. Leave it out",
    "--metrics": "the pool shows the figures of all its hosts; give it where the pool is served",
    "--page": "the pool's page shows all its hosts; give it where the pool is served",
    "--state": "a host keeps nothing; give it where the pool is served",
    "--tokens": "persons call the pool, not its hosts; give it where the pool is served",
    "--share": "the pool keeps what persons send; give it where the pool is served",
    "--audit-log": "the pool writes down what callers do; give it where the pool is served",
    "--admit": "the pool admits programs; give it where the pool is served",
    "--limit": "the pool bounds what clients and hosts may use; give it where the pool is served",
    "--grace": "a host's workers end with it, and their jobs go on elsewhere; give it where the pool is served",
    "--tls-cert": "a host shows no certificate, it checks the pool's: give --tls-ca",
}

# Options of `serve` that a joining host does not read from the environment: a scheduler may give it the pool's environment.
NOT_OF_HOSTS = (*_POOLS_OWN, "--no-token", "--on", "--hosts", "--gpus", "--idle", "--shared-folder", "--dry-run")


def check_script(
    parser: argparse.ArgumentParser, options: argparse.Namespace, script: str | None, arguments: Sequence[str]
) -> None:
    """Records the script, or the module, and its arguments."""
    # `predict --load` uses saved measurements and needs no script.
    if script is None and not getattr(options, "load", None):
        parser.error("expected a SCRIPT to run")
    options.module = script == "-m"
    if options.module:
        if options.command not in _WITH_MODULES:
            parser.error(f"`{options.command}` takes a file: expected a SCRIPT. Received: -m {' '.join(arguments[:1])}")
        if not arguments:
            parser.error("expected the name of a module after -m")
        script, *arguments = arguments
    if script == "-c":
        parser.error("a program on the command line has no file to be shown in errors: write it to one, and run that")
    options.script, options.arguments = script, tuple(arguments)


def check_placing(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Checks the options about hosts from a scheduler."""
    if options.on is None:
        for flag in ("hosts", "gpus", "idle", "shared_folder"):
            if getattr(options, flag, None) is not None:
                parser.error(
                    f"--{flag.replace('_', '-')} is about hosts that a scheduler brings: expected --on NAME too"
                )
        if options.scheduler_args:
            parser.error(f"arguments for a scheduler need --on NAME. Received: {' '.join(options.scheduler_args)}")
        if options.dry_run:
            parser.error("--dry-run shows what --on NAME would ask a scheduler for")
        return
    if options.trusted_network is None:
        parser.error(
            "--on needs --trusted-network NETWORK, such as 10.0.0.0/16: what workers of several hosts exchange is neither "
            "encrypted nor authenticated; name a network of the cluster that you trust with it"
        )


def check_serve(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Checks the combination of options of `serve`."""
    if (options.tls_cert is None) != (options.tls_key is None):
        parser.error("--tls-cert and --tls-key belong together: expected both or none")
    if options.no_token and options.token_file is not None:
        parser.error(
            f"expected --no-token or a token, not both. Received: --no-token --token-file {options.token_file}"
        )
    if options.no_token and options.tokens is not None:
        parser.error(
            f"--no-token lets everybody do everything: expected it or --tokens. Received: --no-token --tokens {options.tokens}"
        )
    if options.interface is not None and options.trusted_network is None:
        parser.error("--interface says which address on the --trusted-network; expected both")
    if options.open_servers and options.trusted_network is None:
        parser.error("--open-servers is about jobs over several hosts; expected --trusted-network too")
    check_placing(parser, options)
    if options.join is None:
        if options.name is not None:
            parser.error("--name goes with --join HOST:PORT: it is what the host is called")
        # --tls-ca is not checked: it may be set in the environment for other commands.
        if options.slots is not None and options.on is None:
            parser.error("--slots goes with --join HOST:PORT or --on NAME; a pool of its own has --workers")
        return
    if options.on is not None:
        parser.error(f"a host asks no scheduler: expected --join or --on, not both. Received: --on {options.on}")
    if options.no_token:
        parser.error("--no-token is the pool's own, and means nothing with --join: leave it out")
    for flag, remedy in _POOLS_OWN.items():
        value = getattr(options, flag[2:].replace("-", "_"))
        if value not in (None, ()) and value is not False:
            parser.error(f"{flag} is the pool's own, and means nothing with --join: {remedy}. Received: {flag} {value}")
    if options.slots is None:
        parser.error("--join needs --slots N: how many workers this host offers")
    if options.trusted_network is None:
        parser.error(
            "--join needs --trusted-network INTERFACE: what workers of several hosts exchange is neither encrypted nor "
            "authenticated; name a network that you trust with it, here and where the pool is served"
        )


def check_run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Checks the combination of options of `run`."""
    check_placing(parser, options)
    if options.on is None and (options.slots is not None or options.trusted_network is not None):
        parser.error("--slots and --trusted-network are about hosts that a scheduler brings: expected --on NAME too")
    if options.on is not None and options.server is not None:
        parser.error(
            "--on asks a scheduler for hosts for this run, and --server names a pool that is there: expected one of them. "
            f"Received: --on {options.on} --server {options.server} (or FDT_SERVER in the environment)"
        )
    if options.mode == "async" and (options.batch != "global" or options.scale_lr != "none"):
        given = f"--batch {options.batch}" if options.batch != "global" else f"--scale-lr {options.scale_lr}"
        parser.error(
            "in asynchronous training every worker takes one of the script's batches at a time, with the script's learning "
            f"rate; there is nothing to scale. Received: --mode async {given}"
        )
    for flag in ("memory", "disk"):
        if getattr(options, flag) is not None and options.server is not None:
            parser.error(
                f"--{flag} is about the workers of a pool for this run only; the pool at {options.server} bounds its own: "
                f"`fdt serve --{flag}`"
            )
    if options.data_map and options.server is None:
        parser.error(
            "--data-map names folders where another machine's pool reads them: expected --server too; the workers of a pool "
            f"for this run read what the script reads. Received: --data-map {options.data_map[0]}"
        )
    if options.admit and options.server is not None:
        parser.error(
            f"--admit is about a pool for this run only; the pool at {options.server} has its own: `fdt serve "
            f"--admit`. Received: --admit {','.join(options.admit)}"
        )
    if options.scale_lr != "none" and options.batch != "per-worker":
        parser.error(
            "--scale-lr goes with --batch per-worker: with the global batch kept, the script's learning rate is right "
            f"as it is. Received: --scale-lr {options.scale_lr} --batch {options.batch}"
        )


def check_token(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Checks the combination of arguments and options of `token`."""
    if (options.name is None) != (options.action == "list"):
        parser.error(
            f"expected `fdt token add NAME`, `revoke NAME` or `list`. Received: {options.action} {options.name or ''}"
        )
    if options.expires is not None and options.action != "add":
        parser.error("--expires says how long a new token is valid: expected `fdt token add NAME --expires 30d`")


def check_predict(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Checks the combination of options of `predict`."""
    if options.measure and options.bandwidth is not None:
        parser.error(
            f"expected --bandwidth or --measure, not both. Received: --measure --bandwidth {options.bandwidth}"
        )
    for flag in ("hosts", "gpus_per_host"):
        if getattr(options, flag) is not None and options.bandwidth is None:
            parser.error(f"--{flag.replace('_', '-')} needs the --bandwidth of each host's link, such as 25Gbit")
    if options.hosts is not None and options.workers is not None:
        most = options.hosts * (options.gpus_per_host or 1)
        if max(options.workers) > most:
            parser.error(f"expected {most} workers at most on {options.hosts} hosts. Received: {max(options.workers)}")
    if options.load is not None and (options.calibrate or options.script is not None):
        parser.error("--load takes the place of a script: expected `fdt predict --load FILE [OPTIONS]`")
