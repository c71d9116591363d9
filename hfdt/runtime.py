"""Implements the synchronous runtime: N ranks run every step together, each on its part of the batch."""

import contextlib
import os
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

from fdt.base import held, relaxation, rounding
from fdt.base.held import HeldAs
from fdt.base.native import library, optional
from fdt.base.relaxation import BATCH_NORM
from fdt.division.variable_layouts import MIN_TABLE_BYTES
from fdt.errors import ProtocolError, WorkerError
from fdt.program import computation, variable_value
from fdt.program.engine import as_rows, as_state, assign, bound_arrays, state_values
from fdt.program.layout import shares
from fdt.program.packing import as_array, content, empty, joined, pack_outputs
from fdt.program.row_reader import RowReader
from fdt.program.step_program import LoadedProgram, load, num_samples
from fdt.program.update.one_pass import in_one_pass
from fdt.transport.blob_store import BlobStore
from fdt.v1 import job_pb2, program_pb2
from fdt.worker.runtime import Assignment, Batch, Deliver, Rendezvous
from hfdt import background_thread, exchange, parts
from hfdt.batches import Arrays, ReadBatch, TakenBatch, together_in_a_call
from hfdt.bridge import Bridge
from hfdt.division import DividedProgram
from hfdt.horovod import MISSING, hvd
from hfdt.launch import ADDRESS
from hfdt.loop import StepLoop
from hfdt.mesh import Mesh

# How many accounts of divided steps are reported; a script has a handful.
_MAX_ACCOUNTS = 64
_METRIC = program_pb2.ROLE_METRIC
# Before workers are forked, and see the compiler no more. A rank that is alone works without the operations.
optional("hfdt")
# The roles that a drain returns; the client knows the values of others.
_DRAINED = (
    program_pb2.ROLE_TRAINABLE,
    program_pb2.ROLE_OPTIMIZER,
    program_pb2.ROLE_METRIC,
    program_pb2.ROLE_SEED,
    program_pb2.ROLE_OTHER,
)


