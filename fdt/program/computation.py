"""The settings of TensorFlow that a script makes outside its graph: XLA, determinism, TensorFloat-32.

On a CPU a worker does not compile where the script does: results would be those of another compiler on each side of a division,
and XLA's are not faster there.
"""

import tensorflow as tf
from tensorflow.python.framework import config

from fdt.v1 import program_pb2


def of_this_process(computation: program_pb2.Computation) -> None:
    """Describes how this process computes; whether a step is compiled is the caller's to know."""
    computation.deterministic = bool(config.is_op_determinism_enabled())
    computation.full_float_32 = not tf.config.experimental.tensor_float_32_execution_enabled()


def adopt(computation: program_pb2.Computation) -> None:
    """Makes this process compute as described. What is deterministic once stays so: TensorFlow has no public way back."""
    tf.config.experimental.enable_tensor_float_32_execution(not computation.full_float_32)
    if computation.deterministic:
        tf.config.experimental.enable_op_determinism()


def is_compiled(computation: program_pb2.Computation) -> bool:
    """Returns whether this process compiles the step."""
    return bool(computation.compiled_on_gpus and tf.config.get_visible_devices("GPU"))


def compile_around_exchanges(wanted: bool) -> None:
    """Has TensorFlow compile, in functions that are called from now on, what lies between operations that XLA does not know.

    A divided step cannot be compiled as a whole: exchanges are such operations.
    """
    tf.config.optimizer.set_jit("autoclustering" if wanted else False)
