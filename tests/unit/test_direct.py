"""The direct connections between a client and its workers: messages stay whole, and instructions keep their order."""

import contextlib
import queue
import random
import threading
from pathlib import Path

import pytest

from fdt.client.direct import Direct
from fdt.errors import JobError, ProtocolError
from fdt.transport.direct import MAX_BYTES, Connection, Listener, connected
from fdt.v1 import job_pb2, worker_pb2
from fdt.worker.inbox import Inbox


def _run(program: int, content: bytes = b"") -> job_pb2.Instruction:
    chunk = job_pb2.Chunk(arrays=[job_pb2.Array(content=content)])
    return job_pb2.Instruction(run=job_pb2.RunSteps(program=program, chunk=chunk))


def _by_pool(client: Direct, instruction: job_pb2.Instruction) -> worker_pb2.WorkerInstruction:
    sent: list[job_pb2.Instruction] = []
    client.send_by(sent.append, instruction, _check)
    (only,) = sent
    return worker_pb2.WorkerInstruction(instruction=only)


class _Workers:
    """Workers' inboxes, and a client that is connected to them."""

    def __init__(self, folder: Path, count: int) -> None:
        self.names = [f"worker-{n}" for n in range(count)]
        for name in self.names:
            (folder / name).mkdir()
        self.inboxes = [Inbox(Listener(folder / name)) for name in self.names]
        self.client = Direct(folder)
        self.client.connect(self.names)
        assert self.client.is_connected

    def taken(self) -> list[list[int]]:
        """Returns the programs that each worker is to run next, as far as instructions have come."""
        return [list(_programs(inbox)) for inbox in self.inboxes]

    def connections(self) -> list[Connection]:
        """Returns the workers' ends."""
        ends = [inbox.direct for inbox in self.inboxes if inbox.direct is not None]
        assert len(ends) == len(self.inboxes)
        return ends


def _programs(inbox: Inbox) -> list[int]:
    found: list[int] = []
    while True:
        try:
            message = inbox.get(0.0)
        except queue.Empty:
            return found
        assert message is not None
        found.append(message.instruction.run.program)


def _check() -> None:
    pass


