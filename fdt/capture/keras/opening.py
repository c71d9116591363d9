"""Writes the opening lines of a training: what will happen, and which state each worker keeps for itself."""

from collections.abc import Sequence
from typing import Any

from fdt.base.config import RunConfig
from fdt.base.held import memory_bytes
from fdt.base.relaxation import BATCH_NORM, RANDOM, relaxed
from fdt.base.worker_bounds import shown
from fdt.capture.step.divided import divided_variables
from fdt.capture.step.seeds import is_seeded
from fdt.capture.step.traced_step import TracedStep
from fdt.capture.step.variables import tf_variables
from fdt.capture.step.writes import counting_draws
from fdt.division import memory
from fdt.program.table_lookups import ByRows, table_bytes, tables_of
from fdt.v1 import program_pb2

_RELAXED = {
    BATCH_NORM: "BatchNormalization takes the moments of each worker's own rows; moving statistics are their mean",
    RANDOM: "every worker draws random numbers of its own for its rows, not the script's",
}
# A dynamic scale grows until something overflows.
_HALF = (
    "float16: a worker's part of a sum over the batch may overflow where the whole does not, and the loss scale then skips "
    "another step than plain python does; bfloat16 (mixed_bfloat16) does not overflow"
)


def stateful(layers: Sequence[Any]) -> list[str]:
    """Returns the names of stateful layers: they carry state from row i of a batch to row i of the next."""
    found = [layer for layer in layers if getattr(layer, "stateful", False)]
    # A model is stateful if one of its layers is.
    return [layer.name for layer in found if not hasattr(layer, "layers")] or [layer.name for layer in found]


def opening_lines(config: RunConfig, batch_size: int | None, traced: TracedStep) -> list[str]:
    """Returns the lines to print before the first step.

    Args:
        config: The run's configuration.
        batch_size: Rows of a full step over all workers; None if that is not known.
        traced: The step.
    """
    num_workers, program = config.num_workers, traced.program
    workers = "1 worker" if num_workers == 1 else f"{num_workers} workers"
    lines = _synchronous(config, batch_size) if config.mode == "sync" else _asynchronous(config, batch_size)
    optimizers = sum(hole.kind == program_pb2.Hole.KIND_GRADIENTS for hole in program.holes)
    if config.pulls_parameters and optimizers > 1:
        lines.append(
            f"the step applies gradients in {optimizers} places: all of them are computed before any is applied"
        )
    if config.pulls_parameters:
        lines += _tables(traced)
    if traced.prints:
        lines.append("the step prints with tf.print: its workers do, into the log of the job")
    if config.mode == "sync":
        lines += held_in_parts(config, traced)
    lines[0] = f"{config.mode} training on {workers} ({lines[0]})"
    return [*lines, *other_numbers(config, traced), *own_views(config, traced)]


def held_in_parts(config: RunConfig, traced: TracedStep) -> list[str]:
    """Returns the message that synchronous workers hold some of the variables in parts, if they do."""
    layouts = divided_variables(config, traced)
    if not layouts:
        return []
    line, most = str(memory.account(traced.program, layouts)), memory_bytes(config.options)
    whole = memory.needed(traced.program, {}).bytes
    if most is not None and whole > most:
        line += f"; all of them in each worker do not fit: it would need {shown(whole)}, and may use {shown(most)} of memory"
    return [line]


def other_numbers(config: RunConfig, traced: TracedStep) -> list[str]:
    """Returns, in words, why a step draws other random numbers than plain python does.

    Args:
        config: The run's configuration.
        traced: The step.
    """
    if not traced.is_random:
        return []
    lines = []
    if traced.program.computation.compiled:
        lines.append(
            "warning: jit_compile=True: plain python draws random numbers as XLA does; the pool's workers draw those of "
            "jit_compile=False"
        )
    if traced.watch is not None and (traced.random_states or counting_draws(traced.graph)):
        lines.append(
            "warning: run_eagerly=True: in plain python each operation of tf.random begins from a seed of its own whenever it "
            "runs; the pool's workers draw other numbers. keras.random with a SeedGenerator draws plain python's"
        )
    counting = counting_draws(traced.graph) if traced.is_any_size else []
    if config.mode == "sync" and config.num_workers > 1 and counting:
        lines.append(
            f"warning: the step draws by {' and '.join(counting)}, which for a batch of another size begins from its seed "
            "again; for plain python's numbers give all batches one size (drop_remainder=True)"
        )
    return lines


def apart(config: RunConfig, traced: TracedStep) -> list[str]:
    """Returns the reasons why a step gives results here and on the pool that are not identical to the last digit.

    Args:
        config: The run's configuration.
        traced: The step.
    """
    unseeded = (traced.random_states or counting_draws(traced.graph)) and not is_seeded()
    lines = ["it draws random numbers without a seed; give it one: keras.utils.set_random_seed(1)"] if unseeded else []
    return [*lines, *own_views(config, traced)]


def turns(config: RunConfig, is_watched: bool) -> list[str]:
    """Returns the message that workers take turns, where they cannot work at once.

    Args:
        config: The run's configuration.
        is_watched: Whether the script or a callback reads each step's results before the next step.
    """
    if config.mode == "sync" or config.num_workers == 1 or not is_watched:
        return []
    return ["the script looks at every step before it makes the next: the workers take turns, one step at a time"]


