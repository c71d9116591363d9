"""No variable is read before somebody has assigned it."""

import pytest

from fdt.errors import ProtocolError
from fdt.v1 import program_pb2
from fdt.worker.assigned_variables import AssignedVariables


@pytest.fixture
def account() -> AssignedVariables:
    """Program 1 with the variables a, b and c, none of which has a value."""
    account = AssignedVariables()
    variables = [program_pb2.Variable(tensor=program_pb2.Tensor(name=name)) for name in "abc"]
    account.load(1, program_pb2.StepProgram(variables=variables))
    return account


def test_a_step_needs_all_variables(account: AssignedVariables) -> None:
    account.assign(1, [0, 2])
    with pytest.raises(
        ProtocolError, match=r"1 variable\(s\) of program 1 are read before they have a value, 'b' first"
    ):
        account.require(1)
    account.assign(1, [1])
    account.require(1)


def test_a_question_needs_the_variables_that_it_names(account: AssignedVariables) -> None:
    account.assign(1, [0, 2])
    account.require(1, [2])
    account.require(1, [])
    with pytest.raises(ProtocolError, match="'b' first"):
        account.require(1, [0, 1])


def test_a_question_for_everything_is_about_what_has_been_assigned(account: AssignedVariables) -> None:
    assert account.assigned(1) == []
    account.assign(1, [2, 0])
    assert account.assigned(1) == [0, 2]
    account.assign(1, [1])
    assert account.assigned(1) is None


def test_another_program_with_the_same_number_begins_without_values(account: AssignedVariables) -> None:
    account.assign(1, [0, 1, 2])
    account.forget(1)
    account.load(1, program_pb2.StepProgram(variables=[program_pb2.Variable()]))
    with pytest.raises(ProtocolError):
        account.require(1)
