from fdt.v1 import blobs_pb2 as _blobs_pb2
from fdt.v1 import program_pb2 as _program_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Instruction(_message.Message):
    __slots__ = ("open", "load", "bind", "assign", "run", "drain", "close", "move", "fetched", "forget", "shown", "number")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    BIND_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    open: OpenJob
    load: LoadProgram
    bind: BindData
    assign: AssignState
    run: RunSteps
    drain: Drain
    close: CloseJob
    move: MoveState
    fetched: Fetched
    forget: ForgetProgram
    shown: Shown
    number: int
    def __init__(self, open: _Optional[_Union[OpenJob, _Mapping]] = ..., load: _Optional[_Union[LoadProgram, _Mapping]] = ..., bind: _Optional[_Union[BindData, _Mapping]] = ..., assign: _Optional[_Union[AssignState, _Mapping]] = ..., run: _Optional[_Union[RunSteps, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., close: _Optional[_Union[CloseJob, _Mapping]] = ..., move: _Optional[_Union[MoveState, _Mapping]] = ..., fetched: _Optional[_Union[Fetched, _Mapping]] = ..., forget: _Optional[_Union[ForgetProgram, _Mapping]] = ..., shown: _Optional[_Union[Shown, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class OpenJob(_message.Message):
    __slots__ = ("mode", "num_workers", "script", "versions", "options", "session", "least_workers")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODE_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEAST_WORKERS_FIELD_NUMBER: _ClassVar[int]
    mode: str
    num_workers: int
    script: str
    versions: _program_pb2.Versions
    options: _containers.ScalarMap[str, str]
    session: bytes
    least_workers: int
    def __init__(self, mode: _Optional[str] = ..., num_workers: _Optional[int] = ..., script: _Optional[str] = ..., versions: _Optional[_Union[_program_pb2.Versions, _Mapping]] = ..., options: _Optional[_Mapping[str, str]] = ..., session: _Optional[bytes] = ..., least_workers: _Optional[int] = ...) -> None: ...

class LoadProgram(_message.Message):
    __slots__ = ("program", "blob")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    program: int
    blob: _blobs_pb2.BlobRef
    def __init__(self, program: _Optional[int] = ..., blob: _Optional[_Union[_blobs_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class BindData(_message.Message):
    __slots__ = ("data", "arrays", "read")
    DATA_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    data: int
    arrays: _containers.RepeatedCompositeFieldContainer[Array]
    read: ReadRows
    def __init__(self, data: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[Array, _Mapping]]] = ..., read: _Optional[_Union[ReadRows, _Mapping]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("arrays", "groups")
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    arrays: _containers.RepeatedCompositeFieldContainer[Array]
    groups: int
    def __init__(self, arrays: _Optional[_Iterable[_Union[Array, _Mapping]]] = ..., groups: _Optional[int] = ...) -> None: ...

class ReadRows(_message.Message):
    __slots__ = ("function", "num_files", "sizes", "digests", "records")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    NUM_FILES_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    function: _blobs_pb2.BlobRef
    num_files: int
    sizes: _containers.RepeatedCompositeFieldContainer[Array]
    digests: _containers.RepeatedCompositeFieldContainer[FileDigest]
    records: Records
    def __init__(self, function: _Optional[_Union[_blobs_pb2.BlobRef, _Mapping]] = ..., num_files: _Optional[int] = ..., sizes: _Optional[_Iterable[_Union[Array, _Mapping]]] = ..., digests: _Optional[_Iterable[_Union[FileDigest, _Mapping]]] = ..., records: _Optional[_Union[Records, _Mapping]] = ...) -> None: ...

class Records(_message.Message):
    __slots__ = ("file", "offset", "length", "are_lines", "compression")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    ARE_LINES_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    file: Array
    offset: Array
    length: Array
    are_lines: bool
    compression: str
    def __init__(self, file: _Optional[_Union[Array, _Mapping]] = ..., offset: _Optional[_Union[Array, _Mapping]] = ..., length: _Optional[_Union[Array, _Mapping]] = ..., are_lines: bool = ..., compression: _Optional[str] = ...) -> None: ...

class FileDigest(_message.Message):
    __slots__ = ("file", "row", "digest")
    FILE_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    file: int
    row: int
    digest: bytes
    def __init__(self, file: _Optional[int] = ..., row: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("tensor", "blob", "offset", "content")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    tensor: _program_pb2.Tensor
    blob: _blobs_pb2.BlobRef
    offset: int
    content: bytes
    def __init__(self, tensor: _Optional[_Union[_program_pb2.Tensor, _Mapping]] = ..., blob: _Optional[_Union[_blobs_pb2.BlobRef, _Mapping]] = ..., offset: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class ForgetProgram(_message.Message):
    __slots__ = ("program",)
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    program: int
    def __init__(self, program: _Optional[int] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("variables", "payload", "rows", "zeros")
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ZEROS_FIELD_NUMBER: _ClassVar[int]
    variables: _containers.RepeatedScalarFieldContainer[int]
    payload: _blobs_pb2.Payload
    rows: _containers.RepeatedCompositeFieldContainer[Rows]
    zeros: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, variables: _Optional[_Iterable[int]] = ..., payload: _Optional[_Union[_blobs_pb2.Payload, _Mapping]] = ..., rows: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ..., zeros: _Optional[_Iterable[int]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("variables", "counts", "payload")
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    variables: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    payload: _blobs_pb2.Payload
    def __init__(self, variables: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., payload: _Optional[_Union[_blobs_pb2.Payload, _Mapping]] = ...) -> None: ...

class AssignState(_message.Message):
    __slots__ = ("program", "state")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    program: int
    state: State
    def __init__(self, program: _Optional[int] = ..., state: _Optional[_Union[State, _Mapping]] = ...) -> None: ...

class MoveState(_message.Message):
    __slots__ = ("program", "variables", "source", "source_variables")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_VARIABLES_FIELD_NUMBER: _ClassVar[int]
    program: int
    variables: _containers.RepeatedScalarFieldContainer[int]
    source: int
    source_variables: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, program: _Optional[int] = ..., variables: _Optional[_Iterable[int]] = ..., source: _Optional[int] = ..., source_variables: _Optional[_Iterable[int]] = ...) -> None: ...

class RunSteps(_message.Message):
    __slots__ = ("program", "data", "batches", "results", "alone", "chunk")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    program: int
    data: int
    batches: _containers.RepeatedCompositeFieldContainer[Batch]
    results: bool
    alone: bool
    chunk: Chunk
    def __init__(self, program: _Optional[int] = ..., data: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ..., results: bool = ..., alone: bool = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("indices", "blob", "following", "group")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    indices: bytes
    blob: _blobs_pb2.BlobRef
    following: int
    group: int
    def __init__(self, indices: _Optional[bytes] = ..., blob: _Optional[_Union[_blobs_pb2.BlobRef, _Mapping]] = ..., following: _Optional[int] = ..., group: _Optional[int] = ...) -> None: ...

class Fetched(_message.Message):
    __slots__ = ("blobs",)
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    blobs: _containers.RepeatedCompositeFieldContainer[_blobs_pb2.BlobRef]
    def __init__(self, blobs: _Optional[_Iterable[_Union[_blobs_pb2.BlobRef, _Mapping]]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("program", "what", "serial", "variables", "keep", "direct")
    class What(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WHAT_UNSPECIFIED: _ClassVar[Drain.What]
        WHAT_METRICS: _ClassVar[Drain.What]
        WHAT_ALL: _ClassVar[Drain.What]
        WHAT_METRICS_SO_FAR: _ClassVar[Drain.What]
    WHAT_UNSPECIFIED: Drain.What
    WHAT_METRICS: Drain.What
    WHAT_ALL: Drain.What
    WHAT_METRICS_SO_FAR: Drain.What
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    program: int
    what: Drain.What
    serial: int
    variables: _containers.RepeatedScalarFieldContainer[int]
    keep: bool
    direct: bool
    def __init__(self, program: _Optional[int] = ..., what: _Optional[_Union[Drain.What, str]] = ..., serial: _Optional[int] = ..., variables: _Optional[_Iterable[int]] = ..., keep: bool = ..., direct: bool = ...) -> None: ...

class Shown(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, float]
    def __init__(self, values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class CloseJob(_message.Message):
    __slots__ = ("exit_status",)
    EXIT_STATUS_FIELD_NUMBER: _ClassVar[int]
    exit_status: int
    def __init__(self, exit_status: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("queued", "started", "loaded", "progress", "drained", "failed", "closed", "released", "results", "leaving", "wanted", "bound")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    queued: Queued
    started: Started
    loaded: Loaded
    progress: Progress
    drained: Drained
    failed: Failed
    closed: Closed
    released: Released
    results: Results
    leaving: Leaving
    wanted: Wanted
    bound: Bound
    def __init__(self, queued: _Optional[_Union[Queued, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., loaded: _Optional[_Union[Loaded, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., drained: _Optional[_Union[Drained, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., closed: _Optional[_Union[Closed, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ..., results: _Optional[_Union[Results, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., wanted: _Optional[_Union[Wanted, _Mapping]] = ..., bound: _Optional[_Union[Bound, _Mapping]] = ...) -> None: ...

class Bound(_message.Message):
    __slots__ = ("data", "missing")
    DATA_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    data: int
    missing: str
    def __init__(self, data: _Optional[int] = ..., missing: _Optional[str] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: int
    def __init__(self, workers: _Optional[int] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("grace_s",)
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    grace_s: float
    def __init__(self, grace_s: _Optional[float] = ...) -> None: ...

class Queued(_message.Message):
    __slots__ = ("position", "reason")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    position: int
    reason: str
    def __init__(self, position: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("job", "num_workers", "versions", "processes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    job: str
    num_workers: int
    versions: _program_pb2.Versions
    processes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., num_workers: _Optional[int] = ..., versions: _Optional[_Union[_program_pb2.Versions, _Mapping]] = ..., processes: _Optional[_Iterable[str]] = ...) -> None: ...

class Loaded(_message.Message):
    __slots__ = ("program",)
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    program: int
    def __init__(self, program: _Optional[int] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ("data", "blobs")
    DATA_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    data: int
    blobs: _containers.RepeatedCompositeFieldContainer[_blobs_pb2.BlobRef]
    def __init__(self, data: _Optional[int] = ..., blobs: _Optional[_Iterable[_Union[_blobs_pb2.BlobRef, _Mapping]]] = ...) -> None: ...

class Results(_message.Message):
    __slots__ = ("step", "outputs")
    STEP_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    step: int
    outputs: _blobs_pb2.Payload
    def __init__(self, step: _Optional[int] = ..., outputs: _Optional[_Union[_blobs_pb2.Payload, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    def __init__(self, steps: _Optional[int] = ...) -> None: ...

class Drained(_message.Message):
    __slots__ = ("serial", "steps", "state", "outputs", "workers", "seconds")
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    serial: int
    steps: int
    state: State
    outputs: _blobs_pb2.Payload
    workers: _containers.RepeatedCompositeFieldContainer[WorkerUsage]
    seconds: float
    def __init__(self, serial: _Optional[int] = ..., steps: _Optional[int] = ..., state: _Optional[_Union[State, _Mapping]] = ..., outputs: _Optional[_Union[_blobs_pb2.Payload, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[WorkerUsage, _Mapping]]] = ..., seconds: _Optional[float] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("error", "message", "rank", "time_s", "step")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    error: str
    message: str
    rank: int
    time_s: float
    step: FailedStep
    def __init__(self, error: _Optional[str] = ..., message: _Optional[str] = ..., rank: _Optional[int] = ..., time_s: _Optional[float] = ..., step: _Optional[_Union[FailedStep, _Mapping]] = ...) -> None: ...

class FailedStep(_message.Message):
    __slots__ = ("code", "before", "candidates")
    CODE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    code: int
    before: int
    candidates: int
    def __init__(self, code: _Optional[int] = ..., before: _Optional[int] = ..., candidates: _Optional[int] = ...) -> None: ...

class Closed(_message.Message):
    __slots__ = ("workers", "processes", "remaining")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerUsage]
    processes: _containers.RepeatedCompositeFieldContainer[ProcessUsage]
    remaining: int
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerUsage, _Mapping]]] = ..., processes: _Optional[_Iterable[_Union[ProcessUsage, _Mapping]]] = ..., remaining: _Optional[int] = ...) -> None: ...

class ProcessUsage(_message.Message):
    __slots__ = ("rank", "host", "samples")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("time_s", "cores", "memory_bytes", "sent_bytes", "received_bytes", "gpus")
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    time_s: float
    cores: float
    memory_bytes: int
    sent_bytes: int
    received_bytes: int
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    def __init__(self, time_s: _Optional[float] = ..., cores: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("index", "utilization", "memory_bytes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    index: int
    utilization: float
    memory_bytes: int
    def __init__(self, index: _Optional[int] = ..., utilization: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class WorkerUsage(_message.Message):
    __slots__ = ("rank", "steps", "samples", "compute_s", "exchange_s", "wait_s", "exchanged_bytes", "peak_memory_bytes", "pull_s", "push_s", "delays", "correction_sum", "num_corrected", "held_s", "divided")
    class DelaysEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    EXCHANGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PULL_S_FIELD_NUMBER: _ClassVar[int]
    PUSH_S_FIELD_NUMBER: _ClassVar[int]
    DELAYS_FIELD_NUMBER: _ClassVar[int]
    CORRECTION_SUM_FIELD_NUMBER: _ClassVar[int]
    NUM_CORRECTED_FIELD_NUMBER: _ClassVar[int]
    HELD_S_FIELD_NUMBER: _ClassVar[int]
    DIVIDED_FIELD_NUMBER: _ClassVar[int]
    rank: int
    steps: int
    samples: int
    compute_s: float
    exchange_s: float
    wait_s: float
    exchanged_bytes: int
    peak_memory_bytes: int
    pull_s: float
    push_s: float
    delays: _containers.ScalarMap[int, int]
    correction_sum: float
    num_corrected: int
    held_s: float
    divided: _containers.RepeatedCompositeFieldContainer[DividedStep]
    def __init__(self, rank: _Optional[int] = ..., steps: _Optional[int] = ..., samples: _Optional[int] = ..., compute_s: _Optional[float] = ..., exchange_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., exchanged_bytes: _Optional[int] = ..., peak_memory_bytes: _Optional[int] = ..., pull_s: _Optional[float] = ..., push_s: _Optional[float] = ..., delays: _Optional[_Mapping[int, int]] = ..., correction_sum: _Optional[float] = ..., num_corrected: _Optional[int] = ..., held_s: _Optional[float] = ..., divided: _Optional[_Iterable[_Union[DividedStep, _Mapping]]] = ...) -> None: ...

class DividedStep(_message.Message):
    __slots__ = ("program", "rows", "arithmetic_divided", "exchanges", "exchanged_bytes", "computed_whole", "seconds", "serves_other_sizes", "state")
    class ComputedWholeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_DIVIDED_FIELD_NUMBER: _ClassVar[int]
    EXCHANGES_FIELD_NUMBER: _ClassVar[int]
    EXCHANGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_WHOLE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SERVES_OTHER_SIZES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    program: int
    rows: int
    arithmetic_divided: float
    exchanges: int
    exchanged_bytes: int
    computed_whole: _containers.ScalarMap[str, int]
    seconds: float
    serves_other_sizes: bool
    state: HeldState
    def __init__(self, program: _Optional[int] = ..., rows: _Optional[int] = ..., arithmetic_divided: _Optional[float] = ..., exchanges: _Optional[int] = ..., exchanged_bytes: _Optional[int] = ..., computed_whole: _Optional[_Mapping[str, int]] = ..., seconds: _Optional[float] = ..., serves_other_sizes: bool = ..., state: _Optional[_Union[HeldState, _Mapping]] = ...) -> None: ...

class HeldState(_message.Message):
    __slots__ = ("in_parts", "variables", "part_bytes", "all_bytes", "worker_bytes")
    IN_PARTS_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    ALL_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKER_BYTES_FIELD_NUMBER: _ClassVar[int]
    in_parts: int
    variables: int
    part_bytes: int
    all_bytes: int
    worker_bytes: int
    def __init__(self, in_parts: _Optional[int] = ..., variables: _Optional[int] = ..., part_bytes: _Optional[int] = ..., all_bytes: _Optional[int] = ..., worker_bytes: _Optional[int] = ...) -> None: ...
