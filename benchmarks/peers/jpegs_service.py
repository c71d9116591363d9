"""The net of `benchmarks/models/jpegs.py` fed by TensorFlow's tf.data service, by hand, as its documentation says.

Workers of the service, on other hosts, read, decode and batch; they divide the files among them as they go (dynamic sharding).
The trainer takes batches as they come.

    export PYTHONPATH=benchmarks/models
    python benchmarks/peers/jpegs_service.py dispatch --dispatcher ADDRESS:PORT
    python benchmarks/peers/jpegs_service.py work --dispatcher ADDRESS:PORT --address ADDRESS:PORT    # on each host
    python benchmarks/peers/jpegs_service.py train --dispatcher ADDRESS:PORT FOLDER
"""

import argparse
import json
from pathlib import Path

import jpegs
import keras
import tensorflow as tf

service = tf.data.experimental.service
READY = "ready"


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


def train(folder: Path, batch: int, epochs: int, dispatcher: str) -> None:
    keras.utils.set_random_seed(1)
    paths = sorted(folder.glob("*/*.jpg"))
    data = tf.data.Dataset.from_tensor_slices(([str(p) for p in paths], [int(p.parent.name) for p in paths]))
    data = data.shuffle(len(paths), seed=1).map(jpegs.read, tf.data.AUTOTUNE).batch(batch)
    data = data.apply(service.distribute(service.ShardingPolicy.DYNAMIC, f"grpc://{dispatcher}"))
    model, clock = jpegs.build(), jpegs.Clock()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(data.prefetch(tf.data.AUTOTUNE), epochs=epochs, callbacks=[clock], verbose=0)
    (began_s, began_cores_s), (ended_s, ended_cores_s) = clock.ends[0], clock.ends[-1]
    images = len(paths) * (epochs - 1)
    result = {
        "images_per_s": images / (ended_s - began_s),
        "script_core_ms": 1e3 * (ended_cores_s - began_cores_s) / images,
    }
    print("RESULT", json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("dispatch", "work", "train"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--dispatcher", required=True, help="its address and port")
    parser.add_argument("--address", help="a worker's own, and its port")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    if options.part == "train":
        train(options.folder, options.batch, options.epochs, options.dispatcher)
        return
    if options.part == "dispatch":
        server = service.DispatchServer(service.DispatcherConfig(port=port(options.dispatcher)))
    else:
        config = {"worker_address": options.address, "port": port(options.address)}
        server = service.WorkerServer(service.WorkerConfig(options.dispatcher, **config))
    print(READY, flush=True)
    server.join()


if __name__ == "__main__":
    main()