class HorovodEngine:
    """One rank; see `fdt.worker.runtime.Engine`."""

    def __init__(self) -> None:
        self._programs: dict[int, LoadedProgram] = {}
        self._divided: dict[int, DividedProgram] = {}
        self._data: dict[int, Arrays | RowReader] = {}
        self._blobs: BlobStore | None = None
        self._meter: exchange.Meter | None = None
        self._mesh: Mesh | None = None
        self._rank = 0
        self._size = 1
        self._rounded = False
        self._relaxed: frozenset[str] = frozenset()
        self._held = HeldAs.AUTO
        self._memory_bytes: int | None = None
        self._compiles_around = False
        self._steps = 0
        self._usage = job_pb2.WorkerUsage()
        self._run_s = 0.0
        # Accounts of forgotten programs.
        self._accounts: list[job_pb2.DividedStep] = []
        # Outputs of the last step, by program.
        self._last: dict[int, list[np.ndarray]] = {}

    def join(self, assignment: Assignment, blobs: BlobStore, rendezvous: Rendezvous) -> None:
        """Starts Horovod and connects to the other ranks; a rank that is alone starts none."""
        os.environ.update(assignment.environment)
        tf.config.threading.set_intra_op_parallelism_threads(assignment.num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(2)
        _pin_gpu(assignment.rank)
        self._blobs = blobs
        if assignment.num_workers > 1:
            self._meet(assignment, rendezvous)
        self._rounded = rounding.is_rounded(assignment.options)
        self._relaxed = relaxation.relaxed(assignment.options)
        self._held = HeldAs.WHOLE if BATCH_NORM in self._relaxed else held.held_as(assignment.options)
        self._memory_bytes = held.memory_bytes(assignment.options)
        self._meter = exchange.Meter()

    def _meet(self, assignment: Assignment, rendezvous: Rendezvous) -> None:
        """Connects to the other ranks, by Horovod and by the mesh.

        Raises:
            WorkerError: Horovod is not installed, or found other ranks.
            NativeError: The mesh's operations are not compiled.
        """
        if MISSING:
            raise WorkerError(
                f"Several synchronous workers need Horovod on their host: {MISSING}. There run `fdt setup`."
            )
        library("hfdt")
        with Bridge(rendezvous) as bridge:
            os.environ.update(bridge.environment())
            hvd.init()
        background_thread.sleep_when_idle()
        self._rank, self._size = hvd.rank(), hvd.size()
        if self._size != assignment.num_workers:
            raise WorkerError(f"Horovod found {self._size} ranks, the job has {assignment.num_workers}.")
        self._mesh = Mesh(self._rank, self._size, assignment.environment[ADDRESS], rendezvous)

    def load(self, program: int, step_program: program_pb2.StepProgram) -> None:
        """Imports the step."""
        if not computation.is_compiled(step_program.computation) and not tf.config.get_visible_devices("GPU"):
            # With one rank the script gets plain python's bits. Of smaller tables ranks exchange sums, not rows.
            table_bytes = 0 if self._size == 1 else MIN_TABLE_BYTES
            step_program = in_one_pass(step_program, self._size == 1, table_bytes)
        loaded = load(
            step_program,
            lambda: exchange.from_first_rank("fdt_seed", random.getrandbits(31)),
            lambda undivided: parts.chosen(undivided, self._size, self._held, self._memory_left()),
            self._rank,
        )
        self._programs[program] = loaded
        self._divided[program] = DividedProgram(loaded, program, self._size, self._mesh, self._rounded, self._relaxed)

    def _memory_left(self) -> int | None:
        """Returns what the programs loaded so far leave of this rank's memory; None if it is not known."""
        if self._memory_bytes is None:
            return None
        return max(1, self._memory_bytes - sum(parts.account(each).worker_bytes for each in self._programs.values()))

    def forget(self, program: int) -> None:
        """Frees a program; the accounts of its divided steps are kept."""
        self._accounts += self._divided[program].accounts
        for known in (self._programs, self._divided):
            del known[program]
        self._last.pop(program, None)

    def bind(self, data: int, arrays: Sequence[job_pb2.Array], passing: bool) -> None:
        """Maps the arrays; ranks of one host share the pages."""
        assert self._blobs is not None
        self._data[data] = Arrays(bound_arrays(self._blobs, arrays))

    def bind_rows(self, data: int, rows: RowReader) -> None:
        """Keeps the reader; each rank reads its own rows, and others only if the divided step needs them."""
        self._data[data] = rows

    def expect(self, program: int, batches: Sequence[Batch]) -> None:
        """Begins to read the rows of this rank, of batches of a size for which the step is divided."""
        for data, raw in batches:
            reader = self._data[data]
            if isinstance(reader, RowReader):
                rows = np.frombuffer(raw, "<i8")
                own = self._divided[program].own_rows(reader.shapes(len(rows)))
                if own is not None:
                    reader.expect(rows[own])

    def release(self, data: int) -> None:
        """Unmaps the arrays."""
        released = self._data.pop(data)
        if isinstance(released, RowReader):
            released.close()

    def assign(self, program: int, state: job_pb2.State) -> None:
        """Sets variables; of a variable that ranks hold as a sum, rank 0 gets the value and the others zeros."""
        assert self._blobs is not None
        loaded = self._programs[program]
        own = {i: parts.span(layout, self._rank) for i, layout in loaded.divided.items()}
        for i, pieces in state_values(self._blobs, loaded.source, state, own):
            assign(loaded.variables[i], pieces if i in own else [self._part(program, i, joined(pieces))])

    def move(self, program: int, variables: Sequence[int], source: int, source_variables: Sequence[int]) -> None:
        """Sets variables to another program's values; whole variables are copied on the device."""
        target, giving = self._programs[program], self._programs[source]
        # Programs that hold a variable in the same parts hand these over.
        alike = {
            j
            for i, j in zip(variables, source_variables, strict=True)
            if target.divided.get(i) == giving.divided.get(j)
        }
        values: dict[int, Any] = self._combined(
            source, [j for j in source_variables if j not in alike or j not in giving.divided]
        )
        for i, j in zip(variables, source_variables, strict=True):
            value = values.get(j, giving.variables[j])
            own = value if i in target.divided and j in alike else self._part(program, i, value)
            variable_value.write(target.variables[i], own)

    def _part(self, program: int, index: int, value: Any) -> Any:
        """Returns this rank's share of a variable's value."""
        layout = self._programs[program].divided.get(index)
        if layout is not None:
            start, count = parts.span(layout, self._rank)
            return value[start : start + count]
        return np.zeros_like(value) if index in self._divided[program].in_part and self._rank > 0 else value

    def run(self, program: int, batches: Sequence[Batch], deliver: Deliver | None) -> None:
        """Runs the steps: several in one graph loop where possible, each in its own call if `deliver` wants outputs."""
        started, made = time.perf_counter(), 0
        taken = map(self._taken, batches)
        for together in together_in_a_call(self._divided[program], taken, alone=deliver is not None):
            self._run_together(program, together)
            self._steps += len(together)
            if deliver is not None:
                deliver(made, self._outputs(program))
            made += len(together)
        self._run_s += time.perf_counter() - started

    def _taken(self, batch: Batch) -> TakenBatch | ReadBatch:
        data, raw = batch
        rows = np.frombuffer(raw, "<i8")
        if not rows.size:
            raise ProtocolError("A step came without a sample; expected at least one row in each batch.")
        source = self._data[data]
        return ReadBatch(source, rows) if isinstance(source, RowReader) else TakenBatch(source, rows)

    def steps(self) -> int:
        """Returns how many steps have been run."""
        return self._steps

    def _run_together(self, program: int, batches: Sequence[TakenBatch | ReadBatch]) -> None:
        """Runs steps in one call."""
        divided, shapes = self._divided[program], batches[0].shapes
        around = divided.is_compiled and self._size > 1
        if around != self._compiles_around:
            self._compiles_around = around
            computation.compile_around_exchanges(around)
        loop, numbers, no_longer_in_part = divided.loop(shapes)
        for i, value in self._sums(program, no_longer_in_part).items():
            self._programs[program].variables[i].assign(value)
        own = divided.own_rows(shapes)
        assert own is not None
        taken = [batch.read(own) if isinstance(batch, ReadBatch) else batch for batch in batches]
        first = taken[0]
        with background_thread.at_work() if divided.calls_horovod else contextlib.nullcontext():
            if isinstance(loop, StepLoop):
                self._last[program] = loop.run(first.source.arrays, np.stack([batch.rows for batch in taken]), numbers)
            else:
                others = [divided.loop(batch.shapes)[1] for batch in taken[1:]]
                self._last[program] = loop.run([batch.values() for batch in taken], [numbers, *others])
        source = self._programs[program].source
        # A test step trains on no rows.
        if source.holes:
            self._usage.steps += len(batches)
            samples = (shares(num_samples(source, batch.shapes), self._size)[self._rank] for batch in batches)
            self._usage.samples += sum(samples)

    def drain(self, program: int, what: "job_pb2.Drain.What", variables: Sequence[int] = ()) -> job_pb2.Drained:
        """Returns the combined state of all ranks."""
        loaded = self._programs[program]
        everything = what == job_pb2.Drain.WHAT_ALL
        among = variables or loaded.with_role(*(_DRAINED if everything else (_METRIC,)))
        values: dict[int, Any] = dict(self._sums(program, [i for i in among if i in self._divided[program].in_part]))
        whole = [i for i in among if i not in values and i not in loaded.divided]
        values |= {i: as_array(variable_value.read(loaded.variables[i])) for i in whole}
        if everything:
            self._agree(loaded, whole, [values[i] for i in whole])
        in_parts = {i: loaded.variables[i] for i in sorted(set(among) & set(loaded.divided))}
        assert self._blobs is not None
        rows = [as_rows(self._blobs, in_parts)] if in_parts else []
        if self._rank:
            return job_pb2.Drained(state=job_pb2.State(rows=rows))
        state = as_state(self._blobs, values)
        state.variables.extend(in_parts)
        state.rows.extend(rows)
        outputs = b"" if variables else self._outputs(program)
        return job_pb2.Drained(state=state, outputs=self._blobs.payload(outputs))

    def usage(self) -> list[job_pb2.WorkerUsage]:
        """Returns this rank's account."""
        assert self._meter is not None
        seconds, num_bytes = self._meter.read()
        self._usage.rank = self._rank
        self._usage.exchange_s, self._usage.exchanged_bytes = seconds, num_bytes
        self._usage.compute_s = max(0.0, self._run_s - seconds)
        # These are equal on all ranks, so only rank 0 reports them.
        accounts = [*self._accounts, *(account for divided in self._divided.values() for account in divided.accounts)]
        del self._usage.divided[:]
        self._usage.divided.extend([] if self._rank else accounts[-_MAX_ACCOUNTS:])
        return [self._usage]

    def _combined(self, program: int, among: Iterable[int]) -> dict[int, np.ndarray]:
        """Returns the whole values of those given variables of which ranks hold parts: sums, or rows."""
        loaded = self._programs[program]
        values = self._sums(program, [i for i in among if i in self._divided[program].in_part])
        return values | {i: parts.put_together(loaded, i) for i in sorted(set(among) & set(loaded.divided))}

    def _sums(self, program: int, indices: Iterable[int]) -> dict[int, np.ndarray]:
        indices = sorted(indices)
        arrays = [as_array(variable_value.read(self._programs[program].variables[i])) for i in indices]
        return dict(zip(indices, exchange.sum_over_ranks("fdt_in_part", arrays, self._mesh), strict=True))

    def _outputs(self, program: int) -> bytes:
        """Returns the last step's outputs, packed."""
        described = [output.tensor for output in self._programs[program].source.outputs]
        return pack_outputs(self._last.get(program) or [empty(tensor) for tensor in described], described)

    def _agree(self, loaded: LoadedProgram, indices: Sequence[int], values: Sequence[np.ndarray]) -> None:
        """Checks that all ranks hold the same values; where these differ in rounding takes rank 0's: it does not add up.

        What each rank computes for itself may: TensorFlow optimizes each rank's graph for itself, and the order of a sum may
        follow names of nodes, which differ where ranks have different shares of a batch. On GPUs operations add up in no
        fixed order, and choose their algorithms by timing, so there any difference of real numbers is taken for rounding.

        Raises:
            WorkerError: Values differ that rounding does not explain.
        """
        if self._mesh is None or not indices:
            return
        own = np.concatenate([fingerprint(value) for value in values])
        prints = exchange.gather("fdt_fingerprints", own, self._mesh)
        ranks, columns = np.nonzero(prints != prints[0])
        if not ranks.size:
            return
        rounds = bool(tf.config.get_visible_devices("GPU")) and not loaded.source.computation.deterministic
        # Of each variable that differs, a rank that holds another value.
        differing = {int(column) // 2: int(rank) for rank, column in zip(ranks[::-1], columns[::-1], strict=True)}
        tensors = [variable.tensor for variable in loaded.source.variables]
        for place, rank in differing.items():
            dtype = tf.as_dtype(tensors[indices[place]].dtype)
            if not (dtype.is_floating or dtype.is_complex):
                raise _differs(tensors[indices[place]], rank)
        taken = exchange.of_first_rank("fdt_agreed", [values[place] for place in sorted(differing)])
        for place, first in zip(sorted(differing), taken, strict=True):
            if not rounds and not is_rounding(values[place], first):
                raise _differs(tensors[indices[place]], self._rank)
            loaded.variables[indices[place]].assign(first)


def _differs(tensor: program_pb2.Tensor, rank: int) -> WorkerError:
    return WorkerError(
        f"The variable {tensor.name!r} of rank {rank} differs from rank 0's by more than rounding; synchronous training keeps "
        "them equal. This is a fault of the pool, not of the script: please report it with the script."
    )


def is_rounding(value: np.ndarray, other: np.ndarray) -> bool:
    """Whether real or complex arrays differ by no more than √ε of their largest entry, ε that of their type."""
    kind = value.real.dtype
    wide = np.complex128 if value.dtype.kind == "c" else np.float64
    one, two = value.astype(wide), other.astype(wide)
    limit = float(ml_dtypes.finfo(kind).eps) ** 0.5 * float(np.nanmax(np.abs(two), initial=0.0))
    return bool(np.allclose(one, two, rtol=0.0, atol=limit, equal_nan=True))


def fingerprint(value: np.ndarray) -> np.ndarray:
    """Returns uint64 [2], the sum and the exclusive or of a value's bytes taken eight at a time.

    It compares values at memory speed; it does not protect against deliberate collisions.
    """
    raw = content(value)
    words, rest = raw[: raw.size // 8 * 8].view(np.uint64), raw[raw.size // 8 * 8 :]
    tail = np.uint64(int.from_bytes(rest.tobytes(), "little"))
    return np.array([np.add.reduce(words) + tail, np.bitwise_xor.reduce(words) ^ tail], np.uint64)


def _pin_gpu(rank: int) -> None:
    """Gives a rank one GPU of its host, by its local rank, and of its memory what it needs; without GPUs does nothing."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        own = gpus[int(os.environ.get("HOROVOD_LOCAL_RANK", rank)) % len(gpus)]
        tf.config.set_visible_devices(own, "GPU")
        # Other ranks and programs may use it, too.
        tf.config.experimental.set_memory_growth(own, True)
