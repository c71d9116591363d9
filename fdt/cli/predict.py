"""`fdt predict`: finds a script's training steps, measures them, and predicts the speed on more workers."""

import atexit
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from fdt import capture
from fdt.base import rounding
from fdt.base.config import RunConfig
from fdt.capture.purpose import Inspecting
from fdt.cli.options import Predict
from fdt.cli.settings import predict_config
from fdt.client.findings import Findings
from fdt.client.report import say
from fdt.errors import UsageError
from fdt.forecast import calibration
from fdt.forecast.forecasts import Prediction, read
from fdt.forecast.links import OVERLAP, Hosts, Machine
from fdt.forecast.quantities import bandwidth, duration
from fdt.forecast.samples import Found, Samples
from fdt.forecast.step_time import Workload
from fdt.script import file_overlay, runner
from fdt.script.stdout_redirect import output_aside


def predict(options: Predict) -> int:
    """Runs the command.

    Raises:
        UsageError: The options, or a file that they name, are wrong.
    """
    if options.calibrate:
        return _calibrate(options)
    if options.load is not None:
        known = read(options.load)
        link = _link(options)
        prediction = dataclasses.replace(
            known,
            transport=known.transport if link is None else link,
            workers=_workers(options, known.workers),
            batch=options.batch or known.batch,
            price=known.price if options.cost_per_hour is None else options.cost_per_hour,
            memory_bytes=options.memory or known.memory_bytes,
        )
        return _tell([prediction], options)
    return _of_script(options)


def _of_script(options: Predict) -> int:
    # Checked before the script runs, which may take a while.
    link, config = _link(options), predict_config(options)
    written = [path.absolute() for path in (options.json, options.plot) if path is not None]
    with _writing():
        for path in written:
            path.touch()
    told = file_overlay.enter(written)
    if told:
        say(told)
    findings, samples, hooks = Findings(), Samples(), contextlib.ExitStack()
    hooks.enter_context(capture.hooks(Inspecting(config, findings, samples), findings.refuse))
    atexit.register(hooks.close)
    with output_aside():
        status = runner.run(config.script, config.arguments)
    if runner.never_began():
        return status
    if status:
        say(f"{config.script} ended with status {status}; what follows that place was not checked")
    refused = findings.refusals()
    for finding in refused:
        say(f"{finding.where}: {finding.what} cannot be distributed: {finding.refusal}")
    found = samples.found()
    if not found:
        if not refused:
            say(f"no training step was found in {config.script}; there is nothing to predict")
        return status or 1
    from fdt.capture.behaviour import as_tensorflow_2

    with as_tensorflow_2():
        predictions = _measured(config, found, link, options)
    return status or _tell(predictions, options) or (1 if refused else 0)


def _measured(config: RunConfig, found: list[Found], link: Hosts | None, options: Predict) -> list[Prediction]:
    from fdt.cli import profiler

    for each in found:
        say(f"{each.where}: measuring {each.what} ({each.sample.rows} rows a batch)")
    workers, batch, price = _workers(options, (1, 2, 4, 8, 16)), options.batch or "global", options.cost_per_hour
    measured: Sequence[tuple[Workload, Hosts | Machine]]
    if link is not None:
        measured = [(workload, link) for workload in profiler.on_hosts(config, found)]
    elif options.server is not None and not options.measure:
        # `--measure` overrides a pool, which the environment may have named.
        measured = profiler.on_server(config, found)
    else:
        measured = profiler.on_machine(config, found)
    return [Prediction(*each, workers, batch, price, options.memory) for each in measured]


def _tell(predictions: list[Prediction], options: Predict) -> int:
    print("\n\n".join(prediction.text() for prediction in predictions), flush=True)
    # The files describe one step: the one that takes most of the script's time.
    main = max(predictions, key=lambda p: (p.workload.steps or 0) * p.workload.local)
    if len(predictions) > 1 and (options.json or options.plot):
        say(
            f"the files are about the step that takes most of the time: {main.workload.steps} of {main.workload.batch} rows"
        )
    with _writing():
        if options.json is not None:
            main.save(options.json)
        if options.plot is not None:
            main.plot(options.plot)
    return 0


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write there: {error}") from error


def _link(options: Predict) -> Hosts | None:
    """Returns the network between the hosts; None if no --bandwidth was given."""
    if options.bandwidth is None:
        given = (options.latency, options.overlap, options.queueing, options.wire)
        if any(of is not None for of in given):
            raise UsageError(
                "--latency, --queueing, --overlap and --wire belong to a network: give its --bandwidth too, such "
                "as 10Gbit"
            )
        return None
    latency, queueing = (0.0 if time is None else duration(time) for time in (options.latency, options.queueing))
    rounded = rounding.is_rounded({} if options.wire is None else {rounding.OPTION: options.wire})
    slots, overlap = options.gpus_per_host or 1, OVERLAP if options.overlap is None else options.overlap
    return Hosts(
        bandwidth(options.bandwidth),
        latency,
        overlap,
        queueing=queueing,
        rounded=rounded,
        slots=slots,
    )


def _workers(options: Predict, usual: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the numbers of workers to predict for; with --hosts: the whole cluster, its half, a quarter and so on to 1."""
    if options.workers is not None or options.hosts is None:
        return options.workers or usual
    found = [options.hosts * (options.gpus_per_host or 1)]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return tuple(reversed(found))


def _calibrate(options: Predict) -> int:
    found = calibration.calibrate([Path(name) for name in (options.script, *options.arguments)])
    print(found.text(), flush=True)
    if options.json is not None:
        found.save(options.json)
    return 0
