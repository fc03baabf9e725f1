"""The problems of a call, from its tiles: every form, checked in flat memory, and the alignments of operands."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from warp_tiles.gemm.problem import (
    DTYPE_BYTES,
    Arrangement,
    DType,
    GemmProblem,
    Precision,
    Products,
    Role,
    Target,
    TileOperand,
    faster_scalar_path,
    leading_dimension,
    operand_of,
    products,
)
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.providers.cublasdx import promised

Matrix = npt.NDArray[np.int64]
SM90 = Target(90, 128)
dims = st.integers(1, 6)
dtypes = st.sampled_from(sorted(DTYPE_BYTES))
layouts = st.sampled_from(["row_major", "col_major"])


def tile(
    rows: int,
    cols: int,
    dtype: str = "float32",
    layout: str = "row_major",
    *,
    ld: int = 0,
    strides: tuple[int, int] | None = None,
    aligned: bool = True,
) -> TileOperand:
    """A tile, packed unless ``ld`` or ``strides`` is given."""
    if strides is None:
        strides = (ld or cols, 1) if layout == "row_major" else (1, ld or rows)
    return TileOperand(dtype, (rows, cols), strides, layout, aligned)  # type: ignore[arg-type]


def product(
    a: TileOperand, b: TileOperand, c: TileOperand, precision: Precision = "default", target: Target = SM90
) -> Products:
    return products(a, b, c, precision=precision, target=target)


@st.composite
def operand_tiles(draw: st.DrawFn) -> tuple[TileOperand, TileOperand, TileOperand]:
    """Tiles of A, B and C with random sizes, dtypes, layouts, padding and alignment."""
    m, n, k = draw(dims), draw(dims), draw(dims)
    tiles = []
    for rows, cols in ((m, k), (k, n), (m, n)):
        layout = draw(layouts)
        packed = cols if layout == "row_major" else rows
        dtype = draw(dtypes if len(tiles) < 2 else dtypes.filter(lambda name: name != "bfloat16"))
        ld = packed + draw(st.integers(0, 3))
        tiles.append(tile(rows, cols, dtype, layout, ld=ld, aligned=draw(st.booleans())))
    return tiles[0], tiles[1], tiles[2]


# ---- leading dimensions


@given(st.integers(1, 6), st.integers(1, 6), st.integers(-1, 9), st.integers(-1, 9), st.booleans())
def test_a_leading_dimension_reads_the_same_elements_as_the_strides(
    rows: int, cols: int, row_stride: int, col_stride: int, tagged_row_major: bool
) -> None:
    layout: Arrangement = "row_major" if tagged_row_major else "col_major"
    found = leading_dimension(TileOperand("float32", (rows, cols), (row_stride, col_stride), layout, True))
    fits = {"row_major": col_stride == 1 and row_stride >= cols, "col_major": row_stride == 1 and col_stride >= rows}
    assert (found is None) == (not any(fits.values()))
    if found is None:
        return
    arrangement, ld = found
    assert fits[arrangement]
    assert arrangement == layout or not fits[layout]
    memory = np.arange(200)
    by_strides = as_strided(memory, (rows, cols), (row_stride * memory.itemsize, col_stride * memory.itemsize))
    assert np.array_equal(read(memory, arrangement, ld, rows, cols), by_strides)


# ---- the three products, on flat memory


def read(memory: npt.NDArray[Any], arrangement: str, ld: int, rows: int, cols: int) -> npt.NDArray[Any]:
    """The matrix that BLAS reads."""
    i, j = np.indices((rows, cols))
    index = i * ld + j if arrangement == "row_major" else j * ld + i
    return np.asarray(memory[index])


def write(memory: Matrix, arrangement: str, ld: int, values: Matrix) -> None:
    i, j = np.indices(values.shape)
    memory[i * ld + j if arrangement == "row_major" else j * ld + i] = values


def gemm(problem: GemmProblem, a: Matrix, b: Matrix, c: Matrix) -> None:
    """The device function's computation: C += A B on flat memory, by arrangement and leading dimension."""
    left = read(a, problem.a.arrangement, problem.a.leading_dimension, problem.m, problem.k)
    right = read(b, problem.b.arrangement, problem.b.leading_dimension, problem.k, problem.n)
    old = read(c, problem.c.arrangement, problem.c.leading_dimension, problem.m, problem.n)
    write(c, problem.c.arrangement, problem.c.leading_dimension, old + left @ right)


def strided(memory: Matrix, of: TileOperand) -> Matrix:
    """The tile that the strides define, as a view of flat memory."""
    return as_strided(memory, of.shape, tuple(stride * memory.itemsize for stride in of.strides))


