"""The opening lines of a distributed `fit`: what will happen, and what a worker sees only a part of."""

from typing import Any

import keras

from fdt.config import RunConfig
from fdt.messages import program_pb2

_NAMES = {"sync": "Horovod ring all-reduce", "async": "parameter servers"}


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
    lines = [f"{config.mode} training on {workers} ({_NAMES[config.mode]})"]
    if config.batch == "global":
        lines.append(
            f"global batch {batch_size}, as in the script: {_shares(batch_size, num_workers)} rows a worker; number of steps "
            "and learning rate are the script's"
        )
    else:
        lines.append(
            f"global batch {batch_size} = {num_workers} x the script's batch (--batch per-worker); "
            f"learning rate scaled: {_scaling(config.scale_lr, num_workers)}"
        )
    if num_workers > 1:
        lines += _partial_views(model)
        if any(v.role == program_pb2.ROLE_SEED for v in program.variables):
            lines.append(
                "random layers (Dropout and the like): every worker draws its own numbers, rank 0 the script's"
            )
    return lines


def _shares(batch_size: int, num_workers: int) -> str:
    small, extra = divmod(batch_size, num_workers)
    return f"{small}" if not extra else f"{small} or {small + 1}"


def _scaling(rule: str, num_workers: int) -> str:
    if rule == "none":
        return "no"
    factor = num_workers if rule == "linear" else num_workers**0.5
    return f"x {factor:g}, reached over 5 epochs (--scale-lr {rule})"


def _partial_views(model: Any) -> list[str]:
    normalisations = [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
    if not normalisations:
        return []
    shown = ", ".join(normalisations[:3]) + (f" and {len(normalisations) - 3} more" if len(normalisations) > 3 else "")
    return [
        f"BatchNormalization ({shown}) sees only a worker's rows of a batch; its moving statistics are averaged over workers"
    ]
