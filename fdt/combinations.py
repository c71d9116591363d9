"""Which options go together: what a command line may say beside what else."""

import argparse
from collections.abc import Sequence

# These run modules by their names, too.
_WITH_MODULES = ("run", "check", "verify")
# Options of `serve` that a host which joins a pool has no use for, and what to do instead.
_POOLS_OWN = {
    "--mode": "a host runs what its pool offers; leave it away here, and give it where the pool is served",
    "--workers": "a host says with --slots N how many it offers",
    "--listen": "a host opens no port for clients; they go to the pool. Leave it away",
    "--metrics": "the pool shows the figures of all its hosts; give it where the pool is served",
    "--tls-cert": "a host shows no certificate, it checks the pool's: give --tls-ca",
}


def check_script(
    parser: argparse.ArgumentParser, options: argparse.Namespace, script: str | None, arguments: Sequence[str]
) -> None:
    """Takes the script, or the module, and what it is given."""
    # What was measured can be read again without the script.
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
    if script is not None and script.endswith(".ipynb"):
        parser.error(
            f"a notebook is no Python file: save it as one (`jupyter nbconvert --to script {script}`), and run that"
        )
    options.script, options.arguments = script, tuple(arguments)


def check_serve(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Which options of a pool go together."""
    if (options.tls_cert is None) != (options.tls_key is None):
        parser.error("--tls-cert and --tls-key belong together: expected both or none")
    if options.no_token and options.token_file is not None:
        parser.error(
            f"expected --no-token or a token, not both. Received: --no-token --token-file {options.token_file}"
        )
    if options.interface is not None and options.trusted_network is None:
        parser.error("--interface says which address on the --trusted-network; expected both")
    if options.open_servers and options.trusted_network is None:
        parser.error("--open-servers is about jobs over several hosts; expected --trusted-network too")
    if options.join is None:
        # Not --tls-ca: it may be set in the environment, for other commands.
        if options.slots is not None:
            parser.error("--slots goes with --join HOST:PORT; a pool of its own has --workers")
        return
    if options.no_token:
        parser.error("--no-token is the pool's own, and means nothing with --join: leave it away")
    for flag, remedy in _POOLS_OWN.items():
        value = getattr(options, flag[2:].replace("-", "_"))
        if value is not None:
            parser.error(f"{flag} is the pool's own, and means nothing with --join: {remedy}. Received: {flag} {value}")
    if options.slots is None:
        parser.error("--join needs --slots N: how many workers this host offers")
    if options.trusted_network is None:
        parser.error(
            "--join needs --trusted-network INTERFACE: what workers of several hosts say to each other is neither "
            "encrypted nor authenticated; name the network that you trust with it, here and where the pool is served"
        )


def check_run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Which options of a run go together."""
    if options.mode == "async" and (options.batch != "global" or options.scale_lr != "none"):
        given = f"--batch {options.batch}" if options.batch != "global" else f"--scale-lr {options.scale_lr}"
        parser.error(
            "in asynchronous training every worker takes one of the script's batches at a time, with the script's learning "
            f"rate; there is nothing to scale. Received: --mode async {given}"
        )
    if options.scale_lr != "none" and options.batch != "per-worker":
        parser.error(
            "--scale-lr goes with --batch per-worker: with the global batch kept, the script's learning rate is right "
            f"as it is. Received: --scale-lr {options.scale_lr} --batch {options.batch}"
        )


def check_predict(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Which options of a prediction go together."""
    if options.measure and options.bandwidth is not None:
        parser.error(
            f"expected --bandwidth or --measure, not both. Received: --measure --bandwidth {options.bandwidth}"
        )
    if options.load is not None and (options.calibrate or options.script is not None):
        parser.error("--load takes the place of a script: expected `fdt predict --load FILE [OPTIONS]`")
