"""Affine expressions agree with integers; the effects of builtins and functions."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.codegen.operations import (
    Affine,
    Effect,
    Elementwise,
    affine_result,
    effect_of_builtin,
    effect_of_function,
    effect_of_native,
)

NAMES = ("i", "j", "k")
NUMBERS = st.integers(-1000, 1000)
EXPRESSIONS = st.builds(Affine.of, NUMBERS, st.dictionaries(st.sampled_from(NAMES), st.integers(-9, 9)))
VALUES = st.fixed_dictionaries(dict.fromkeys(NAMES, NUMBERS))


def value(expression: Affine, at: Mapping[str, int]) -> int:
    return expression.constant + sum(factor * at[name] for name, factor in expression.terms)


@given(EXPRESSIONS, EXPRESSIONS, NUMBERS, VALUES)
def test_arithmetic_agrees_with_integers(a: Affine, b: Affine, factor: int, at: Mapping[str, int]) -> None:
    x, y = value(a, at), value(b, at)
    assert value(a + b, at) == x + y
    assert value(a - b, at) == x - y
    assert value(-a, at) == -x
    assert value(a.times(factor), at) == x * factor


@given(EXPRESSIONS, EXPRESSIONS)
def test_terms_are_nonzero_and_sorted(a: Affine, b: Affine) -> None:
    for found in (a + b, a - b, -a, a.times(0), a.times(3)):
        assert all(factor for _, factor in found.terms)
        assert list(found.terms) == sorted(found.terms)
        assert found.variables == {name for name, _ in found.terms}


@given(EXPRESSIONS, EXPRESSIONS, VALUES)
def test_builtins_agree_with_integers(a: Affine, b: Affine, at: Mapping[str, int]) -> None:
    x, y = value(a, at), value(b, at)
    for name, expected in (("add", x + y), ("sub", x - y)):
        found = affine_result(name, (a, b))
        assert found is not None
        assert value(found, at) == expected
    product = affine_result("mul", (a, b))
    assert (product is None) == bool(a.terms and b.terms)
    assert product is None or value(product, at) == x * y
    for name in ("copy", "int", "int32"):
        assert affine_result(name, (a,)) == a
    assert affine_result("neg", (a,)) == -a


@pytest.mark.parametrize("name", ["floordiv", "mod", "bit_xor", "min", "", "row_of"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_other_builtins_have_no_affine_result(name: str, count: int) -> None:
    assert affine_result(name, (Affine(2),) * count) is None


# ---- effects


@pytest.mark.parametrize(
    ("name", "operands", "effect"),
    [
        ("add", {}, Effect.NONE),
        ("tile_sum", {"tiles": True}, Effect.TILES),
        ("tile_view", {"tiles": True}, Effect.ALIAS),
        ("tile_load", {"tiles": True, "arrays": True}, Effect.TILES),
        ("tile_store", {"tiles": True, "arrays": True}, Effect.WRITES),
        ("array_store", {"arrays": True}, Effect.WRITES),
        ("address", {"arrays": True}, Effect.NONE),
        ("tuple", {"references": True}, Effect.NONE),
        ("load", {"references": True}, Effect.NONE),
        ("store", {"references": True}, Effect.WRITES),
        ("mul", {"references": True}, Effect.NONE),
        ("add", {"references": True, "tiles": True}, Effect.TILES),
        ("mul", {"arrays": True}, Effect.WRITES),
        ("of a newer Warp", {"arrays": True}, Effect.WRITES),
        ("of a newer Warp", {"tiles": True}, Effect.TILES),
    ],
    ids=str,
)
def test_a_builtin(name: str, operands: dict[str, bool], effect: Effect) -> None:
    given = {"tiles": False, "arrays": False, "references": False, **operands}
    assert effect_of_builtin(name, **given) is effect


@pytest.mark.parametrize(
    ("effects", "effect"),
    [
        ([], Effect.NONE),
        ([Effect.NONE, Effect.ALIAS], Effect.TILES),
        ([Effect.TILES, Effect.NONE], Effect.TILES),
        ([Effect.NONE, Effect.ORDERED], Effect.ORDERED),
        ([Effect.ALIAS, Effect.ORDERED], Effect.TILES),
        ([Effect.TILES, Effect.WRITES], Effect.WRITES),
        ([Effect.WRITES, Effect.UNKNOWN, Effect.TILES], Effect.UNKNOWN),
    ],
    ids=str,
)
def test_a_function_has_the_worst_effect_of_its_operations(effects: list[Effect], effect: Effect) -> None:
    assert effect_of_function(effects) is effect


EXPRESSIONS_IN_CPP = (
    *("return n * 4;", "return (uint64_t)n.data;", "\n  return n == 3 || n >= m ? -n : int(1.5e2f);\n"),
    *("return n >> 2;", "return static_cast<int>(n);", "return 0x7FFFFFFFFFFFFFFFull;", "return *(n.data + m);"),
)
OTHERS_IN_CPP = (
    *("", "n = 4;", "return n++;", "return --n;", "return n = 4;", "return n += 4;", "return n <<= 1;"),
    *("return f(n);", "return clock();", "return threadIdx.x;", "return n.size;", "return *(float*)n;", "return nm;"),
    *("return *reinterpret_cast<float*>(n);", "return n; return m;", "return n /* ; */;", "return n // 4;\n;"),
    *("return n[0];", "__syncthreads();", "return n\n#define n m\n;", "return n, m;", "return n >>= 1;"),
)


@pytest.mark.parametrize("snippet", EXPRESSIONS_IN_CPP)
def test_an_expression_in_cpp_has_no_effect(snippet: str) -> None:
    assert effect_of_native(snippet, ("n", "m"), small_numbers=False) is Effect.NONE


@pytest.mark.parametrize("snippet", OTHERS_IN_CPP)
def test_other_cpp_keeps_its_order_or_is_unknown(snippet: str) -> None:
    assert effect_of_native(snippet, ("n", "m"), small_numbers=True) is Effect.ORDERED
    assert effect_of_native(snippet, ("n", "m"), small_numbers=False) is Effect.UNKNOWN


def test_the_record_of_a_sum_adds_to_the_first_tile() -> None:
    with pytest.raises(ValueError, match="adds to its second tile"):
        Elementwise("tile_axpy", updates=1, sum_sign=1)
