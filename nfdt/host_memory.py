"""Estimates what a job's hosts need of memory before its first step, and refuses a training that does not fit.

The estimate leaves out what is not known before a step has run, activations and snapshots: what does not fit by it does not fit
at all.
"""

import collections
import math
from collections.abc import Collection, Sequence

import tensorflow as tf

from fdt.base.worker_bounds import shown
from fdt.errors import UnsupportedError
from fdt.program.step_program import dtype_of
from fdt.v1 import program_pb2
from nfdt.devices import host_of
from nfdt.layout import Layout, ShardLayout
from nfdt.rules import Rule, Strength, Weigh

# A host's process with TensorFlow and a small step.
_PROCESS_BYTES = 200 << 20


def check(
    source: program_pb2.StepProgram,
    layout: Layout,
    rule: Rule | None,
    shard_devices: Sequence[str],
    worker_devices: Sequence[str],
    by_rows: Collection[int],
    memory_bytes: int,
) -> None:
    """Raises an error if a training does not fit.

    Args:
        source: The program.
        layout: The layout of its shards.
        rule: What shards keep besides; None for nothing.
        shard_devices: One for each shard.
        worker_devices: One for each worker.
        by_rows: The tables of which workers get rows.
        memory_bytes: What the process of each host may use.

    Raises:
        UnsupportedError: It does not fit.
    """
    kept, copies = collections.Counter[str](), collections.Counter[str]()
    for device, shard in zip(shard_devices, layout.shards, strict=False):
        kept[host_of(device)] += shard_bytes(source, shard, rule)
    for device in worker_devices:
        copies[host_of(device)] += worker_bytes(source, by_rows)
    need, host = max((_PROCESS_BYTES + kept[host] + copies[host], host) for host in {*kept, *copies})
    if need <= memory_bytes:
        return
    servers = [host_of(device) for device in shard_devices].count(host)
    raise UnsupportedError(
        f"The training does not fit into memory: a host with {servers} parameter server(s) and "
        f"{[host_of(device) for device in worker_devices].count(host)} worker(s) needs {shown(need)} ({shown(kept[host])} of "
        f"parameters, optimizer state and what the update rule keeps, {shown(copies[host])} of workers' parameters and "
        f"gradients, {shown(_PROCESS_BYTES)} of the process), and may use {shown(memory_bytes)} (--memory, or the machine's). "
        "Parameter servers on more hosts (--ps) hold less each, and --update asgd keeps nothing besides."
    )


def shard_bytes(source: program_pb2.StepProgram, shard: ShardLayout, rule: Rule | None) -> int:
    """Returns the bytes of a shard's variables, and of what a rule keeps for its parameters."""
    vectors = {vector: vector.length * _item_bytes(vector.dtype) for vector in shard.vectors}
    tables = sum(math.prod(table.shape) * _item_bytes(table.dtype) for table in shard.tables)
    fused = sum(size * (1 + len(vector.entries[0].slots)) for vector, size in vectors.items() if vector.fused)
    loose = sum(_num_bytes(source, i, shard.spans.get(i)) for i in shard.loose)
    squares = rule is not None and rule.compensates and rule.strength is Strength.ADAPTIVE
    mixed = rule is not None and rule.weigh is Weigh.GRADIENT
    return fused + loose + (squares + mixed) * (sum(vectors.values()) + tables)


def worker_bytes(source: program_pb2.StepProgram, by_rows: Collection[int]) -> int:
    """Returns the bytes of a worker's parameters, and of as many gradients; it has no table of which it gets rows."""
    trained = [i for i, variable in enumerate(source.variables) if variable.role == program_pb2.ROLE_TRAINABLE]
    return 2 * sum(_num_bytes(source, i, None) for i in trained if i not in by_rows)


def _num_bytes(source: program_pb2.StepProgram, index: int, span: tuple[int, int] | None) -> int:
    spec = source.variables[index].tensor
    shape = [*spec.shape] if span is None else [span[1], *spec.shape[1:]]
    return math.prod(shape) * dtype_of(spec).itemsize if min((*shape, 0)) >= 0 else 0


def _item_bytes(dtype: str) -> int:
    return int(tf.dtypes.as_dtype(dtype).size)
