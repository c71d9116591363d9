"""For scripts as they are: the same seeds in every run, and data in the place of what cannot be downloaded here.

Python imports this before a script; plain python and fdt alike.
"""

import random

import numpy as np
from wrapt import register_post_import_hook

random.seed(0)
np.random.seed(0)
register_post_import_hook(lambda tensorflow: tensorflow.random.set_seed(0), "tensorflow")


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


_LOADERS = {
    **dict.fromkeys(("mnist", "fashion_mnist"), gray),
    **dict.fromkeys(("cifar10", "cifar100"), color),
    "boston_housing": table,
    **dict.fromkeys(("imdb", "reuters"), words),
}
_PLACES = ("src.datasets", "_tf_keras.keras.datasets", "datasets", "api._v2.keras.datasets", "api.datasets")

for package in ("keras", "tf_keras"):
    for name, loader in _LOADERS.items():
        for place in _PLACES:
            register_post_import_hook(
                lambda module, loader=loader: setattr(module, "load_data", loader), f"{package}.{place}.{name}"
            )
