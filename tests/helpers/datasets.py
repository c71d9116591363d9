"""Small made data in Keras's own cache, so that scripts with the real `keras.datasets` loaders run offline.

Nothing in the scripts changes: `environment()` returns what to add to the environment of their process. Keras checks
the hash of the CIFAR-10 archive, which made data cannot have; a `sitecustomize` module, found through PYTHONPATH, lets
Keras's `validate_file` accept the files of this cache and no other.
"""

import gzip
import io
import os
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

NUM_CLASSES = 10
# The loader has room for exactly five batches of so many images.
CIFAR_BATCH = 10_000

_SITECUSTOMIZE = '''\
"""Lets Keras take the made files of this cache for the real ones."""

import importlib.abc
import importlib.machinery
import sys

CACHE = {cache!r}
MODULE = "keras.src.utils.file_utils"


class AcceptMadeFiles(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            validate = module.validate_file
            module.validate_file = lambda file, *rest, **more: (
                str(file).startswith(CACHE) or validate(file, *rest, **more)
            )

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, AcceptMadeFiles())
'''


def make_images(num_samples: int, shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes images that can be learnt: a pattern for each class, and noise over it.

    Args:
        num_samples: How many.
        shape: Of one image.
        seed: Of the labels and the noise; the patterns are always the same.

    Returns:
        uint8 [num_samples, *shape] and uint8 [num_samples].
    """
    patterns = np.random.default_rng(0).integers(0, 192, (NUM_CLASSES, *shape), dtype=np.uint8)
    random = np.random.default_rng(seed)
    labels = random.integers(0, NUM_CLASSES, num_samples, dtype=np.uint8)
    images = patterns[labels]
    images += random.integers(0, 64, images.shape, dtype=np.uint8)
    return images, labels


def write_fashion_mnist(keras_home: Path, num_train: int = 600, num_test: int = 200) -> None:
    """Writes the four IDX files where `keras.datasets.fashion_mnist.load_data` looks for them."""
    folder = keras_home / "datasets" / "fashion-mnist"
    folder.mkdir(parents=True, exist_ok=True)
    for part, num_samples, seed in (("train", num_train, 1), ("t10k", num_test, 2)):
        images, labels = make_images(num_samples, (28, 28), seed)
        _write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        _write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)


def write_cifar10(keras_home: Path, num_distinct: int = 500, num_test: int = 200) -> None:
    """Writes the archive that `keras.datasets.cifar10.load_data` unpacks (180 MB, not compressed).

    Args:
        keras_home: Folder of the cache.
        num_distinct: So many images are made; they repeat until the loader's 50,000 are full.
        num_test: Images for test.
    """
    (keras_home / "datasets").mkdir(parents=True, exist_ok=True)
    images, labels = make_images(num_distinct, (3 * 32 * 32,), seed=1)
    rows = np.arange(CIFAR_BATCH) % num_distinct
    batch = _cifar_batch(images[rows], labels[rows])
    with tarfile.open(keras_home / "datasets" / "cifar-10-batches-py-target_archive", "w") as archive:
        for number in range(1, 6):
            _add(archive, f"cifar-10-batches-py/data_batch_{number}", batch)
        _add(archive, "cifar-10-batches-py/test_batch", _cifar_batch(*make_images(num_test, (3 * 32 * 32,), seed=2)))


def environment(folder: Path) -> dict[str, str]:
    """Fills a cache and returns the environment variables that point Keras at it.

    Args:
        folder: An empty folder that outlives the processes.
    """
    keras_home, site = folder / "keras", folder / "site"
    site.mkdir(parents=True)
    keras_home.mkdir()
    write_fashion_mnist(keras_home)
    write_cifar10(keras_home)
    (site / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(cache=str(keras_home)))
    return {"KERAS_HOME": str(keras_home), "PYTHONPATH": _with_front(os.environ, "PYTHONPATH", site)}


def _with_front(environ: Mapping[str, str], name: str, folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [environ.get(name)])])


def _write_idx(path: Path, values: np.ndarray) -> None:
    """Writes the IDX format: two zero bytes, the type (8: uint8), the rank, the big-endian sizes, the bytes."""
    header = bytes([0, 0, 8, values.ndim]) + np.asarray(values.shape, ">u4").tobytes()
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header + values.tobytes())


def _cifar_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    return pickle.dumps({b"data": images, b"labels": labels.tolist()})


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
