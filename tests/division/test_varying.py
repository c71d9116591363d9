"""Steps divided once for batches of several sizes: wherever its conditions hold, a division gives what the step gives."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import keras
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fdt.program.layout import PARTIAL, WHOLE, Divided, Layout, batch_layouts, sized_shares
from fdt.program.size import Conditions, of_inputs
from tests.division.test_rules import CASES, Case, values
from tests.helpers.divided import DividedStep, largest_difference, side_by_side
from tests.helpers.divided_models import MODELS, batches, build_for, choose_precision
from tests.helpers.thorough import some_of

# Of each rule. More find what these have not: FDT_DIVISION_EXAMPLES=100.
_EXAMPLES = int(os.environ.get("FDT_DIVISION_EXAMPLES", "4" if os.environ.get("FDT_ALL_TESTS") else "2"))
_WORKERS = 3


@st.composite
def layouts(draw: Any, case: Case, shapes: Sequence[Sequence[Any]], workers: int) -> list[Layout]:
    """Layouts of the inputs: whole, partial, or divided evenly along a dimension."""
    found: list[Layout] = []
    for (kind, numbers), shape in zip(case.inputs, shapes, strict=True):
        choices: list[Any] = ["whole", *(["partial"] if case.partial and kind == "f" else []), *range(len(shape))]
        choice = draw(st.sampled_from(choices))
        if choice == "partial":
            found.append(PARTIAL)
        elif choice == "whole" or numbers[choice] == 1:
            found.append(WHOLE)
        else:
            found.append(Divided(choice, sized_shares(shape[choice], workers)))
    return found


# TensorFlow's kernel ends the process where the shape that it is told does not fit its gradient.
_ENDS_THE_PROCESS = {"AvgPoolGrad"}
# TensorFlow makes these for known sizes only.
_NEEDS_SIZES = {"MatrixSetDiagV3 band", "MatrixDiagV3 band"}
# TensorFlow itself computes [n, 1, m, k] by one matrix wrong on some processors.
_FROM_SIZE_2 = {"BatchMatMulV2 broadcast", "BatchMatMulV2 by one"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in _ENDS_THE_PROCESS | _NEEDS_SIZES])
@settings(max_examples=_EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_rule_gives_what_the_operation_gives_for_other_sizes(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    workers = data.draw(st.integers(1, 4))
    differing = data.draw(st.sampled_from(sorted({size for _, shape in case.inputs for size in shape if size > 1})))
    places = {(i, d) for i, (_, shape) in enumerate(case.inputs) for d, size in enumerate(shape) if size == differing}
    conditions = Conditions()
    shapes = of_inputs([shape for _, shape in case.inputs], places, conditions)
    chosen = data.draw(layouts(case, shapes, workers))
    specs = [
        tf.TensorSpec(
            [None if (i, d) in places else size for d, size in enumerate(shape)], values(kind, shape, 0).dtype
        )
        for i, (kind, shape) in enumerate(case.inputs)
    ]
    try:
        function = tf.function(lambda *inputs: tf.nest.flatten(case.apply(*inputs)), autograph=False)
        whole = function.get_concrete_function(*specs)
    except (ValueError, TypeError):
        # It needs to know the size when it is traced.
        assume(False)
    step = DividedStep(whole, dict(enumerate(chosen)), workers, shapes=shapes, conditions=conditions)
    others = st.integers(2 if name in _FROM_SIZE_2 else 1, 12)
    for size in (differing, data.draw(others), data.draw(others)):
        each = [
            values(kind, [size if (i, d) in places else n for d, n in enumerate(shape)], i)
            for i, (kind, shape) in enumerate(case.inputs)
        ]
        try:
            expected = [t.numpy() for t in whole(*map(tf.constant, each))]
        except (tf.errors.InvalidArgumentError, ValueError):
            # The operation does not take this size.
            continue
        if size == differing or conditions.hold([array.shape for array in each]):
            assert largest_difference(expected, [t.numpy() for t in step.varied(*each)]) <= 2e-5


# A loss of rows, of pairs of rows, statistics of a batch, images, loops with masks, and drawn numbers.
@pytest.mark.parametrize(
    "name",
    some_of(MODELS, "dense_with_dropout convolutional text transformer_decoder contrastive generative_adversarial"),
)
def test_a_model_is_divided_once_for_any_number_of_rows(name: str, request: pytest.FixtureRequest) -> None:
    """The last batch of an epoch, and batches that differ from step to step."""
    keras.utils.set_random_seed(1)
    choose_precision(name, request)
    shape, build = MODELS[name]
    # No other dimension has as many.
    net, (data,) = build(), batches(shape, 15, 1)
    build_for(net, data)
    specs = [tf.TensorSpec((None, *array.shape[1:]), array.dtype) for array in data]
    whole = tf.function(lambda x, y: tf.nest.flatten(net.train_step((x, y)))).get_concrete_function(*specs)
    conditions = Conditions()
    shapes = of_inputs([array.shape for array in data], {(0, 0), (1, 0)}, conditions)
    step = DividedStep(
        whole, dict(enumerate(batch_layouts(shapes, 0, _WORKERS))), _WORKERS, shapes=shapes, conditions=conditions
    )
    known = DividedStep(whole, dict.fromkeys((0, 1), Divided(0, (5, 5, 5))), _WORKERS)
    # How much is exchanged is not known where a loop makes it.
    accounts = [dataclasses.replace(each.account, largest=0) for each in (step, known)]
    assert accounts[0] == accounts[1], "nothing more is exchanged or computed whole than for known sizes"
    for rows in (15, 17, 11):
        (batch,) = batches(shape, rows, 1)
        assert conditions.hold([array.shape for array in batch])
        outputs, variables = side_by_side(
            lambda batch=batch: [t.numpy() for t in whole(*map(tf.constant, batch))],
            lambda batch=batch: [t.numpy() for t in step.varied(*batch)],
            list(whole.graph.variables),
        )
        assert outputs <= 1e-5 and variables <= 1e-5