def own_views(config: RunConfig, traced: TracedStep) -> list[str]:
    """Returns messages on what each worker computes for itself, so that results are not identical to one machine's.

    Args:
        config: The run's configuration.
        traced: The step.
    """
    if config.num_workers == 1:
        return []
    lines = []
    if config.options.get("wire") == "fp16":
        lines.append("--wire fp16: what workers exchange is rounded to 16 bits (3 digits; beyond 65504 it is infinite)")
    if config.mode == "sync":
        if traced.scales_half:
            lines.append(_HALF)
        return [*lines, *(f"--relax {kind}: {_RELAXED[kind]}" for kind in sorted(relaxed(config.options)))]
    lines += _moving_statistics(traced)
    if traced.is_random:
        lines.append("random layers (Dropout and the like): every worker draws its own numbers, the first the script's")
    of_layers = {id(v) for layer in traced.normalisations for v in tf_variables(layer.weights)}
    for variable, described in zip(traced.variables, traced.program.variables, strict=True):
        if described.role == program_pb2.ROLE_OTHER and id(variable) not in of_layers and traced.writes(variable):
            lines.append(
                f"state of the step's own ({variable.name.removesuffix(':0')}): no optimizer's or metric's; every "
                "worker updates one by its own rows, and the script sees their mean: of a count of rows, "
                f"1/{config.num_workers}. Keep a count in a metric, such as keras.metrics.Sum"
            )
    return lines


def _synchronous(config: RunConfig, batch_size: int | None) -> list[str]:
    num_workers = config.num_workers
    if config.batch == "global":
        if batch_size is None:
            size = "global batch as in the script, its rows divided over the workers"
        else:
            size = f"global batch {batch_size}, as in the script: {_shares(batch_size, num_workers)}"
        return ["Horovod ring all-reduce", f"{size}; number of steps and learning rate are the script's"]
    return [
        "Horovod ring all-reduce",
        f"global batch {batch_size} = {num_workers} x the script's batch (--batch per-worker); "
        f"learning rate scaled: {_scaling(config.scale_lr, num_workers)}",
    ]


def _asynchronous(config: RunConfig, batch_size: int | None) -> list[str]:
    update = config.options.get("update", "ddc-asgd")
    rows = "" if batch_size is None else f" ({batch_size} {'row' if batch_size == 1 else 'rows'})"
    if update == "averaging":
        steps = int(config.options.get("average-every", 1))
        every = "step" if steps == 1 else f"{steps} steps"
        return [
            f"weights averaged after every {every} of each worker",
            f"every worker takes whole batches of the script's{rows} and updates weights of its own; number "
            "of steps is the script's",
        ]
    servers = int(config.options.get("ps", 1))
    kept = "a parameter server" if servers == 1 else f"{servers} parameter servers"
    late = "nobody else updates them meanwhile"
    if config.num_workers > 1:
        late = "a gradient meets parameters that others have updated meanwhile (its delay)"
    return [
        f"{kept}, update rule {update}",
        f"every worker takes whole batches of the script's{rows}; number of updates and learning rate are the "
        f"script's; {late}",
    ]


def lacking(config: RunConfig, traced: TracedStep) -> str | None:
    """Returns what of a model no worker holds, so that workers cannot make steps that train nothing; None if they can.

    Args:
        config: The run's configuration.
        traced: The training step.
    """
    if config.mode == "sync":
        return None
    if not config.pulls_parameters:
        return "each worker has weights of its own (--update averaging)"
    by_rows = [i for i, verdict in tables_of(traced.program).items() if isinstance(verdict, ByRows)]
    name = traced.variables[by_rows[0]].name.removesuffix(":0") if by_rows else ""
    return f"workers get single rows of {name}, and no one holds all of it" if by_rows else None


def _tables(traced: TracedStep) -> list[str]:
    """Returns how workers get large tables: as the rows that a batch uses, or whole, and why."""
    by_rows, lines = list[str](), list[str]()
    for index, verdict in tables_of(traced.program).items():
        size = table_bytes(traced.program, index) / 1e6
        name = f"{traced.variables[index].name.removesuffix(':0')} ({size:.1f} MB)"
        if isinstance(verdict, ByRows):
            by_rows.append(name)
        else:
            lines.append(f"table {name} is pulled whole in each step: {verdict.reason}")
    if by_rows:
        shown = ", ".join(by_rows[:3]) + (f" and {len(by_rows) - 3} more" if len(by_rows) > 3 else "")
        lines.insert(0, f"tables that go by rows, those that a batch uses: {shown}")
    return lines


def _shares(batch_size: int, num_workers: int) -> str:
    """Returns what each worker takes of a batch."""
    small, extra = divmod(batch_size, num_workers)
    if not small:
        return f"one row for {extra} of the {num_workers} workers, none for the others"
    rows = f"{small}" if not extra else f"{small} or {small + 1}"
    return f"{rows} {'row' if rows == '1' else 'rows'} a worker"


def _scaling(rule: str, num_workers: int) -> str:
    if rule == "none":
        return "no"
    factor = num_workers if rule == "linear" else num_workers**0.5
    return f"x {factor:g}, reached over 5 epochs (--scale-lr {rule})"


def _moving_statistics(traced: TracedStep) -> list[str]:
    normalisations = [layer.name for layer in traced.normalisations if layer.trainable]
    if not normalisations:
        return []
    shown = ", ".join(normalisations[:3]) + (f" and {len(normalisations) - 3} more" if len(normalisations) > 3 else "")
    return [f"BatchNormalization ({shown}): every worker has moving statistics of its own, averaged over workers"]
