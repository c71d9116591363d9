"""Runs scripts that use Horovod themselves: their process is the only rank, and the pool's workers share its steps.

With one rank, all-reduce, all-gather and broadcast return their input. Outside functions Horovod itself does so. A step must
hold no operation of Horovod, which workers may lack: while a graph is made, the hooks return the input tensors.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fdt.base.patch import Patches
from fdt.errors import UnsupportedError

_ONE = ("allreduce", "allgather", "broadcast", "reducescatter")
_SEVERAL = ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter")
_NUMBERS = {"rank": 0, "local_rank": 0, "size": 1, "local_size": 1, "process_set_included": 1}


def install(patches: Patches, say: Callable[[str], None], horovod: Any) -> None:
    """Puts the hooks in place.

    Args:
        patches: Receives the hooks.
        say: Called with a message when the script initialises Horovod.
        horovod: The module `horovod.tensorflow`, which the script has imported.
    """
    from horovod.tensorflow import mpi_ops

    def init(original: Callable[..., Any], basics: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(basics, *args, **kwargs)
        _check_alone(basics)
        say(
            "the script uses Horovod itself: there it is the only rank (hvd.size() is 1), and the workers share its steps"
        )
        return result

    patches.wrap_inherited(type(mpi_ops._basics), "init", init)
    for name in ("_allreduce_cond", "_grouped_allreduce_cond"):
        patches.wrap(horovod, name, _given)
    for name in _ONE:
        patches.wrap(mpi_ops.MPI_LIB, f"horovod_{name}", _reduced)
    for name in _SEVERAL:
        patches.wrap(mpi_ops.MPI_LIB, f"horovod_{name}", _all_reduced)
    for name, number in _NUMBERS.items():
        patches.wrap(mpi_ops.MPI_LIB, f"horovod_{name}", _constant(number))


def _check_alone(basics: Any) -> None:
    if basics.size() > 1:
        raise UnsupportedError(
            f"Horovod has started this script as rank {basics.rank()} of {basics.size()} (horovodrun or mpirun), and each of "
            f"them would train with workers of its own. Start it once: fdt run --workers {basics.size()} SCRIPT."
        )


def _given(original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces functions that exchange tensors if there is another rank, which would be a branch in the graph."""
    return original(tensors, *args, **kwargs) if tf.executing_eagerly() else tensors


def _reduced(original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if tf.executing_eagerly():
        return original(tensor, *args, **kwargs)
    return _scaled(tensor, kwargs)


def _all_reduced(original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    if tf.executing_eagerly():
        return original(tensors, *args, **kwargs)
    return [_scaled(tensor, kwargs) for tensor in tensors]


def _scaled(tensor: Any, options: dict[str, Any]) -> tf.Tensor:
    factor = options.get("prescale_factor", 1.0) * options.get("postscale_factor", 1.0)
    tensor = tf.identity(tensor)
    return tensor if factor == 1.0 else tensor * tf.cast(factor, tensor.dtype)


def _constant(number: int) -> Callable[..., Any]:
    def value(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if tf.executing_eagerly() else tf.constant(number)

    return value