@given(operand_tiles(), st.integers(0, 2**32 - 1))
def test_every_product_computes_its_formula_on_flat_memory(
    tiles: tuple[TileOperand, TileOperand, TileOperand], seed: int
) -> None:
    a, b, c = tiles
    found = product(a, b, c).problems
    random = np.random.default_rng(seed)
    # a gradient has the layout of its tile
    memory = [random.integers(-9, 9, 100) for _ in range(6)]
    values = dict(zip(("a", "b", "c", "adj_a", "adj_b", "adj_c"), memory))
    shapes = {"a": a, "b": b, "c": c, "adj_a": a, "adj_b": b, "adj_c": c}
    view = {name: strided(values[name], shapes[name]).copy() for name in values}

    gemm(found[Role.FORWARD], values["a"], values["b"], values["c"])
    gemm(found[Role.ADJOINT_A], values["adj_c"], values["b"], values["adj_a"])
    gemm(found[Role.ADJOINT_B], values["a"], values["adj_c"], values["adj_b"])

    assert np.array_equal(strided(values["c"], c), view["c"] + view["a"] @ view["b"])
    assert np.array_equal(strided(values["adj_a"], a), view["adj_a"] + view["adj_c"] @ view["b"].T)
    assert np.array_equal(strided(values["adj_b"], b), view["adj_b"] + view["a"].T @ view["adj_c"])


@given(operand_tiles())
def test_products_keep_dtypes_threads_and_architecture(tiles: tuple[TileOperand, TileOperand, TileOperand]) -> None:
    a, b, c = (each.dtype for each in tiles)
    found = product(*tiles, target=Target(120, 96)).problems
    kinds = {role: (v.a.dtype, v.b.dtype, v.c.dtype) for role, v in found.items()}
    assert kinds == {Role.FORWARD: (a, b, c), Role.ADJOINT_A: (c, b, a), Role.ADJOINT_B: (a, c, b)}
    assert {(v.threads, v.arch, v.precision) for v in found.values()} == {(96, 120, "default")}


# ---- the scalar path


@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_the_reason_names_the_operand(name: str) -> None:
    tiles = {other: tile(4, 4) for other in ("a", "b", "out")}
    tiles[name] = tile(4, 4, strides=(1, 0))
    found = product(*tiles.values())
    assert found.scalar_reason == Rejected("no_leading_dimension", (f"'{name}'", (4, 4), (1, 0)))
    assert found.is_unsupported
    assert found.problems == {}


def test_only_the_first_bad_operand_is_warned_about_as_in_warp() -> None:
    bad = tile(4, 4, strides=(0, 1))
    assert len(product(bad, bad, bad).warnings) == 1


def test_a_reason_given_by_the_target_is_kept() -> None:
    reason = Rejected("option_off", ("enable_mathdx_gemm",))
    found = product(tile(4, 4, strides=(0, 1)), tile(4, 4), tile(4, 4), target=Target(90, 64, reason))
    assert found.scalar_reason == reason
    assert not found.is_unsupported
    assert found.problems == {}
    assert found.warnings == ()  # the strides do not matter then


# ---- tf32


@pytest.mark.parametrize("arch", [75, 90, None])
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_tf32_requires_float32(arch: int | None, position: int, dtype: str) -> None:
    tiles = [tile(4, 4), tile(4, 4), tile(4, 4)]
    tiles[position] = tile(4, 4, dtype)
    with pytest.raises(TypeError, match=f"'tf32' requires float32.*{dtype}"):
        product(tiles[0], tiles[1], tiles[2], "tf32", Target(arch, 64))


# ---- refused tiles


@pytest.mark.parametrize(
    ("target", "reason"),
    [(Target(None, 1), Rejected("cpu")), (Target(90, 64, Rejected("not_enabled")), Rejected("not_enabled"))],
)
def test_a_bfloat16_result_is_refused_on_the_scalar_path(target: Target, reason: Rejected) -> None:
    text = r"bfloat16 'out' tile.*float16, float32, and float64\..*provider 'own' does.*"
    with pytest.raises(TypeError, match=f"{text}Here {reason}"):
        product(tile(4, 4, "bfloat16"), tile(4, 4, "bfloat16"), tile(4, 4, "bfloat16"), target=target)


def test_a_bfloat16_result_of_a_broadcast_operand_is_refused() -> None:
    broadcast = tile(4, 4, "bfloat16", strides=(0, 1))
    with pytest.raises(TypeError, match=r"bfloat16 'out' tile.*strides=\(0, 1\) cannot be expressed"):
        product(broadcast, tile(4, 4, "bfloat16"), tile(4, 4, "bfloat16"))


@pytest.mark.parametrize(("position", "name"), [(0, "'a'"), (1, "'b'"), (2, "'out'")])
@pytest.mark.parametrize("target", [SM90, Target(None, 1)])
def test_an_unknown_dtype_is_refused_by_name(position: int, name: str, target: Target) -> None:
    tiles = [tile(4, 4), tile(4, 4), tile(4, 4)]
    tiles[position] = tile(4, 4, "int8")
    with pytest.raises(TypeError, match=f"float16, bfloat16, float32, or float64.*{name} has dtype int8"):
        product(tiles[0], tiles[1], tiles[2], target=target)


