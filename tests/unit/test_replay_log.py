"""What is told again to another job brings it to where the lost one was: whatever was told, whenever a snapshot came."""

import copy
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdt.client.replay_log import ReplayLog, Told
from fdt.v1 import blobs_pb2, job_pb2

_PROGRAMS = 2
_VARIABLES = 3


class ToyJob:
    """A job whose steps are sums: it shows whether it was told the same as another."""

    def __init__(self) -> None:
        self.values: dict[int, dict[int, int]] = {}
        self.steps = 0
        self.data: set[int] = set()

    def do(self, told: Told, kept: dict[bytes, dict[int, int]]) -> job_pb2.Drained | None:
        instruction = told.instruction
        kind = instruction.WhichOneof("kind")
        if kind == "load":
            self.values[instruction.load.program] = dict.fromkeys(range(_VARIABLES), 0)
        elif kind == "forget":
            del self.values[instruction.forget.program]
        elif kind == "bind":
            self.data.add(instruction.bind.data)
        elif kind == "assign":
            payload = instruction.assign.state.payload
            if told.contents:
                ((values,),) = told.contents
            else:
                values = kept[payload.blob.digest] if payload.HasField("blob") else _unpacked(instruction.assign.state)
            self.values[instruction.assign.program].update(values)
        elif kind == "move":
            move = instruction.move
            for to, source in zip(move.variables, move.source_variables, strict=True):
                self.values[move.program][to] = self.values[move.source][source]
        elif kind == "run":
            assert instruction.run.HasField("chunk") or instruction.run.data in self.data
            for batch in instruction.run.batches:
                # No two steps do the same, and their order matters. The last variable is one that no step changes.
                for i in range(_VARIABLES - 1):
                    value = self.values[instruction.run.program][i]
                    self.values[instruction.run.program][i] = (3 * value + batch.indices[0] + i) % 10_007
                self.steps += 1
        elif kind == "drain":
            drain = instruction.drain
            state = self.values[drain.program]
            # As the engines: what no step changes the client knows, unless it was copied from another program.
            changed = {i: state[i] for i in drain.variables or range(_VARIABLES - 1)}
            ref = blobs_pb2.BlobRef(digest=drain.serial.to_bytes(16, "little"), size_bytes=1)
            kept[ref.digest] = changed
            answer = job_pb2.State(variables=list(changed), payload=blobs_pb2.Payload(blob=ref))
            return job_pb2.Drained(serial=drain.serial, steps=self.steps, state=answer)
        return None


def _unpacked(state: job_pb2.State) -> dict[int, int]:
    return dict(zip(state.variables, state.payload.inline, strict=True))


def opened(brings_home: bool = False) -> ReplayLog:
    history = ReplayLog(brings_home)
    history.tell(Told(job_pb2.Instruction(open=job_pb2.OpenJob(mode="sync"))))
    for program in range(_PROGRAMS):
        history.tell(Told(job_pb2.Instruction(load=job_pb2.LoadProgram(program=program)), ([b"program"],)))
    history.tell(Told(job_pb2.Instruction(bind=job_pb2.BindData(data=1)), ([b"rows"],)))
    return history


def assign(program: int, values: dict[int, int]) -> job_pb2.Instruction:
    payload = blobs_pb2.Payload(inline=bytes(values.values()))
    return job_pb2.Instruction(
        assign=job_pb2.AssignState(program=program, state=job_pb2.State(variables=list(values), payload=payload))
    )


def run(program: int, rows: Sequence[int], data: int = 1) -> job_pb2.Instruction:
    batches = [job_pb2.Batch(indices=bytes([row])) for row in rows]
    return job_pb2.Instruction(run=job_pb2.RunSteps(program=program, data=data, batches=batches))


def drain(program: int, serial: int) -> job_pb2.Instruction:
    return job_pb2.Instruction(drain=job_pb2.Drain(program=program, serial=serial, what=job_pb2.Drain.WHAT_ALL))