def test_messages_stay_whole_up_to_the_largest(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    client = connected(tmp_path)
    worker = listener.accept()
    assert worker is not None
    sizes = [1, 4096, MAX_BYTES]
    for size in sizes:
        assert client.send(b"x" * size)
        assert worker.receive() == b"x" * size
    assert worker.receive() is None and not worker.is_over
    client.close()
    assert worker.receive() is None and worker.is_over
    assert worker.send(b"to nobody"), "what goes nowhere needs no room"


def test_a_deep_folder(tmp_path: Path) -> None:
    """The kernel takes paths of 107 bytes only."""
    folder = tmp_path / ("a" * 100) / ("b" * 100)
    folder.mkdir(parents=True)
    listener = Listener(folder)
    client = connected(folder)
    worker = listener.accept()
    assert worker is not None and client.send(b"here") and worker.receive() == b"here"


def test_nobody_listens(tmp_path: Path) -> None:
    client = Direct(tmp_path)
    client.connect(["none"])
    assert not client.is_connected
    assert not client.send(_run(1), _check)


def test_one_of_two_does_not_listen(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    inbox = Inbox(Listener(tmp_path / "one"))
    client = Direct(tmp_path)
    client.connect(["one", "none"])
    assert not client.is_connected
    inbox.put(_by_pool(client, _run(1)))
    assert _programs(inbox) == [1]


def test_instructions_keep_their_order_whichever_way_they_go(tmp_path: Path) -> None:
    """The pool's way is slower, or faster, at random; each worker's own."""
    workers = _Workers(tmp_path, 2)
    choice = random.Random(0)
    late: list[list[worker_pb2.WorkerInstruction]] = [[], []]
    found: list[list[int]] = [[], []]
    for number in range(300):
        if choice.random() < 0.5:
            assert workers.client.send(_run(number), _check, more_follows=choice.random() < 0.5)
        else:
            sent = _by_pool(workers.client, _run(number))
            for waiting in late:
                waiting.append(sent)
        for rank, waiting in enumerate(late):
            for message in waiting[: choice.randrange(3)]:
                workers.inboxes[rank].put(message)
                waiting.remove(message)
            found[rank] += _programs(workers.inboxes[rank])
    workers.client.flush(_check)
    for rank, waiting in enumerate(late):
        for message in waiting:
            workers.inboxes[rank].put(message)
        found[rank] += _programs(workers.inboxes[rank])
    assert found == [list(range(300))] * 2


def test_what_was_sent_before_the_client_connected(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    inbox = Inbox(Listener(tmp_path / "worker"))
    client = Direct(tmp_path)
    early = [_by_pool(client, _run(number)) for number in range(3)]
    inbox.put(early[0])
    client.connect(["worker"])
    assert client.send(_run(3), _check)
    inbox.put(early[1])
    inbox.put(early[2])
    assert _programs(inbox) == [0, 1, 2, 3]


def test_the_same_instruction_is_sent_again_to_another_job(tmp_path: Path) -> None:
    """What is kept for a job that replaces this one has no number."""
    client, instruction = Direct(tmp_path), _run(1)
    assert [_by_pool(client, instruction).instruction.number for _ in range(2)] == [1, 2]
    client.begin()
    assert _by_pool(client, instruction).instruction.number == 1 and not instruction.number
    opening = job_pb2.Instruction(open=job_pb2.OpenJob())
    assert not _by_pool(client, opening).instruction.number, "no worker gets it"


def test_a_missing_instruction_is_an_error(tmp_path: Path) -> None:
    workers = _Workers(tmp_path, 1)
    _by_pool(workers.client, _run(0))
    assert workers.client.send(_run(1), _check)
    workers.inboxes[0].put(_by_pool(workers.client, _run(2)))
    with pytest.raises(ProtocolError, match="number=1"):
        workers.inboxes[0].get(0.0)


@pytest.mark.parametrize("after", range(5))
def test_an_interrupt_of_the_script_while_it_sends(tmp_path: Path, after: int) -> None:
    """It comes behind any of four sends, of two instructions to two workers, and once more before the next send."""
    workers, sends = _Workers(tmp_path, 2), 0
    whole = Connection.send

    def interrupted(connection: Connection, message: bytes) -> bool:
        nonlocal sends
        sends += 1
        if sends == after:
            whole(connection, message)
            raise KeyboardInterrupt
        if sends == after + 1:
            raise KeyboardInterrupt
        return whole(connection, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "send", interrupted)
        for number in range(2):
            with contextlib.suppress(KeyboardInterrupt):
                workers.client.send(_run(number), _check)
    late = _by_pool(workers.client, _run(2))
    for inbox in workers.inboxes:
        inbox.put(late)
    assert workers.taken() == [[0, 1, 2]] * 2


def test_what_others_follow_goes_with_them(tmp_path: Path) -> None:
    """In as few messages as the largest one allows."""
    workers, content = _Workers(tmp_path, 2), bytes(MAX_BYTES // 3)
    for number in range(5):
        assert workers.client.send(_run(number, content), _check, more_follows=True)
    assert workers.client.holds and workers.taken() == [[], []]
    with pytest.MonkeyPatch.context() as patch:
        whole, sizes = Connection.send, list[int]()

        def counted(connection: Connection, message: bytes) -> bool:
            sizes.append(len(message) // len(content))
            return whole(connection, message)

        patch.setattr(Connection, "send", counted)
        assert workers.client.send(_run(5), _check)
    assert not workers.client.holds and workers.taken() == [[0, 1, 2, 3, 4, 5]] * 2
    assert sizes == [2, 2, 2, 2, 1, 1], "of each instruction with content, to each of the two"


def test_too_large_for_this_way(tmp_path: Path) -> None:
    workers = _Workers(tmp_path, 1)
    assert not workers.client.send(_run(0, bytes(MAX_BYTES)), _check)
    assert workers.client.send(_run(1, bytes(MAX_BYTES - 200)), _check)
    assert workers.taken() == [[1]]


def test_a_client_waits_while_a_worker_has_no_room(tmp_path: Path) -> None:
    workers, content, count = _Workers(tmp_path, 2), bytes(60_000), 40
    sender = threading.Thread(target=lambda: [workers.client.send(_run(n, content), _check) for n in range(count)])
    sender.start()
    found: list[list[int]] = [[], []]
    while min(map(len, found)) < count:
        for rank, programs in enumerate(found):
            message = workers.inboxes[rank].get(30.0)
            assert message is not None
            programs.append(message.instruction.run.program)
    sender.join()
    assert found == [list(range(count))] * 2


def test_a_client_that_waits_learns_that_its_job_has_failed(tmp_path: Path) -> None:
    workers = _Workers(tmp_path, 1)

    def check() -> None:
        raise JobError("It has failed.")

    with pytest.raises(JobError):
        for number in range(1000):
            workers.client.send(_run(number, bytes(60_000)), check)


def test_answers_of_all_workers_are_one(tmp_path: Path) -> None:
    workers, events = _Workers(tmp_path, 2), list[job_pb2.Event]()
    assert workers.client.ask(job_pb2.Drain(serial=7), _check)
    messages = [inbox.get(0.0) for inbox in workers.inboxes]
    assert all(message is not None and message.instruction.drain.direct for message in messages)
    for rank, end in reversed(list(enumerate(workers.connections()))):
        assert workers.client.take(0.0, events.append) and not events
        state = job_pb2.State(variables=[rank], rows=[job_pb2.Rows(variables=[5], counts=[rank + 1])])
        usage = [job_pb2.WorkerUsage(rank=rank)]
        drained = job_pb2.Drained(serial=7, state=state, workers=usage, steps=3)
        end.send(job_pb2.Event(drained=drained).SerializeToString())
    assert workers.client.take(0.0, events.append)
    (answer,) = (event.drained for event in events)
    assert (answer.serial, answer.steps, list(answer.state.variables)) == (7, 3, [0])
    assert [rows.counts[0] for rows in answer.state.rows] == [1, 2]
    assert [usage.rank for usage in answer.workers] == [0, 1]


def test_what_a_worker_said_before_its_end_is_heard(tmp_path: Path) -> None:
    workers, events = _Workers(tmp_path, 1), list[job_pb2.Event]()
    assert workers.client.send(_run(0), _check) and workers.taken() == [[0]]
    (end,) = workers.connections()
    for step in range(3):
        assert end.send(job_pb2.Event(results=job_pb2.Results(step=step)).SerializeToString())
    end.close()
    workers.client.end(events.append)
    assert [event.results.step for event in events] == [0, 1, 2]
    assert not workers.client.is_connected and not workers.client.send(_run(1), _check)


def test_a_thread_that_waits_is_woken(tmp_path: Path) -> None:
    workers, events = _Workers(tmp_path, 1), list[job_pb2.Event]()
    waiting = threading.Thread(target=workers.client.take, args=(60.0, events.append))
    waiting.start()
    workers.client.wake()
    waiting.join(30.0)
    assert not waiting.is_alive() and not events


class _Interrupted:
    """A lock; an interrupt comes as soon as a thread has it, before the next line of Python."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def acquire(self, blocking: bool = True) -> bool:
        if self.lock.acquire(blocking):
            raise KeyboardInterrupt
        return False

    def release(self) -> None:
        self.lock.release()


def test_an_interrupt_as_soon_as_a_thread_takes_events(tmp_path: Path) -> None:
    workers, lock = _Workers(tmp_path, 1), _Interrupted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers.client, "_taking", lock)
        with pytest.raises(KeyboardInterrupt):
            workers.client.take(0.0, lambda event: None)
        others = list[bool]()
        other = threading.Thread(target=lambda: others.append(lock.lock.acquire(blocking=False)))
        other.start()
        other.join()
        assert others == [True], "another thread can take events"
        assert not workers.client.take(0.0, lambda event: None), "while that one does"


def test_a_signal_handler_takes_events_while_one_is_handled(tmp_path: Path) -> None:
    workers, steps = _Workers(tmp_path, 1), list[int]()
    assert workers.client.send(_run(0), _check) and workers.taken() == [[0]]
    (end,) = workers.connections()
    for step in range(3):
        assert end.send(job_pb2.Event(results=job_pb2.Results(step=step)).SerializeToString())

    def handle(event: job_pb2.Event) -> None:
        steps.append(event.results.step)
        if len(steps) == 1:
            assert workers.client.take(0.0, handle)

    assert workers.client.take(0.0, handle)
    assert steps == [0, 0, 1, 2], "the interrupted one again, and each other once"
