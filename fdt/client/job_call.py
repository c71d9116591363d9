"""One `Jobs.Train` call: instructions out, by the call or straight to the workers, and events in."""

import queue
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from fdt.client.direct import Direct
from fdt.v1 import job_pb2, job_pb2_grpc


class JobCall:
    """A call of a job. Instructions that are sent before it is opened go first."""

    def __init__(self, channel: grpc.Channel, direct: Direct, check: Callable[[], None]):
        """
        Args:
            channel: Channel to the pool.
            direct: Connections to the workers.
            check: Called now and then while a worker has no room for an instruction; raises the job's error.
        """
        self._channel, self._direct, self._check = channel, direct, check
        self._outgoing: queue.SimpleQueue[job_pb2.Instruction | None] = queue.SimpleQueue()
        # Both a grpc.Call and an iterator.
        self._call: Any = None

    def open(self) -> None:
        """Begins the call."""
        stub = job_pb2_grpc.JobsStub(self._channel)
        self._call = stub.Train(iter(self._outgoing.get, None), wait_for_ready=True)

    def send(self, instruction: job_pb2.Instruction, is_small: bool = False, more_follows: bool = False) -> None:
        """Queues an instruction for the workers. One thread sends at a time.

        Args:
            instruction: The instruction.
            is_small: Whether it may go past the pool, if there is a way, and so may its answer.
            more_follows: Whether another instruction, or a wait, comes next.
        """
        if not (is_small and self._sent_directly(instruction, more_follows)):
            self._direct.send_by(self._outgoing.put, instruction, self._check)

    def _sent_directly(self, instruction: job_pb2.Instruction, more_follows: bool) -> bool:
        if instruction.HasField("drain"):
            return self._direct.ask(instruction.drain, self._check)
        return self._direct.send(instruction, self._check, more_follows)

    def tell_pool(self, instruction: job_pb2.Instruction) -> None:
        """Queues an instruction that no worker gets; any thread may."""
        self._outgoing.put(instruction)

    def events(self) -> Iterator[job_pb2.Event]:
        """Returns what comes by the call, until it ends; a call that ends with an error raises `grpc.RpcError`."""
        events: Iterator[job_pb2.Event] = self._call
        return events

    def cancel(self) -> None:
        """Ends the call at once, if it is open."""
        if self._call is not None:
            self._call.cancel()

    def end(self) -> None:
        """Takes no more instructions."""
        self._outgoing.put(None)