PROGRAM = st.integers(0, _PROGRAMS - 1)
INSTRUCTION = st.one_of(
    st.builds(run, PROGRAM, st.lists(st.integers(0, 200), min_size=1, max_size=3)),
    st.builds(assign, PROGRAM, st.dictionaries(st.integers(0, _VARIABLES - 1), st.integers(0, 255), min_size=1)),
    st.builds(
        lambda a, i, j: job_pb2.Instruction(
            move=job_pb2.MoveState(program=a, variables=[i], source=1 - a, source_variables=[j])
        ),
        PROGRAM,
        st.integers(0, _VARIABLES - 1),
        st.integers(0, _VARIABLES - 1),
    ),
    # What else may happen: a snapshot is asked for; one of its answers comes; the job is lost.
    # A snapshot is brought home; the pool is lost with all it had.
    # A program gives way to another. Steps come with a piece of a stream.
    st.sampled_from(["ask", "answer", "lose", "bring_home", "lose_pool", "replace", "stream"]),
)


class Client:
    """A history and a job beside each other; the job's answers come late."""

    def __init__(self, brings_home: bool) -> None:
        self.history, self.job, self.kept = opened(brings_home), ToyJob(), {}
        self._brings_home = brings_home
        self.told: list[job_pb2.Instruction] = []
        self.coming: list[job_pb2.Drained] = []
        self.serials = itertools.count(1)
        self.pieces = 0
        # Of the programs that are known now.
        self.numbers = list(range(_PROGRAMS))
        for told in self.history.again(self.serials):
            self.job.do(told, self.kept)

    def replace(self) -> None:
        first = self.numbers.pop(0)
        self.numbers.append(max(first, *self.numbers) + 1)
        self.tell(job_pb2.Instruction(forget=job_pb2.ForgetProgram(program=first)))
        self.tell(job_pb2.Instruction(load=job_pb2.LoadProgram(program=self.numbers[-1])))

    def stream(self) -> None:
        self.pieces += 1
        data = 100 + self.pieces
        streamed = run(self.numbers[0], [self.pieces % 200, self.pieces % 7], data)
        streamed.run.chunk.groups = 1
        self.tell(streamed)

    def tell_numbered(self, instruction: job_pb2.Instruction) -> None:
        """Tells an instruction that names programs by their places among those that are known."""
        kind = getattr(instruction, instruction.WhichOneof("kind"))
        kind.program = self.numbers[kind.program]
        if instruction.HasField("move"):
            kind.source = self.numbers[kind.source]
        self.tell(instruction)

    def tell(self, instruction: job_pb2.Instruction) -> None:
        self.told.append(instruction)
        self.history.tell(Told(instruction))
        self.job.do(Told(instruction), self.kept)

    def ask(self) -> None:
        if self.history.is_pending:
            return
        questions = self.history.ask(self.serials)
        self.coming += [answer for q in questions if (answer := self.job.do(Told(q), self.kept)) is not None]

    def answer(self) -> None:
        if self.coming:
            for ref in self.history.take(self.coming.pop(0)) or ():
                self.kept.pop(ref.digest, None)

    def bring_home(self) -> None:
        if self._brings_home:
            base = self.history.newest
            contents = {ref.digest: dict(self.kept[ref.digest]) for ref in base.on_pool()}
            self.history.is_home(base.with_contents(contents))

    def lose_pool(self) -> None:
        if self._brings_home:
            self.kept.clear()
            self.history.lose_newest()
            self.lose()

    def lose(self) -> None:
        """Another job comes to the same state, from what was kept and what is told again."""
        other, steps = ToyJob(), self.history.newest.steps
        other.steps, self.coming = steps, []
        for told in self.history.again(self.serials):
            answer = other.do(told, self.kept)
            if answer is not None:
                self.coming.append(answer)
        assert other.steps == self.job.steps
        assert other.values == self.job.values
        self.job = other

    def drop_steps(self, first: int) -> None:
        """Has the job be one that was never told of the steps from one on."""
        self.history.drop_steps(first)
        self.job = ToyJob()
        for told in opened().again():
            self.job.do(told, {})
        for instruction in self.told:
            if instruction.HasField("run"):
                del instruction.run.batches[max(0, first - self.job.steps) :]
            self.job.do(Told(instruction), {})