@pytest.mark.parametrize(
    "shapes", [((4, 3), (5, 6), (4, 6)), ((4, 3), (3, 6), (5, 6)), ((4, 3), (3, 6), (4, 7)), ((4, 3), (3, 6), (6, 4))]
)
@pytest.mark.parametrize("target", [SM90, Target(None, 1)])
def test_shapes_that_do_not_match_are_refused_with_the_shapes(
    shapes: tuple[tuple[int, int], ...], target: Target
) -> None:
    with pytest.raises(ValueError, match="consistent for a matmul") as caught:
        product(*(tile(*shape) for shape in shapes), target=target)  # type: ignore[misc]
    assert all(str(shape) in str(caught.value) for shape in shapes)


# ---- alignments


def test_cublasdx_gets_a_promise_only_for_rows_of_a_multiple_of_16_bytes() -> None:
    found = product(tile(8, 6), tile(6, 8), tile(8, 8)).problems[Role.FORWARD]
    assert found.alignments == (8, 16, 16)
    assert promised(found).alignments == (4, 16, 16)


@pytest.fixture(scope="module")
def warps_rule() -> Callable[..., tuple[int, int, int]]:
    """Warp's own rule. The first import of Warp takes longer than Hypothesis allows for an example."""
    build = pytest.importorskip("warp._src.build")
    if not hasattr(build, "_gemm_operand_alignments"):
        pytest.skip("this Warp has no _gemm_operand_alignments")
    rule: Callable[..., tuple[int, int, int]] = build._gemm_operand_alignments
    return rule


@given(operand_tiles(), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_the_promise_to_cublasdx_follows_warps_rule(
    warps_rule: Callable[..., tuple[int, int, int]],
    tiles: tuple[TileOperand, TileOperand, TileOperand],
    bases: tuple[bool, bool, bool],
) -> None:
    a, b, c = (replace(each, aligned_base=base) for each, base in zip(tiles, bases))
    problem = product(a, b, c).problems[Role.FORWARD]
    leading_dimensions = (0, 0, 0) if problem.is_dense else problem.leading_dimensions
    by_warp = warps_rule(problem.dense_leading_dimensions, leading_dimensions, problem.element_alignments, bases)
    expected = list(problem.element_alignments) if by_warp == (0, 0, 0) else list(by_warp)
    assert list(promised(problem).alignments) == expected


@given(dtypes, st.integers(1, 64), layouts, st.booleans())
def test_an_alignment_holds_for_every_row_and_column(dtype: DType, ld: int, layout: Arrangement, base: bool) -> None:
    size = DTYPE_BYTES[dtype]
    operand = operand_of(tile(1, 1, dtype, layout, ld=ld, aligned=base), layout, ld)
    assert operand.alignment == (math.gcd(16, ld * size) if base else size)
    starts = [(0 if base else size) + line * ld * size for line in range(8)]
    assert all(start % operand.alignment == 0 for start in starts)


# ---- products that opt out of MathDx


VIEW: dict[str, Any] = {"layout": "col_major", "aligned": False}
SQUARE = tile(32, 32)


@pytest.mark.parametrize(
    ("tiles", "options", "is_left"),
    [
        ((tile(32, 16), tile(16, 32), SQUARE), {}, True),  # a short sum
        ((tile(32, 16), tile(16, 32), SQUARE), {"held": True}, False),  # in a loop that holds it
        ((SQUARE, SQUARE, SQUARE), {}, False),
        ((tile(12, 12),) * 3, {}, False),  # an odd size
        ((tile(12, 12),) * 3, {"differentiated": True}, True),
        ((tile(12, 12),) * 3, {"differentiated": True, "held": True}, True),
        ((tile(32, 32, **VIEW), SQUARE, SQUARE), {}, True),  # an operand is read along K
        ((SQUARE, tile(32, 32, **VIEW), SQUARE), {}, False),
        ((tile(8, 8, **VIEW), tile(8, 8), tile(8, 8)), {}, False),
        ((tile(32, 32, **VIEW), tile(32, 1), tile(32, 1)), {}, False),
        ((tile(32, 32, aligned=False), SQUARE, SQUARE), {}, True),  # was not measured
        ((SQUARE, SQUARE, SQUARE), {"threads": 512}, True),  # nor was this
        # a transposed result is decided as the transposed product
        ((SQUARE, tile(32, 32, **VIEW), tile(32, 32, layout="col_major")), {}, True),
        ((tile(32, 16), tile(16, 32, layout="col_major"), SQUARE), {}, False),
        ((tile(32, 16), tile(16, 32, layout="col_major"), tile(32, 32, layout="col_major")), {}, False),
        *(
            ((tile(32, 16, dtype), tile(16, 32, dtype), tile(32, 32, out)), {"differentiated": True}, False)
            for dtype, out in (("float16", "float16"), ("bfloat16", "float32"), ("float64", "float64"))
        ),
    ],
)
def test_what_is_left_to_warp(
    tiles: tuple[TileOperand, TileOperand, TileOperand], options: dict[str, Any], is_left: bool
) -> None:
    given = {"held": False, "differentiated": False, "threads": 128, **options}
    problem = product(*tiles, target=Target(90, given.pop("threads"))).problems[Role.FORWARD]
    assert (faster_scalar_path(problem, **given) is not None) == is_left
