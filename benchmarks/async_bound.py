"""What bounds an asynchronous step on one host: arithmetic of gradients, and memory that an update has to move.

    python benchmarks/async_bound.py mlp

Every core of the machine has a process of its own, and all of them measure at once, since they share caches and memory.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fdt.base.config import RunConfig
from fdt.capture.keras.keras_3 import Keras3
from fdt.capture.keras.train_step import trace_train_step
from fdt.client.data import element_of
from fdt.program.step_program import shape_of
from fdt.program.update.cut import cut
from fdt.program.update.parameter_groups import find_units
from fdt.v1 import program_pb2
from nfdt.layout import lay_out
from nfdt.replica import Computation
from nfdt.stages import divide

_BATCH = 64
# Each measurement is the fastest of so many that take so long: what others did meanwhile is no bound.
_TIMES, _SECONDS = 10, 0.5
# Longer than caches: vectors of so many bytes.
_VECTOR_BYTES = 64 << 20
# What compensation reads and writes beside an update, each as large as the gradients: parameters at the pull (read) and the
# mean of squares (read, written). Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", 2017.
_COMPENSATION = 3


def combined(of_cores: list[dict[str, float]]) -> dict[str, float]:
    """Returns what all cores together can do at most.

    Args:
        of_cores: What each measured.

    Returns:
        compute_ms: Core-milliseconds of one step's gradients.
        memory_gb_per_s: Read and written by all cores.
        asgd_bytes, ddc_asgd_bytes: Of one update.
        asgd_steps_per_s, ddc_asgd_steps_per_s: At which neither cores nor memory have anything else to do.
    """
    number = len(of_cores)
    compute_s = sum(each["compute_s"] for each in of_cores) / number
    bytes_per_s = sum(each["bytes_per_s"] for each in of_cores)
    bound = {"compute_ms": compute_s * 1e3, "memory_gb_per_s": bytes_per_s / 1e9}
    for rule in ("asgd", "ddc_asgd"):
        moved = of_cores[0][f"{rule}_bytes"]
        bound[f"{rule}_bytes"] = moved
        bound[f"{rule}_steps_per_s"] = 1 / (compute_s / number + moved / bytes_per_s)
    return bound


def measured(model_name: str) -> dict[str, float]:
    """Measures on one core."""
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    sys.path.insert(0, str(Path(__file__).parent / "models"))
    module: Any = importlib.import_module(model_name)
    model = module.build()
    batch = [tf.constant(array) for array in module.arrays(_BATCH)]
    computation, pulled, program = _computation(model, batch)
    first, second = (np.zeros(_VECTOR_BYTES // 8) for _ in range(2))
    trained = [variable.tensor for variable in program.variables if variable.role == program_pb2.ROLE_TRAINABLE]
    state = [*trained, *(v.tensor for v in program.variables if v.role == program_pb2.ROLE_OPTIMIZER)]
    pushed = computation.computed(computation.traced(*pulled, *batch)).gradients
    gradients = sum(_size(tensor.shape) for of_shard in pushed for tensor in of_shard.tensors)
    # Parameters and state of the optimizer are read and written, gradients read. Keras lets moments of all rows fade.
    moved = 2 * sum(_size(shape_of(tensor)) for tensor in state) + gradients
    return {
        "compute_s": _fastest(lambda: computation.traced(*pulled, *batch)),
        "bytes_per_s": 3 * first.nbytes / _fastest(lambda: np.add(first, second, out=first)),
        "asgd_bytes": moved,
        "ddc_asgd_bytes": moved + _COMPENSATION * gradients,
    }


def _computation(model: Any, batch: list[Any]) -> tuple[Computation, list[Any], program_pb2.StepProgram]:
    """Returns what a worker computes with one server, parameters to compute it with, and the program that it is of."""
    import keras
    import tensorflow as tf

    element = element_of(tuple(tf.TensorSpec(array.shape, array.dtype) for array in batch), keras.tree)
    program = trace_train_step(RunConfig("train.py", mode="async"), Keras3(), model, element).program
    parts = cut(program)
    layout = lay_out(program, parts, find_units(program, parts), 1)
    computation = Computation(program, parts, divide(program, parts), layout, "/CPU:0", as_traced=False)
    specs = computation.traced.structured_input_signature[0][: -len(batch)]
    return computation, [tf.zeros(spec.shape, spec.dtype) for spec in specs], program


def _size(shape: Any) -> int:
    """Returns the bytes of a tensor of 32-bit numbers."""
    return 4 * int(shape.num_elements())


def _fastest(work: Callable[[], object]) -> float:
    """Returns the least seconds that a call takes, on average over a while."""
    means = []
    for _ in range(_TIMES):
        began, calls = time.perf_counter(), 0
        while time.perf_counter() - began < _SECONDS:
            work()
            calls += 1
        means.append((time.perf_counter() - began) / calls)
    return min(means)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--core", type=int, help="measure on this one alone")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, [options.core])
        print(json.dumps(measured(options.model)))
        return
    command = [sys.executable, __file__, options.model, "--core"]
    cores = sorted(os.sched_getaffinity(0))
    processes = [subprocess.Popen([*command, str(core)], stdout=subprocess.PIPE, text=True) for core in cores]
    told = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(1)
    print("RESULT", json.dumps(combined([json.loads(each) for each in told])), flush=True)


if __name__ == "__main__":
    main()
