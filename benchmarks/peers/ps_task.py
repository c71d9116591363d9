"""A worker or a parameter server of TensorFlow's own, as its guide starts one. `ps_cluster.py` runs it.

    TF_CONFIG=… python benchmarks/peers/ps_task.py THREADS

It serves until its standard input ends, so that none outlives the program that started it.
"""

import os
import sys

import tensorflow as tf


def main() -> None:
    # The guide asks for it on every task: a task that is gone is to be reported, not waited for.
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=int(sys.argv[1]))
    num_workers = resolver.cluster_spec().num_tasks("worker")
    if resolver.task_type == "worker" and (os.cpu_count() or 1) < num_workers + 1:
        # The guide: workers need some of these to work properly.
        config.inter_op_parallelism_threads = num_workers + 1
    _server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        config=config,
        protocol=resolver.rpc_layer or "grpc",
    )
    sys.stdin.read()
    # A server of TensorFlow cannot be shut down, only left.
    os._exit(0)


if __name__ == "__main__":
    main()
