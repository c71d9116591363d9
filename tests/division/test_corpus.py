"""Which operations of many scripts' training steps have a rule."""

import json
from pathlib import Path

from fdt.division import arithmetic
from fdt.division.table import RULES
from tests.helpers.registry import registry

# How often each operation occurs, as `python -m tests.helpers.corpus` noted.
_CORPUS: dict[str, int] = json.loads((Path(__file__).parent / "corpus.json").read_text())


def test_what_multiplies_in_the_corpus_has_a_rule() -> None:
    """Products of matrices and convolutions: all of the arithmetic that a report counts."""
    without = {op: count for op, count in _CORPUS.items() if op not in RULES}
    print(f"{len(RULES)} of {len(registry())} operations have a rule; of the corpus's {len(_CORPUS)} have none:")
    print(", ".join(sorted(without)))
    products = {op: count for op, count in _CORPUS.items() if arithmetic.counts(op)}
    ruled = sum(count for op, count in products.items() if op in RULES)
    print(f"{ruled} of {sum(products.values())} products have one; not: {sorted(products.keys() - RULES.keys())}")
    assert sum(products.values()) > 1000
    assert ruled >= 0.99 * sum(products.values())
