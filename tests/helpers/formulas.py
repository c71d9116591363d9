"""The formulas that are compiled, from Keras's own optimizers.

`python -m tests.helpers.formulas > fdt/program/update/native/formulas.h` writes them.
"""

import keras

from fdt.program.update.formula import Formula
from nfdt.rules import make_rule
from tests.helpers.programs import servers, traced
from tests.servers.test_cut import WORDS, X, Y, dense_model, embedding_model

_ABOUT = """\
// What usual optimizers do to an entry, as `fdt/program/update/formula.py` writes it down: g is the gradient, s0 ... are
// scalars, i0 is what the parameters hold, i1 ... what the optimizer keeps of them, o0 ... what they will. Of tables, g and h
// are sums of what came for a row: of its values, and of their squares or of what else the optimizer makes of them first.
// Made by `python -m tests.helpers.formulas`.
"""
_OPTIMIZERS = keras.optimizers
OPTIMIZERS = {
    "sgd": lambda: _OPTIMIZERS.SGD(0.1),
    "sgd_decayed": lambda: _OPTIMIZERS.SGD(0.1, weight_decay=0.01),
    "momentum": lambda: _OPTIMIZERS.SGD(0.1, momentum=0.9),
    "momentum_decayed": lambda: _OPTIMIZERS.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda: _OPTIMIZERS.SGD(0.1, momentum=0.9, nesterov=True),
    "nesterov_decayed": lambda: _OPTIMIZERS.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda: _OPTIMIZERS.Adam(0.01),
    "adamw": lambda: _OPTIMIZERS.AdamW(0.01),
    "rmsprop": lambda: _OPTIMIZERS.RMSprop(0.01),
    "rmsprop_centered": lambda: _OPTIMIZERS.RMSprop(0.01, centered=True),
    "rmsprop_momentum": lambda: _OPTIMIZERS.RMSprop(0.01, momentum=0.9),
    "rmsprop_momentum_centered": lambda: _OPTIMIZERS.RMSprop(0.01, momentum=0.9, centered=True),
    "adagrad": lambda: _OPTIMIZERS.Adagrad(0.1),
    "adadelta": lambda: _OPTIMIZERS.Adadelta(0.5),
    "adamax": lambda: _OPTIMIZERS.Adamax(0.01),
    "nadam": lambda: _OPTIMIZERS.Nadam(0.01),
    "lion": lambda: _OPTIMIZERS.Lion(0.01),
}
# Of these, a table's update adds up what came for each row and then updates all rows; others write to some rows alone.
OF_TABLES = ("momentum", "momentum_decayed", "nesterov", "nesterov_decayed", "adam", "adamw", "adamax", "lion")


def written(name: str) -> Formula:
    """Returns what an optimizer does to an entry of a small model's parameters."""
    step = traced(dense_model(OPTIMIZERS[name]()), (X, Y))
    (shard,) = servers(step, make_rule("asgd")).shards
    found = shard._apply._written_down(0)
    assert found is not None, name
    return found[0]


def written_of_table(name: str) -> Formula:
    """Returns the same of a table."""
    step = traced(embedding_model(OPTIMIZERS[name]()), (WORDS, Y))
    (shard,) = servers(step, make_rule("asgd")).shards
    (table,) = shard._layout.tables
    found = shard._apply._table_written_down(table)
    assert found is not None, name
    return found[0]


def header() -> str:
    """Returns the header that is compiled."""
    texts = {name: written(name).text for name in OPTIMIZERS}
    texts |= {f"table_{name}": written_of_table(name).text for name in OF_TABLES}
    return "\n".join([_ABOUT, *(f"FDT_FORMULA({name},\n{text})\n" for name, text in texts.items())])


if __name__ == "__main__":
    print(header(), end="")