@settings(max_examples=300)
@given(st.booleans(), st.lists(INSTRUCTION, max_size=40))
def test_another_job_comes_to_the_same_state(brings_home: bool, events: list[job_pb2.Instruction | str]) -> None:
    client = Client(brings_home)
    for event in events:
        if isinstance(event, str):
            getattr(client, event)()
        else:
            client.tell_numbered(copy.deepcopy(event))
    client.lose()


@settings(max_examples=300)
@given(st.booleans(), st.lists(INSTRUCTION, max_size=40), st.integers(0, 100))
def test_another_job_makes_no_step_behind_one_that_failed(
    brings_home: bool, events: list[job_pb2.Instruction | str], back: int
) -> None:
    client = Client(brings_home)
    for event in events:
        if isinstance(event, str):
            getattr(client, event)()
        else:
            client.tell_numbered(copy.deepcopy(event))
    first = max(client.history.newest.steps, client.history.steps_told - back)
    client.drop_steps(first)
    assert client.history.steps_told == client.job.steps == first
    client.lose()
    client.tell(run(client.numbers[0], [5]))
    client.lose()


def snapshot(history: ReplayLog, serial: int) -> Iterator[list[blobs_pb2.BlobRef] | None]:
    """Yields what is unneeded after each answer."""
    for question in history.ask(itertools.count(serial)):
        ref = blobs_pb2.BlobRef(digest=question.drain.serial.to_bytes(16, "little"), size_bytes=9)
        state = job_pb2.State(variables=[0, 1], payload=blobs_pb2.Payload(blob=ref))
        yield history.take(job_pb2.Drained(serial=question.drain.serial, state=state))


def test_a_snapshot_lets_the_log_and_the_snapshot_before_it_go() -> None:
    history = opened()
    history.tell(Told(run(0, [1, 2, 3])))
    assert history.num_bytes > 0 and history.newest.steps == 0
    assert list(snapshot(history, 1)) == [[]]
    assert (history.num_bytes, history.newest.steps) == (0, 3)
    history.tell(Told(run(0, [4])))
    (unneeded,) = snapshot(history, 2)
    assert [ref.digest[0] for ref in unneeded] == [1]
    assert [told.instruction.WhichOneof("kind") for told in history.again()] == [
        "open",
        "load",
        "load",
        "bind",
        "assign",
    ]


@pytest.mark.parametrize("brings_home", [True, False])
def test_nothing_is_left_of_a_program_that_is_forgotten(brings_home: bool) -> None:
    history = opened(brings_home)
    for number in range(10, 20):
        history.tell(Told(job_pb2.Instruction(load=job_pb2.LoadProgram(program=number)), ([b"program"],)))
        history.tell(Told(assign(number, {0: 7, 1: 8}), ([bytes(1000)],)))
        history.tell(Told(run(number, [1])))
        unneeded = [ref for refs in snapshot(history, 2 * number) for ref in refs or ()]
        history.tell(Told(job_pb2.Instruction(forget=job_pb2.ForgetProgram(program=number))))
        history.tell(Told(run(0, [1])))
        unneeded += [ref for refs in snapshot(history, 2 * number + 1) for ref in refs or ()]
        assert 2 * number in [ref.digest[0] for ref in unneeded], "its snapshot"
        if brings_home:
            contents = {ref.digest: b"" for ref in history.newest.on_pool()}
            history.is_home(history.newest.with_contents(contents))
    assert history.num_bytes == 0
    assert [told.instruction.load.program for told in history.again() if told.instruction.HasField("load")] == [0, 1]
    assert set(history.newest.states) == {0}


