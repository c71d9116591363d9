"""For scripts as they are: the same seeds in every run, and data in the place of what cannot be downloaded here.

Python imports this before a script; plain python and fdt alike. SWEEP_SEED is another seed than 0.
"""

import os
import random

import numpy as np
from wrapt import register_post_import_hook

_SEED = int(os.environ.get("SWEEP_SEED", "0"))
random.seed(_SEED)
np.random.seed(_SEED)
register_post_import_hook(lambda tensorflow: tensorflow.random.set_seed(_SEED), "tensorflow")


def gray(*_, **__):
    import stand_ins

    return stand_ins.gray()


def color(*_, **__):
    import stand_ins

    return stand_ins.color()


def table(*_, **__):
    import stand_ins

    return stand_ins.table()


def words(*_, num_words=None, **__):
    import stand_ins

    return stand_ins.words(num_words or 1000)


def word_index(*_, **__):
    return {f"word{number}": number for number in range(1, 20_001)}


_LOADERS = {
    **dict.fromkeys(("mnist", "fashion_mnist"), gray),
    **dict.fromkeys(("cifar10", "cifar100"), color),
    "boston_housing": table,
    **dict.fromkeys(("imdb", "reuters"), words),
}
_PLACES = ("src.datasets", "_tf_keras.keras.datasets", "datasets", "api._v2.keras.datasets", "api.datasets")


def _replace(module, loader):
    module.load_data = loader
    if hasattr(module, "get_word_index"):
        module.get_word_index = word_index


for package in ("keras", "tf_keras"):
    for name, loader in _LOADERS.items():
        for place in _PLACES:
            register_post_import_hook(
                lambda module, loader=loader: _replace(module, loader), f"{package}.{place}.{name}"
            )
