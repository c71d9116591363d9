"""Chooses the order in which a CPU computes a matrix product faster.

The gradient by a layer's inputs is A Bᵀ, with few rows in A (the batch) and many in B (the weights). TensorFlow's kernel for
CPUs packs B column by column, which takes up to ten times as long as the product. For (B Aᵀ)ᵀ it packs A, and reads B in
place. Sums are taken in other blocks, so the last bits may differ. docs/decisions/0071 has the times of both.
"""

# Within these bounds the other order saved at least a quarter of the time for all shapes measured.
_MOST_ROWS, _LEAST_RATIO, _LEAST_DEPTH = 128, 4, 256


def most_rows(length: int, depth: int) -> int:
    """Returns up to how many rows of A the other order is faster; 0 if it never is.

    Args:
        length: Rows of B.
        depth: Columns of A and B.
    """
    return min(_MOST_ROWS, length // _LEAST_RATIO) if depth >= _LEAST_DEPTH else 0
