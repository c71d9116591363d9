"""Tensors on their way to another process's device."""

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 120

_LENDER = """
import sys
import tensorflow as tf

spec = tf.train.ClusterSpec({"fdt": {1: "127.0.0.1:0"}})
server = tf.distribute.Server(spec, job_name="fdt", task_index=1)
print(server.target, flush=True)
sys.stdin.read()
"""

_BORROWER = """
import socket
import sys
import threading

import tensorflow as tf

from nfdt.transfer import Transfer

lender, rounded = sys.argv[1], sys.argv[2] == "fp16"
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    own = f"127.0.0.1:{probe.getsockname()[1]}"
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec({"fdt": {0: own, 1: lender}}), job_name="fdt", task_index=0, make_master_device_default=False
)
near, far = (f"/job:fdt/replica:0/task:{task}/device:CPU:0" for task in range(2))
both, snapshot, right = threading.Barrier(2), [], []

def pull():
    transfer = Transfer(far, rounded)
    for number in range(100):
        if both.wait() == 0:
            with tf.device(near):
                snapshot[:] = [*(tf.fill([1000], float(number)) for _ in range(50)), tf.fill([7], number)]
        both.wait()
        there = transfer(snapshot)
        assert all(tensor.device == far for tensor in there)
        right.append([float(there[place][-1]) for place in (0, 49, 50)] == [number] * 3)

workers = [threading.Thread(target=pull, daemon=True) for _ in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print("right", sum(right))
"""


@pytest.mark.parametrize("wire", ["exact", "fp16"])
def test_two_workers_of_one_host_pull_the_same_snapshot_at_once(wire: str) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", _LENDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as lender:
        try:
            assert lender.stdout is not None
            address = lender.stdout.readline().strip().removeprefix("grpc://").replace("localhost", "127.0.0.1")
            command = [sys.executable, "-c", _BORROWER, address, wire]
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=LIMIT_S)
        finally:
            lender.kill()
    assert done.stdout.splitlines()[-1:] == ["right 200"], done.stderr
