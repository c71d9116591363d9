from fdt.v1 import blobs_pb2 as _blobs_pb2
from fdt.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HostEvent(_message.Message):
    __slots__ = ("hello", "heartbeat", "exit", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: _worker_pb2.Heartbeat
    exit: WorkerExit
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[_worker_pb2.Heartbeat, _Mapping]] = ..., exit: _Optional[_Union[WorkerExit, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("name", "num_workers", "num_cores", "address", "interface", "versions", "unisolated", "open_servers", "time_s", "worker_memory_bytes", "all_memory_bytes")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_CORES_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    UNISOLATED_FIELD_NUMBER: _ClassVar[int]
    OPEN_SERVERS_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    WORKER_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ALL_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_workers: int
    num_cores: int
    address: str
    interface: str
    versions: _containers.ScalarMap[str, str]
    unisolated: str
    open_servers: bool
    time_s: float
    worker_memory_bytes: int
    all_memory_bytes: int
    def __init__(self, name: _Optional[str] = ..., num_workers: _Optional[int] = ..., num_cores: _Optional[int] = ..., address: _Optional[str] = ..., interface: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ..., unisolated: _Optional[str] = ..., open_servers: bool = ..., time_s: _Optional[float] = ..., worker_memory_bytes: _Optional[int] = ..., all_memory_bytes: _Optional[int] = ...) -> None: ...

class WorkerExit(_message.Message):
    __slots__ = ("worker", "status", "log", "over")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    status: int
    log: bytes
    over: str
    def __init__(self, worker: _Optional[str] = ..., status: _Optional[int] = ..., log: _Optional[bytes] = ..., over: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HostInstruction(_message.Message):
    __slots__ = ("welcome", "start", "signal", "drop", "dismissal")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    DISMISSAL_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    start: StartWorker
    signal: SignalWorker
    drop: DropBlobs
    dismissal: Dismissal
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., start: _Optional[_Union[StartWorker, _Mapping]] = ..., signal: _Optional[_Union[SignalWorker, _Mapping]] = ..., drop: _Optional[_Union[DropBlobs, _Mapping]] = ..., dismissal: _Optional[_Union[Dismissal, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("modes", "timing", "address")
    class TimingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MODES_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    modes: _containers.RepeatedScalarFieldContainer[str]
    timing: _containers.ScalarMap[str, float]
    address: str
    def __init__(self, modes: _Optional[_Iterable[str]] = ..., timing: _Optional[_Mapping[str, float]] = ..., address: _Optional[str] = ...) -> None: ...

class StartWorker(_message.Message):
    __slots__ = ("worker", "mode", "secret")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    worker: str
    mode: str
    secret: str
    def __init__(self, worker: _Optional[str] = ..., mode: _Optional[str] = ..., secret: _Optional[str] = ...) -> None: ...

class SignalWorker(_message.Message):
    __slots__ = ("worker", "signal")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    worker: str
    signal: int
    def __init__(self, worker: _Optional[str] = ..., signal: _Optional[int] = ...) -> None: ...

class DropBlobs(_message.Message):
    __slots__ = ("blobs",)
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    blobs: _containers.RepeatedCompositeFieldContainer[_blobs_pb2.BlobRef]
    def __init__(self, blobs: _Optional[_Iterable[_Union[_blobs_pb2.BlobRef, _Mapping]]] = ...) -> None: ...

class Dismissal(_message.Message):
    __slots__ = ("reason", "spare")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    spare: bool
    def __init__(self, reason: _Optional[str] = ..., spare: bool = ...) -> None: ...
