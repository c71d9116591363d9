"""Logs a job's instructions since its last snapshot; replayed to a new job, the log leads to the same state.

Pure: no channel, no thread, no clock. The client is the truth about a job (docs/decisions/0053): it sends every step, in
order, so it can send them again. A snapshot consists of the answers to consecutive drains of all state, whose contents stay on
the pool; instructions before it need no replay. Now and then the client downloads the contents of one, in case the pool is lost
with its files.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fdt.transport.blobs import Buffer, holding
from fdt.v1 import blobs_pb2, job_pb2

# A job that was lost during a replay requests a snapshot after each part of the replay but the last; otherwise a job with
# frequent faults would make no progress.
_PARTS = 4
# Number of data sets, those used last, whose arrays the client keeps referenced; the pool's store most likely has the others.
_DATA_AT_HAND = 4


@dataclasses.dataclass(frozen=True)
class Told:
    """An instruction, and the contents of the blobs that it names, in order, each in pieces; () if the client does not keep
    them.
    """

    instruction: job_pb2.Instruction
    contents: tuple[Sequence[Buffer], ...] = ()

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        return self.instruction.ByteSize() + sum(memoryview(p).nbytes for pieces in self.contents for p in pieces)


@dataclasses.dataclass(frozen=True)
class Base:
    """A state from which another job may begin.

    Attributes:
        place: Place of the first entry of the log after it.
        steps: Number of steps in it, since the beginning.
        states: By program, the instructions that set its variables, in this order.
    """

    place: int = 0
    steps: int = 0
    states: dict[int, list[Told]] = dataclasses.field(default_factory=dict)

    def on_pool(self) -> list[blobs_pb2.BlobRef]:
        """Returns the blobs that the pool keeps for it."""
        told = [told for states in self.states.values() for told in states if not told.contents]
        return [ref for each in told for ref in holding(each.instruction.assign.state)]

    def at_home(self) -> dict[bytes, Buffer]:
        """Returns the contents of snapshots' blobs that the client has, by their digests."""
        told = [told for states in self.states.values() for told in states if told.contents]
        # What the client has sent is no snapshot, and may be in many pieces.
        return {
            ref.digest: pieces[0]
            for t in told
            for ref, pieces in zip(holding(t.instruction.assign.state), t.contents, strict=True)
        }

    def with_contents(self, contents: Mapping[bytes, Buffer]) -> "Base":
        """Returns the same with the contents of these blobs, by their digests."""
        states = {
            program: [
                t
                if t.contents
                else Told(t.instruction, tuple([contents[r.digest]] for r in holding(t.instruction.assign.state)))
                for t in states
            ]
            for program, states in self.states.items()
        }
        return dataclasses.replace(self, states=states)


@dataclasses.dataclass
class _Snapshot:
    """A requested snapshot.

    Attributes:
        place: Place of the first entry of the log after it.
        steps: Number of steps in it, since the beginning.
        asked: The programs, by the serial number of the drain.
        moved: The serial numbers of drains of variables that were copied from another program.
        states: The states received, by serial number.
    """

    place: int
    steps: int
    asked: dict[int, int]
    moved: frozenset[int]
    states: dict[int, job_pb2.State] = dataclasses.field(default_factory=dict)


