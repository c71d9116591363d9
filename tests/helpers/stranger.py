"""Asks whatever listens to read and write files, as TensorFlow's servers do: `python -m tests.helpers.stranger FILE TARGET...`.

Prints a line for each target, "host:port": `TARGET answered` where a session computed something, else `TARGET nothing`.
"""

import concurrent.futures
import contextlib
import sys

import tensorflow as tf

_LIMIT_MS = 15_000


def attempt(address: str, path: str) -> str:
    """Computes something, then writes a file, in a session on a server there."""
    config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=_LIMIT_MS)
    with tf.Graph().as_default():
        answer = tf.constant(1) + tf.constant(1)
        written = tf.io.write_file(path, address)
        try:
            with tf.compat.v1.Session(f"grpc://{address}", config=config) as session:
                session.run(answer)
                with contextlib.suppress(tf.errors.OpError):
                    session.run(written)
                return f"{address} answered"
        except tf.errors.OpError:
            return f"{address} nothing"


def main() -> None:
    path, *addresses = sys.argv[1:]
    with concurrent.futures.ThreadPoolExecutor(max(1, len(addresses))) as pool:
        for line in pool.map(lambda address: attempt(address, f"{path}-{address}"), addresses):
            print(line, flush=True)


if __name__ == "__main__":
    main()
