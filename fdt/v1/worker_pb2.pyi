from fdt.v1 import blobs_pb2 as _blobs_pb2
from fdt.v1 import job_pb2 as _job_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerEvent(_message.Message):
    __slots__ = ("ready", "joined", "event", "heartbeat")
    READY_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ready: Ready
    joined: Joined
    event: _job_pb2.Event
    heartbeat: Heartbeat
    def __init__(self, ready: _Optional[_Union[Ready, _Mapping]] = ..., joined: _Optional[_Union[Joined, _Mapping]] = ..., event: _Optional[_Union[_job_pb2.Event, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("worker", "pid", "tensorflow")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TENSORFLOW_FIELD_NUMBER: _ClassVar[int]
    worker: str
    pid: int
    tensorflow: str
    def __init__(self, worker: _Optional[str] = ..., pid: _Optional[int] = ..., tensorflow: _Optional[str] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sample", "idle_s")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    sample: _job_pb2.Sample
    idle_s: float
    def __init__(self, sample: _Optional[_Union[_job_pb2.Sample, _Mapping]] = ..., idle_s: _Optional[float] = ...) -> None: ...

class WorkerInstruction(_message.Message):
    __slots__ = ("assignment", "instruction")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    instruction: _job_pb2.Instruction
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., instruction: _Optional[_Union[_job_pb2.Instruction, _Mapping]] = ...) -> None: ...

class WorkerInstructions(_message.Message):
    __slots__ = ("instructions",)
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    instructions: _containers.RepeatedCompositeFieldContainer[WorkerInstruction]
    def __init__(self, instructions: _Optional[_Iterable[_Union[WorkerInstruction, _Mapping]]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("job", "rank", "num_workers", "num_threads", "environment", "options", "key", "members")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    num_workers: int
    num_threads: int
    environment: _containers.ScalarMap[str, str]
    options: _containers.ScalarMap[str, str]
    key: str
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., num_workers: _Optional[int] = ..., num_threads: _Optional[int] = ..., environment: _Optional[_Mapping[str, str]] = ..., options: _Optional[_Mapping[str, str]] = ..., key: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class PutValueRequest(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class PutValueReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetValueRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class GetValueReply(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    def __init__(self, value: _Optional[bytes] = ...) -> None: ...