def test_a_snapshot_that_comes_home_when_the_job_goes_on_from_one_before_counts_no_more() -> None:
    history = opened(brings_home=True)
    history.tell(Told(run(0, [1, 2, 3])))
    assert list(snapshot(history, 1)) == [[]]
    late = history.newest.with_contents({ref.digest: b"" for ref in history.newest.on_pool()})
    history.lose_newest()
    history.is_home(late)
    kinds = [told.instruction.WhichOneof("kind") for told in history.again()]
    assert history.home.steps == 0 and kinds[-1] == "run", "what came after the one before is told again"


def test_nothing_new_asks_for_nothing() -> None:
    history = opened()
    assert history.ask(itertools.count(1)) == [] and not history.is_pending


def test_a_question_is_asked_again_until_its_answer_is_home() -> None:
    history = opened()
    history.tell(Told(run(0, [1])))
    history.tell(Told(drain(0, 7)))
    assert history.take(job_pb2.Drained(serial=7)) is None, "somebody else's"
    # The content of the answer is still on the pool, and would be lost with the job: what led to it is told again.
    (unneeded,) = snapshot(history, 8)
    assert [ref.digest[0] for ref in unneeded] == [8]
    assert [told.instruction.drain.serial for told in history.again() if told.instruction.HasField("drain")] == [7]
    history.answered(7)
    assert not any(told.instruction.HasField("drain") for told in history.again())
    assert list(snapshot(history, 9)) == [[]]
    assert history.newest.steps == 1


def test_a_question_that_nobody_waits_for_keeps_no_snapshot_back() -> None:
    history = opened()
    history.tell(Told(run(0, [1])))
    history.tell(Told(drain(0, 7)))
    history.give_up(7)
    assert list(snapshot(history, 8)) == [[]]
    assert (history.newest.steps, history.steps_seen, history.num_bytes) == (1, 0, 0)


def test_a_step_has_been_seen_when_a_state_behind_it_has() -> None:
    history = opened()
    history.tell(Told(run(0, [1, 2])))
    history.tell(Told(drain(0, 7)))
    history.tell(Told(run(0, [3])))
    history.tell(Told(drain(0, 8)))
    history.answered(7)
    assert history.steps_seen == 2
    history.drop_steps(2)
    history.answered(8)
    assert history.steps_seen == 2, "the third was left out before that answer"


def test_a_job_that_is_lost_while_it_repeats_has_not_repeated_in_vain() -> None:
    """Each life gets through a quarter of what it is told; without snapshots on the way the job would stay where it is."""
    client = Client(brings_home=False)
    for row in range(100):
        client.tell(run(row % 2, [row]))
    begins = []
    for _ in range(10):
        begins.append(client.history.newest.steps)
        client.lose()
        for _ in range(_PROGRAMS):
            client.answer()
    assert begins == sorted(set(begins)) and begins[0] == 0 and begins[-1] > 85


def test_a_snapshot_on_the_way_comes_before_a_piece_of_a_stream_or_behind() -> None:
    client = Client(brings_home=False)
    for _ in range(20):
        client.stream()
    for _ in range(3):
        client.lose()
        client.answer()
    assert 0 < client.history.newest.steps < 40
    client.lose()


def test_arrays_of_data_sets_without_steps_for_long_are_let_go() -> None:
    history = opened()
    for data in range(2, 9):
        history.tell(Told(job_pb2.Instruction(bind=job_pb2.BindData(data=data)), ([np.zeros(3)],)))
        history.tell(Told(run(0, [1], data)))
    at_hand = [t.instruction.bind.data for t in history.again() if t.instruction.HasField("bind") and t.contents]
    assert at_hand == [5, 6, 7, 8]


@pytest.mark.parametrize("readonly", [True, False])
def test_what_is_kept_counts(readonly: bool) -> None:
    history = opened()
    rows = np.zeros(1000, np.uint8)
    rows.flags.writeable = not readonly
    streamed = run(0, [1], data=2)
    streamed.run.chunk.arrays.add(blob=blobs_pb2.BlobRef(size_bytes=1002))
    history.tell(Told(streamed, ([rows, b"ab"],)))
    assert history.num_bytes == streamed.ByteSize() + 1002
