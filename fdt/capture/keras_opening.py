"""The opening lines of a distributed `fit`: what will happen, and what a worker sees only a part of."""

from typing import Any

import keras

from fdt.config import RunConfig
from fdt.messages import program_pb2


def opening_lines(model: Any, config: RunConfig, batch_size: int, program: program_pb2.StepProgram) -> list[str]:
    """Returns what to say before the first step.

    Args:
        model: The Keras model.
        config: The run's configuration.
        batch_size: Rows of a full step over all workers.
        program: The traced step.
    """
    num_workers = config.num_workers
    workers = "1 worker" if num_workers == 1 else f"{num_workers} workers"
    lines = _synchronous(config, batch_size) if config.mode == "sync" else _asynchronous(config, batch_size)
    optimizers = sum(hole.kind == program_pb2.Hole.KIND_GRADIENTS for hole in program.holes)
    if config.mode == "async" and optimizers > 1 and config.options.get("update") != "averaging":
        lines.append(
            f"the step has {optimizers} optimizers: all its gradients are computed before any of them is applied"
        )
    lines[0] = f"{config.mode} training on {workers} ({lines[0]})"
    if num_workers > 1:
        lines += _partial_views(model, config)
        if any(v.role == program_pb2.ROLE_SEED for v in program.variables):
            first = "rank 0" if config.mode == "sync" else "the first"
            lines.append(
                f"random layers (Dropout and the like): every worker draws its own numbers, {first} the script's"
            )
    return lines


def _synchronous(config: RunConfig, batch_size: int) -> list[str]:
    num_workers = config.num_workers
    if config.batch == "global":
        return [
            "Horovod ring all-reduce",
            f"global batch {batch_size}, as in the script: {_shares(batch_size, num_workers)} rows a worker; number of steps "
            "and learning rate are the script's",
        ]
    return [
        "Horovod ring all-reduce",
        f"global batch {batch_size} = {num_workers} x the script's batch (--batch per-worker); "
        f"learning rate scaled: {_scaling(config.scale_lr, num_workers)}",
    ]


def _asynchronous(config: RunConfig, batch_size: int) -> list[str]:
    update = config.options.get("update", "ddc-asgd")
    if update == "averaging":
        steps = int(config.options.get("average-every", 1))
        every = "step" if steps == 1 else f"{steps} steps"
        return [
            f"weights averaged after every {every} of each worker",
            f"every worker takes whole batches of the script's ({batch_size} rows) and updates weights of its own; number "
            "of steps is the script's",
        ]
    servers = int(config.options.get("ps", 1))
    kept = "a parameter server" if servers == 1 else f"{servers} parameter servers"
    late = "nobody else updates them meanwhile"
    if config.num_workers > 1:
        late = "a gradient meets parameters that others have updated meanwhile (its delay)"
    return [
        f"{kept}, update rule {update}",
        f"every worker takes whole batches of the script's ({batch_size} rows); number of updates and learning rate are the "
        f"script's; {late}",
    ]


def _shares(batch_size: int, num_workers: int) -> str:
    small, extra = divmod(batch_size, num_workers)
    return f"{small}" if not extra else f"{small} or {small + 1}"


def _scaling(rule: str, num_workers: int) -> str:
    if rule == "none":
        return "no"
    factor = num_workers if rule == "linear" else num_workers**0.5
    return f"x {factor:g}, reached over 5 epochs (--scale-lr {rule})"


def _partial_views(model: Any, config: RunConfig) -> list[str]:
    normalisations = [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
    if not normalisations:
        return []
    shown = ", ".join(normalisations[:3]) + (f" and {len(normalisations) - 3} more" if len(normalisations) > 3 else "")
    if config.mode == "async":
        return [f"BatchNormalization ({shown}): every worker has moving statistics of its own, averaged over workers"]
    return [
        f"BatchNormalization ({shown}) sees only a worker's rows of a batch; its moving statistics are averaged over workers"
    ]
