"""Integers that the arguments of a launch decide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.codegen.whole import Expression, argument, combined, constant, extent


def test_leaves() -> None:
    arguments = [(3, 5), 7, None]
    assert [one.value(arguments) for one in (constant(4), argument(1), extent(0, 1))] == [4, 7, 5]


@pytest.mark.parametrize("bad", [argument(0), argument(2), extent(1, 0), extent(2, 0)])
def test_arguments_of_another_kind_are_errors(bad: Expression) -> None:
    with pytest.raises(TypeError, match="argument"):
        bad.value([(3, 5), 7, None])


def test_a_dimension_that_an_array_lacks_is_an_error() -> None:
    with pytest.raises(IndexError):
        extent(0, 2).value([(3, 5)])


def test_an_unknown_operand_or_builtin_is_unknown() -> None:
    assert combined("add", [constant(1), None]) is None
    assert combined("sin", [constant(1)]) is None
    assert combined("add", []) is None


@given(x=st.integers(-50, 50), y=st.integers(-50, 50).filter(bool))
def test_integers_divide_as_in_cpp_and_floor_in_python(x: int, y: int) -> None:
    def value(operation: str) -> int:
        found = combined(operation, [argument(0), constant(y)])
        assert found is not None
        return found.value([x])

    assert value("div") == int(x / y)
    assert value("mod") == x - int(x / y) * y
    assert value("floordiv") == x // y
    assert (value("add"), value("sub"), value("mul")) == (x + y, x - y, x * y)
    assert (value("min"), value("max")) == (min(x, y), max(x, y))


def test_a_division_by_zero_is_an_error() -> None:
    for operation in ("div", "floordiv", "mod"):
        found = combined(operation, [constant(1), constant(0)])
        assert found is not None
        with pytest.raises(ArithmeticError):
            found.value([])