class ReplayLog:
    """The instructions of one job.

    Attributes:
        newest: The state from which another job would begin.
        home: The same, if the pool has lost its snapshots.
        steps_told: Number of steps in all.
        steps_seen: Number of steps after which the client has had a state: all of these have been made.
        num_bytes: Memory that the log takes.
    """

    def __init__(self, brings_home: bool) -> None:
        """
        Args:
            brings_home: Whether the client downloads snapshots now and then; not if their pool is lost only with the client.
        """
        self.steps_told = self.steps_seen = self.num_bytes = 0
        self.newest = self.home = Base()
        self._brings_home = brings_home
        self._opening: Told | None = None
        self._loads: dict[int, Told] = {}
        self._binds: dict[int, Told] = {}
        self._log: dict[int, Told] = {}
        self._next = 0
        # For each drain that has not been answered: its place in the log, and the number of steps told before it.
        self._questions: dict[int, tuple[int, int]] = {}
        # By program, the variables that a drain of all its state has brought: those that its steps do not change are not among
        # them.
        self._drained: dict[int, frozenset[int]] = {}
        # In the order of the requests.
        self._pending: list[_Snapshot] = []

    # ---- what the job is told ---------------------------------------------------------------------------------------

    def tell(self, told: Told) -> None:
        """Records an instruction."""
        kind = told.instruction.WhichOneof("kind")
        if kind == "open":
            self._opening = told
        elif kind == "load":
            self._loads[told.instruction.load.program] = told
        elif kind == "bind":
            self._binds[told.instruction.bind.data] = told
        elif kind in ("forget", "assign", "move", "run", "drain"):
            self._append(told)

    def _append(self, told: Told) -> None:
        instruction = told.instruction
        if instruction.HasField("run"):
            self.steps_told += len(instruction.run.batches)
            self._keep_at_hand(instruction.run.data)
        elif instruction.HasField("drain"):
            self._questions[instruction.drain.serial] = self._next, self.steps_told
        self._log[self._next] = told
        self._next += 1
        self.num_bytes += told.num_bytes

    def _keep_at_hand(self, data: int) -> None:
        """Releases the arrays of data sets that are not among those used last."""
        if data in self._binds and next(reversed(self._binds)) != data:
            self._binds[data] = self._binds.pop(data)
        for other in list(self._binds)[:-_DATA_AT_HAND]:
            if self._binds[other].contents:
                self._binds[other] = Told(self._binds[other].instruction)

    def answered(self, serial: int) -> None:
        """Marks a drain as answered: a new job is not asked for it again."""
        place, steps = self._questions[serial]
        # Asynchronous workers tell of metrics so far before all steps up to there are made.
        if self._log[place].instruction.drain.what != job_pb2.Drain.WHAT_METRICS_SO_FAR:
            self.steps_seen = max(self.steps_seen, steps)
        self.give_up(serial)

    def give_up(self, serial: int) -> None:
        """Removes a drain whose answer nobody waits for any more: it would keep snapshots from replacing the log before it."""
        if serial in self._questions:
            place, _ = self._questions.pop(serial)
            self.num_bytes -= self._log.pop(place).num_bytes

    # ---- snapshots --------------------------------------------------------------------------------------------------

    @property
    def is_pending(self) -> bool:
        """Whether a requested snapshot has not arrived."""
        return bool(self._pending)

    def ask(self, serials: Iterator[int]) -> list[job_pb2.Instruction]:
        """Returns the drains that make a snapshot of all changes since the last one.

        Args:
            serials: Numbers the drains.
        """
        return self._ask(serials, self._next, self.steps_told)

    def _ask(self, serials: Iterator[int], end: int, steps: int) -> list[job_pb2.Instruction]:
        since = [told for place, told in self._log.items() if self.newest.place <= place < end]
        changed = dict.fromkeys(program for told in since for program in _written(told.instruction))
        for program in _forgotten(since):
            changed.pop(program, None)
        if not changed:
            return []
        moved = _moved(since)
        wanted: list[tuple[int, tuple[int, ...]]] = [(program, ()) for program in changed]
        wanted += [
            (program, tuple(sorted(missing)))
            for program, variables in moved.items()
            if program in changed and (missing := variables - self._drained.get(program, frozenset()))
        ]
        asked = {next(serials): each for each in wanted}
        of_moves = frozenset(serial for serial, (_, variables) in asked.items() if variables)
        self._pending.append(
            _Snapshot(end, steps, {serial: program for serial, (program, _) in asked.items()}, of_moves)
        )
        everything = job_pb2.Drain.WHAT_ALL
        return [
            job_pb2.Instruction(
                drain=job_pb2.Drain(program=program, what=everything, variables=variables, serial=serial, keep=True)
            )
            for serial, (program, variables) in asked.items()
        ]

    def take(self, drained: job_pb2.Drained) -> list[blobs_pb2.BlobRef] | None:
        """Adds a part of a snapshot; the snapshot is valid once all parts have arrived.

        Returns:
            Blobs that are no longer needed; None if the answer is not to a snapshot's drain.
        """
        if drained.serial in self._questions:
            return None
        # The outputs of the last step belong to no snapshot.
        unneeded = [drained.outputs.blob] if drained.outputs.HasField("blob") else []
        if not self._pending or drained.serial not in self._pending[0].asked:
            # The answer belongs to a snapshot that was given up.
            return holding(drained.state) + unneeded
        snapshot = self._pending[0]
        snapshot.states[drained.serial] = drained.state
        if len(snapshot.states) == len(snapshot.asked):
            unneeded += self._commit(self._pending.pop(0))
        return unneeded

    def _commit(self, snapshot: _Snapshot) -> list[blobs_pb2.BlobRef]:
        if any(place < snapshot.place for place, _ in self._questions.values()):
            # A drain before the snapshot has no answer yet: with the log cut here, it could not be repeated.
            return [ref for state in snapshot.states.values() for ref in holding(state)]
        before = [told for place, told in self._log.items() if self.newest.place <= place < snapshot.place]
        states, unneeded = dict(self.newest.states), []
        for program in dict.fromkeys(snapshot.asked.values()):
            assigned = [told for told in before if _assigns(told.instruction, program)]
            drained = {
                serial: snapshot.states[serial] for serial in snapshot.asked if snapshot.asked[serial] == program
            }
            for serial, state in drained.items():
                if serial not in snapshot.moved:
                    self._drained[program] = frozenset(state.variables)
            set_here = [
                Told(job_pb2.Instruction(assign=job_pb2.AssignState(program=program, state=state)))
                for state in drained.values()
            ]
            candidates = [*states.get(program, ()), *assigned, *set_here]
            states[program] = _needed(candidates)
            unneeded += _snapshots_among(candidates, states[program])
        for program in _forgotten(before):
            unneeded += _snapshots_among(states.pop(program, ()), ())
            self._drained.pop(program, None)
        self.newest = Base(snapshot.place, snapshot.steps, states)
        if not self._brings_home:
            self.is_home(self.newest)
        return unneeded

    def is_home(self, base: Base) -> None:
        """Records that the client has a base's contents, so that the log before it is not needed."""
        if base.place > self.newest.place:
            # Too late: the job has begun again from an earlier base, and needs the log after that.
            return
        self.home = base
        gone = [self._log.pop(place) for place in [place for place in self._log if place < base.place]]
        self.num_bytes -= sum(told.num_bytes for told in gone)
        for program in _forgotten(gone):
            del self._loads[program]

    def lose_newest(self) -> None:
        """Records that the pool has lost its snapshots."""
        self.newest = self.home

    # ---- another job ------------------------------------------------------------------------------------------------

    def drop_steps(self, first: int) -> None:
        """Removes all steps from `first` on. Other instructions stay, so the client's records about them remain valid.

        Args:
            first: Counted from the beginning; none of those in the newest snapshot.
        """
        made = self.newest.steps
        for place in [place for place in self._log if place >= self.newest.place]:
            told = self._log[place]
            batches = told.instruction.run.batches
            kept, made = max(0, min(len(batches), first - made)), made + len(batches)
            if kept < len(batches):
                self.num_bytes -= self._log.pop(place).num_bytes
                if kept:
                    self._log[place] = _first_batches(told, kept)
                    self.num_bytes += self._log[place].num_bytes
        # In order: a dict's new keys are its last.
        self._log = dict(sorted(self._log.items()))
        self.steps_told = first
        self._questions = {serial: (place, min(steps, first)) for serial, (place, steps) in self._questions.items()}

    def again(self, serials: Iterator[int] | None = None) -> list[Told]:
        """Returns all instructions for another job; pending snapshots are given up.

        Args:
            serials: Numbers the drains for snapshots during the replay; None for no such snapshots.
        """
        self._pending.clear()
        assert self._opening is not None
        states = [told for each in self.newest.states.values() for told in each]
        # Programs forgotten between the downloaded snapshot and the newest one are not needed after the newest.
        gone = _forgotten(told for place, told in self._log.items() if place < self.newest.place)
        loads = [told for program, told in self._loads.items() if program not in gone]
        return [self._opening, *loads, *self._binds.values(), *states, *self._repeated(serials)]

    def _repeated(self, serials: Iterator[int] | None) -> Iterator[Told]:
        steps = self.newest.steps
        part = max(1, -(-(self.steps_told - steps) // _PARTS))
        due = steps + part
        for place, told in [(place, told) for place, told in self._log.items() if place >= self.newest.place]:
            yield told
            steps += len(told.instruction.run.batches)
            if serials is not None and due <= steps < self.steps_told:
                yield from map(Told, self._ask(serials, place + 1, steps))
                due = steps + part


def _first_batches(told: Told, num: int) -> Told:
    """Returns the instruction with only the first `num` of its steps."""
    instruction = job_pb2.Instruction()
    instruction.CopyFrom(told.instruction)
    dropped = sum(batch.HasField("blob") for batch in instruction.run.batches[num:])
    del instruction.run.batches[num:]
    return Told(instruction, told.contents[: len(told.contents) - dropped])


def _written(instruction: job_pb2.Instruction) -> Iterable[int]:
    """Returns the program whose variables an instruction changes."""
    kind = instruction.WhichOneof("kind")
    return [getattr(instruction, kind).program] if kind in ("assign", "move", "run") else []


def _moved(told: Iterable[Told]) -> dict[int, set[int]]:
    """Returns, by program, the variables that were copied from another program and not assigned since."""
    moved: dict[int, set[int]] = {}
    for each in told:
        instruction = each.instruction
        if instruction.HasField("move"):
            moved.setdefault(instruction.move.program, set()).update(instruction.move.variables)
        elif instruction.HasField("assign"):
            moved.get(instruction.assign.program, set()).difference_update(instruction.assign.state.variables)
    return moved


def _forgotten(told: Iterable[Told]) -> list[int]:
    return [each.instruction.forget.program for each in told if each.instruction.HasField("forget")]


def _assigns(instruction: job_pb2.Instruction, program: int) -> bool:
    return instruction.HasField("assign") and instruction.assign.program == program


def _needed(states: Sequence[Told]) -> list[Told]:
    """Leaves out assignments whose variables later ones set too."""
    needed: list[Told] = []
    known: set[int] = set()
    for told in reversed(states):
        variables = set(told.instruction.assign.state.variables)
        if not variables <= known:
            needed.append(told)
            known |= variables
    return needed[::-1]


def _snapshots_among(states: Sequence[Told], needed: Sequence[Told]) -> list[blobs_pb2.BlobRef]:
    """Returns the blobs of snapshots that are no longer needed; the pool has already deleted those that the client sent."""
    gone = [told for told in states if not told.contents and all(told is not other for other in needed)]
    return [ref for told in gone for ref in holding(told.instruction.assign.state)]
