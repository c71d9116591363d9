"""Describes sizes of tensors that differ from batch to batch: integer polynomials of the sizes of a step's inputs.

A `Size` has a value for the batch with which a step is divided. Comparisons answer by it, and an answer that could be another
for other batches is recorded as a condition. So a division holds for all batches that meet its conditions. Code that takes a
`Size` for a number (`int`, an index, NumPy) gets this batch's, which becomes a condition too.
"""

import contextlib
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

# The shapes of a batch's arrays.
Shapes = Sequence[Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Atom:
    """A size that is not a polynomial of others: of an input, a worker's share of its rows, or a quotient.

    Attributes:
        name: Equal for equal sizes.
        of: Returns it for a batch.
        value: Its value for the batch with which the step is divided.
    """

    name: str
    of: Callable[[Shapes], int] = dataclasses.field(compare=False, repr=False)
    value: int = dataclasses.field(compare=False)


Product = tuple[Atom, ...]
Terms = tuple[tuple[Product, int], ...]


class Conditions:
    """What must hold for a batch, so that a division is right for it.

    Attributes:
        num_equal: How often a size was taken for equal to another, or to a number.
    """

    def __init__(self) -> None:
        self.num_equal = 0
        # For a size that is zero or negative, or is not: the size, and which of both.
        self._asked: dict[tuple[Terms, bool], tuple[Size, bool]] = {}

    def ask(self, size: "Size", is_sign: bool) -> bool:
        """Returns whether a size is zero, or with `is_sign` negative; records the answer."""
        key = size.terms, is_sign
        if key not in self._asked:
            self._asked[key] = size, _answer(size.value, is_sign)
            self.num_equal += self._asked[key][1] and not is_sign
        return self._asked[key][1]

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Forgets in the end what is asked in this context: nothing that is kept follows from it."""
        before = set(self._asked)
        try:
            yield
        finally:
            self._asked = {key: asked for key, asked in self._asked.items() if key in before}

    def hold(self, shapes: Shapes) -> bool:
        """Whether all answers are the same for a batch."""
        return all(_answer(size.of(shapes), key[1]) == answer for key, (size, answer) in self._asked.items())

    def __str__(self) -> str:
        told = ((size, "< 0" if is_sign else "= 0", answer) for (_, is_sign), (size, answer) in self._asked.items())
        return "; ".join(f"{size} {relation}: {answer}" for size, relation, answer in told)


def _answer(number: int, is_sign: bool) -> bool:
    return number < 0 if is_sign else number == 0


class Size:
    """A size: a sum of products of atoms. What is computed of sizes is a number where no atom is left."""

    __slots__ = ("conditions", "terms", "value")
    # NumPy's numbers leave arithmetic with sizes to them.
    __array_ufunc__ = None

    def __init__(self, terms: Terms, conditions: Conditions) -> None:
        """
        Args:
            terms: For each product its atoms, sorted by name, and its factor, which is not 0; sorted.
            conditions: Where answers are recorded.
        """
        self.terms, self.conditions = terms, conditions
        self.value = sum(factor * math.prod(atom.value for atom in product) for product, factor in terms)

    def of(self, shapes: Shapes) -> int:
        """Returns its value for a batch."""
        return sum(factor * math.prod(atom.of(shapes) for atom in product) for product, factor in self.terms)

    def __repr__(self) -> str:
        products = ("*".join([str(factor), *(atom.name for atom in product)]) for product, factor in self.terms)
        return f"[{' + '.join(products)}]"

    def __hash__(self) -> int:
        return hash(self.terms)

    # ---- arithmetic -------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        terms = _terms(other)
        return NotImplemented if terms is None else _sum([*self.terms, *terms], self.conditions)

    def __mul__(self, other: Any) -> Any:
        terms = _terms(other)
        if terms is None:
            return NotImplemented
        products = ((_together(one, two), by * more) for one, by in self.terms for two, more in terms)
        return _sum(products, self.conditions)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __floordiv__(self, other: Any) -> Any:
        return _quotient(self, other, self.conditions)

    def __rfloordiv__(self, other: Any) -> Any:
        return _quotient(other, self, self.conditions)

    def __mod__(self, other: Any) -> Any:
        return self - other * (self // other)

    def __rmod__(self, other: Any) -> Any:
        return other - self * (other // self)

    # ---- comparisons ------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if _terms(other) is None:
            return NotImplemented
        return _ask(self - other, is_sign=False)

    def __lt__(self, other: Any) -> bool:
        return _ask(self - other, is_sign=True)

    def __gt__(self, other: Any) -> bool:
        return _ask(other - self, is_sign=True)

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        _ask(self - self.value, is_sign=False)
        return self.value

    __int__ = __index__


# A dimension whose size is known.
Dim = int | Size


def of_inputs(shapes: Shapes, differing: Collection[tuple[int, int]], conditions: Conditions) -> list[tuple[Dim, ...]]:
    """Returns the shapes of a step's inputs.

    Args:
        shapes: Those of the batch with which the step is divided.
        differing: The inputs and dimensions that have other sizes in other batches; those of one size now are taken for one.
        conditions: Where answers are recorded.
    """
    known: dict[int, Size] = {}

    def dim(place: int, dim: int, value: int) -> Dim:
        atom = Atom(f"input {place} dimension {dim}", lambda shapes: shapes[place][dim], value)
        size = Size((((atom,), 1),), conditions)
        if (place, dim) not in differing:
            return int(size)
        first = known.setdefault(value, size)
        assert first == size
        return first

    return [tuple(dim(i, d, size) for d, size in enumerate(shape)) for i, shape in enumerate(shapes)]


def derived(name: str, of: Callable[[int], int], size: Size) -> Size:
    """Returns a size that is a function of another.

    Args:
        name: The function's name.
        of: The function; its results are no less than 0.
        size: Its argument.
    """
    return Size((((Atom(f"{name} {size}", lambda shapes: of(size.of(shapes)), of(size.value)),), 1),), size.conditions)


def product(sizes: Iterable[Dim]) -> Dim:
    """Returns the product of sizes."""
    return functools.reduce(operator.mul, sizes, 1)


def value_of(size: Any) -> Any:
    """Returns a size's value for the batch with which the step is divided, to choose the faster of two right ways by it."""
    return size.value if isinstance(size, Size) else size


def is_same(one: Any, other: Any) -> bool:
    """Whether two sizes are the same for all batches; asks nothing."""
    return bool(_terms(one) == _terms(other)) and one is not None


def is_number(size: Any) -> bool:
    """Whether a dimension has the same size for all batches."""
    return size is not None and not isinstance(size, Size)


def _terms(size: Any) -> Terms | None:
    if isinstance(size, Size):
        return size.terms
    if isinstance(size, int | np.integer):
        return (((), int(size)),) if size else ()
    return None


def _together(one: Product, two: Product) -> Product:
    return tuple(sorted((*one, *two), key=lambda atom: atom.name))


def _sum(terms: Iterable[tuple[Product, int]], conditions: Conditions) -> Dim:
    total: dict[Product, int] = {}
    for product, factor in terms:
        total[product] = total.get(product, 0) + factor
    kept = {product: factor for product, factor in total.items() if factor}
    if not any(kept):
        return kept.get((), 0)
    return Size(tuple(sorted(kept.items(), key=lambda term: [atom.name for atom in term[0]])), conditions)


def _quotient(size: Any, by: Any, conditions: Conditions) -> Any:
    """Returns the quotient, rounded down: a polynomial if the divisor divides each term, otherwise an atom."""
    given, divisor = _terms(size), _terms(by)
    if given is None or divisor is None:
        return NotImplemented
    if by == 0:
        raise ZeroDivisionError(f"A size is divided by {by}, which is 0.")
    if not given or given == divisor:
        return 1 if given else 0
    if len(divisor) == 1:
        exact = [_without(term, divisor[0]) for term in given]
        if None not in exact:
            return _sum([term for term in exact if term is not None], conditions)
    # Atoms are no less than 0.
    if size < 0 or by < 0:
        return int(size) // int(by)
    of_size, of_divisor = _function(size), _function(by)

    def rounded(shapes: Shapes) -> int:
        divisor = of_divisor(shapes)
        # A batch that has a divisor of 0 does not meet the condition below.
        return of_size(shapes) // divisor if divisor else 0

    return Size((((Atom(f"({size} // {by})", rounded, value_of(size) // value_of(by)),), 1),), conditions)


def _without(term: tuple[Product, int], divisor: tuple[Product, int]) -> tuple[Product, int] | None:
    (product, factor), (by, number) = term, divisor
    left = list(product)
    for atom in by:
        if atom not in left:
            return None
        left.remove(atom)
    return None if factor % number else (tuple(left), factor // number)


def _function(size: Any) -> Callable[[Shapes], int]:
    return size.of if isinstance(size, Size) else lambda shapes: int(size)


def _ask(size: Dim, is_sign: bool) -> bool:
    """Returns whether a size is zero, or negative; asks only if its terms do not tell."""
    if not isinstance(size, Size):
        return _answer(size, is_sign)
    factors = dict(size.terms)
    constant = factors.pop((), 0)
    # An atom is no less than 0.
    if min(factors.values()) > 0 and (constant > 0 or (constant == 0 and is_sign)):
        return False
    if max(factors.values()) < 0 and constant < 0:
        return is_sign
    return size.conditions.ask(size, is_sign)
