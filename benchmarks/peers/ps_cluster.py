"""What TensorFlow's own parameter server training needs on one machine or on hosts of the laboratory, by its guide.

The guide is "Parameter server training with ParameterServerStrategy" on tensorflow.org. Every task is a process, told
its place by TF_CONFIG; workers and parameter servers run `ps_task.py`, the coordinator is the script itself. Ports are
asked of the system. On hosts of the laboratory (LAB_HOSTS has a word ADDRESS=NAMESPACE for each, LAB_ADDRESS is the
coordinator's) each host has a worker and a server.
"""

import argparse
import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

TASK = Path(__file__).with_name("ps_task.py")
DatasetFunction = Callable[[tf.distribute.InputContext], tf.data.Dataset]
# Kept to the end of the process: a task ends when the pipe to it closes, and TensorFlow, when it tidies up on leaving,
# complains about every task that is gone already.
_tasks: list[subprocess.Popen[bytes]] = []


def parser(description: str, packed: str) -> argparse.ArgumentParser:
    """Returns the options that the peers share.

    Args:
        description: The script's docstring.
        packed: The option that says how many steps are dispatched at a time.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("mlp", "cnn", "embedding", "lookups"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, help="of an epoch, of all workers together; default: the model's STEPS")
    parser.add_argument("--batch-size", type=int, default=64, help="of a step")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1, help="over which variables are partitioned")
    parser.add_argument("--threads", type=int, default=0, help="intra-operation threads a task; 0: TensorFlow's choice")
    parser.add_argument("--optimizer", choices=("legacy", "new"), default="legacy", help="Keras 2 has two of each kind")
    parser.add_argument(packed, type=int, default=1, metavar="N")
    return parser


def use_keras_2() -> ModuleType:
    """Makes `import keras`, in the model's file too, mean tf_keras; returns it."""
    if os.environ.get("TF_USE_LEGACY_KERAS") != "1":
        raise SystemExit("This peer runs on Keras 2: set TF_USE_LEGACY_KERAS=1 (package tf_keras)")
    keras = importlib.import_module("tf_keras")
    sys.modules["keras"] = keras
    return keras


def optimizer_of(model: Any, kind: str) -> Any:
    """Returns the model's optimizer, or the one of Keras 2's older kind with the same settings.

    The guide writes `tf.keras.optimizers.legacy`. These update a variable by one fused operation on its server.
    """
    if kind == "new":
        return model.optimizer
    make = getattr(tf.keras.optimizers.legacy, type(model.optimizer).__name__)
    config = model.optimizer.get_config()
    names = ("learning_rate", "momentum", "nesterov", "beta_1", "beta_2", "epsilon", "amsgrad")
    return make(**{name: config[name] for name in names if name in config})


def dataset_function(x: np.ndarray, y: np.ndarray, global_batch_size: int) -> DatasetFunction:
    """Returns what makes a worker's data: all of it, shuffled and repeated, as the guide recommends."""

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(10_000)
        return dataset.batch(context.get_per_replica_batch_size(global_batch_size)).prefetch(tf.data.AUTOTUNE)

    return make


def start(num_workers: int, num_threads: int, num_servers: int = 1) -> tf.distribute.ParameterServerStrategy:
    """Starts workers and parameter servers, which end when this process does.

    Args:
        num_workers: Worker processes.
        num_threads: Intra-operation threads of each task; 0 leaves them to TensorFlow.
        num_servers: Parameter servers; variables are partitioned over several, as the guide recommends.

    Returns:
        The strategy, connected.
    """
    servers = [("ps", number) for number in range(num_servers)]
    tasks = [("chief", 0), *servers, *(("worker", number) for number in range(num_workers))]
    addresses: dict[str, list[str]] = {}
    for (job, number), port in zip(tasks, _free_ports(len(tasks)), strict=True):
        addresses.setdefault(job, []).append(f"{_host(job, number)[0]}:{port}")
    _tasks.extend(_start_task(addresses, job, number, num_threads) for job, number in tasks if job != "chief")
    os.environ |= {"GRPC_FAIL_FAST": "use_caller", "TF_CONFIG": _config(addresses, "chief", 0)}
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(256 << 10, num_servers)
    return tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver(), partitioner if num_servers > 1 else None
    )


def report(steps: int, seconds: list[float], **more: Any) -> None:
    """Prints the line that the benchmark reads."""
    print("RESULT", json.dumps({"steps": steps, "epoch_seconds": seconds, **more}), flush=True)


def _host(job: str, number: int) -> tuple[str, list[str]]:
    """Returns a task's address, and what starts a command where it runs."""
    hosts = os.environ.get("LAB_HOSTS", "").split()
    if not hosts or job == "chief":
        return os.environ.get("LAB_ADDRESS", "localhost"), []
    address, _, namespace = hosts[number % len(hosts)].partition("=")
    return address, ["ip", "netns", "exec", namespace]


def _free_ports(num_ports: int) -> list[int]:
    """Returns ports that nobody listens on, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num_ports)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _config(addresses: dict[str, list[str]], job: str, number: int) -> str:
    return json.dumps({"cluster": addresses, "task": {"type": job, "index": number}})


def _start_task(addresses: dict[str, list[str]], job: str, number: int, num_threads: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {"TF_CONFIG": _config(addresses, job, number)}
    command = [*_host(job, number)[1], sys.executable, str(TASK), str(num_threads)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
