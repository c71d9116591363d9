from fdt.v1 import program_pb2 as _program_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("versions", "workers")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    versions: _program_pb2.Versions
    workers: int
    def __init__(self, versions: _Optional[_Union[_program_pb2.Versions, _Mapping]] = ..., workers: _Optional[int] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("versions", "modes", "num_workers", "num_warm", "num_free", "listens", "network", "hosts", "max_workers", "worker_memory_bytes")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_WARM_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_FIELD_NUMBER: _ClassVar[int]
    LISTENS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    MAX_WORKERS_FIELD_NUMBER: _ClassVar[int]
    WORKER_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    versions: _program_pb2.Versions
    modes: _containers.RepeatedScalarFieldContainer[str]
    num_workers: int
    num_warm: int
    num_free: int
    listens: _containers.RepeatedScalarFieldContainer[str]
    network: str
    hosts: _containers.RepeatedScalarFieldContainer[str]
    max_workers: int
    worker_memory_bytes: int
    def __init__(self, versions: _Optional[_Union[_program_pb2.Versions, _Mapping]] = ..., modes: _Optional[_Iterable[str]] = ..., num_workers: _Optional[int] = ..., num_warm: _Optional[int] = ..., num_free: _Optional[int] = ..., listens: _Optional[_Iterable[str]] = ..., network: _Optional[str] = ..., hosts: _Optional[_Iterable[str]] = ..., max_workers: _Optional[int] = ..., worker_memory_bytes: _Optional[int] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobsReply(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobSummary]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobSummary, _Mapping]]] = ...) -> None: ...

class JobSummary(_message.Message):
    __slots__ = ("job", "state", "script", "mode", "num_workers", "steps", "submitted_s", "ended_s", "reason", "owner")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    job: str
    state: str
    script: str
    mode: str
    num_workers: int
    steps: int
    submitted_s: float
    ended_s: float
    reason: str
    owner: str
    def __init__(self, job: _Optional[str] = ..., state: _Optional[str] = ..., script: _Optional[str] = ..., mode: _Optional[str] = ..., num_workers: _Optional[int] = ..., steps: _Optional[int] = ..., submitted_s: _Optional[float] = ..., ended_s: _Optional[float] = ..., reason: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class GetLogsRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    def __init__(self, text: _Optional[bytes] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class CancelJobReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: str
    def __init__(self, state: _Optional[str] = ...) -> None: ...

class ViewRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ViewReply(_message.Message):
    __slots__ = ("view",)
    VIEW_FIELD_NUMBER: _ClassVar[int]
    view: bytes
    def __init__(self, view: _Optional[bytes] = ...) -> None: ...

class OpenPageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenPageReply(_message.Message):
    __slots__ = ("link",)
    LINK_FIELD_NUMBER: _ClassVar[int]
    link: str
    def __init__(self, link: _Optional[str] = ...) -> None: ...
