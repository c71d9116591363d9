from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_TRAINABLE: _ClassVar[Role]
    ROLE_OPTIMIZER: _ClassVar[Role]
    ROLE_METRIC: _ClassVar[Role]
    ROLE_SEED: _ClassVar[Role]
    ROLE_OTHER: _ClassVar[Role]
    ROLE_CONSTANT: _ClassVar[Role]
ROLE_UNSPECIFIED: Role
ROLE_TRAINABLE: Role
ROLE_OPTIMIZER: Role
ROLE_METRIC: Role
ROLE_SEED: Role
ROLE_OTHER: Role
ROLE_CONSTANT: Role

class StepProgram(_message.Message):
    __slots__ = ("step", "variables", "batch", "outputs", "holes", "versions", "tables", "one_row", "one_size", "computation")
    STEP_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    ONE_ROW_FIELD_NUMBER: _ClassVar[int]
    ONE_SIZE_FIELD_NUMBER: _ClassVar[int]
    COMPUTATION_FIELD_NUMBER: _ClassVar[int]
    step: Function
    variables: _containers.RepeatedCompositeFieldContainer[Variable]
    batch: _containers.RepeatedCompositeFieldContainer[Tensor]
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    holes: _containers.RepeatedCompositeFieldContainer[Hole]
    versions: Versions
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    one_row: bool
    one_size: bool
    computation: Computation
    def __init__(self, step: _Optional[_Union[Function, _Mapping]] = ..., variables: _Optional[_Iterable[_Union[Variable, _Mapping]]] = ..., batch: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., holes: _Optional[_Iterable[_Union[Hole, _Mapping]]] = ..., versions: _Optional[_Union[Versions, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ..., one_row: bool = ..., one_size: bool = ..., computation: _Optional[_Union[Computation, _Mapping]] = ...) -> None: ...

class Computation(_message.Message):
    __slots__ = ("compiled", "deterministic", "full_float_32", "compiled_on_gpus")
    COMPILED_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    FULL_FLOAT_32_FIELD_NUMBER: _ClassVar[int]
    COMPILED_ON_GPUS_FIELD_NUMBER: _ClassVar[int]
    compiled: bool
    deterministic: bool
    full_float_32: bool
    compiled_on_gpus: bool
    def __init__(self, compiled: bool = ..., deterministic: bool = ..., full_float_32: bool = ..., compiled_on_gpus: bool = ...) -> None: ...

class Function(_message.Message):
    __slots__ = ("meta_graph", "inputs", "variables", "outputs", "control_outputs", "tables")
    META_GRAPH_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    CONTROL_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    meta_graph: bytes
    inputs: _containers.RepeatedScalarFieldContainer[str]
    variables: _containers.RepeatedScalarFieldContainer[str]
    outputs: _containers.RepeatedScalarFieldContainer[str]
    control_outputs: _containers.RepeatedScalarFieldContainer[str]
    tables: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, meta_graph: _Optional[bytes] = ..., inputs: _Optional[_Iterable[str]] = ..., variables: _Optional[_Iterable[str]] = ..., outputs: _Optional[_Iterable[str]] = ..., control_outputs: _Optional[_Iterable[str]] = ..., tables: _Optional[_Iterable[str]] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("keys", "values")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    values: bytes
    def __init__(self, keys: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Variable(_message.Message):
    __slots__ = ("tensor", "role", "momentum")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    tensor: Tensor
    role: Role
    momentum: float
    def __init__(self, tensor: _Optional[_Union[Tensor, _Mapping]] = ..., role: _Optional[_Union[Role, str]] = ..., momentum: _Optional[float] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("tensor",)
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    tensor: Tensor
    def __init__(self, tensor: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Hole(_message.Message):
    __slots__ = ("kind", "function", "gradients")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Hole.Kind]
        KIND_GRADIENTS: _ClassVar[Hole.Kind]
        KIND_RATE: _ClassVar[Hole.Kind]
    KIND_UNSPECIFIED: Hole.Kind
    KIND_GRADIENTS: Hole.Kind
    KIND_RATE: Hole.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    kind: Hole.Kind
    function: str
    gradients: _containers.RepeatedCompositeFieldContainer[Gradient]
    def __init__(self, kind: _Optional[_Union[Hole.Kind, str]] = ..., function: _Optional[str] = ..., gradients: _Optional[_Iterable[_Union[Gradient, _Mapping]]] = ...) -> None: ...

class Gradient(_message.Message):
    __slots__ = ("variable", "sparse")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    variable: int
    sparse: bool
    def __init__(self, variable: _Optional[int] = ..., sparse: bool = ...) -> None: ...

class Versions(_message.Message):
    __slots__ = ("fdt", "tensorflow", "keras", "python")
    FDT_FIELD_NUMBER: _ClassVar[int]
    TENSORFLOW_FIELD_NUMBER: _ClassVar[int]
    KERAS_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    fdt: str
    tensorflow: str
    keras: str
    python: str
    def __init__(self, fdt: _Optional[str] = ..., tensorflow: _Optional[str] = ..., keras: _Optional[str] = ..., python: _Optional[str] = ...) -> None: ...
