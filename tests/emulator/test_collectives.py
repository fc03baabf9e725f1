"""Emulated collectives and conversions multiply, move and round as the hardware does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.emulator.emulator import Emulator, Function, Launch, Outcome
from tests.emulator.tiles import Matrix, Tile, from_bytes, rounded, to_bytes
from warp_tiles.gemm.problem import DTYPE_BYTES, DType

# the row and column of the i-th element of lane (g, q), as in kernels/arch/mma.cuh
Position = Callable[[int, int, int], tuple[int, int]]
# dtype; m, n, k; positions in A, B and C
Layout = tuple[DType, int, int, int, Position, Position, Position]
C_16: Position = lambda g, q, i: (g + 8 * (i // 2), 2 * q + i % 2)  # noqa: E731
A_8_TF32: Position = lambda g, q, i: (g + 8 * (i % 2), q + 4 * (i // 2))  # noqa: E731
B_8_TF32: Position = lambda g, q, i: (q + 4 * i, g)  # noqa: E731
A_16: Position = lambda g, q, i: (g + 8 * (i // 2 % 2), 2 * q + i % 2 + 8 * (i // 4))  # noqa: E731
B_16: Position = lambda g, q, i: (2 * q + i % 2 + 8 * (i // 2), g)  # noqa: E731
LAYOUTS: dict[str, Layout] = {
    "mma_m16n8k16_f16": ("float16", 16, 8, 16, A_16, B_16, C_16),
    "mma_m16n8k16_bf16": ("bfloat16", 16, 8, 16, A_16, B_16, C_16),
    "mma_m16n8k8_f16": ("float16", 16, 8, 8, C_16, lambda g, q, i: (2 * q + i, g), C_16),
    "mma_m16n8k8_tf32": ("float32", 16, 8, 8, A_8_TF32, B_8_TF32, C_16),
    "mma_m8n8k4_f64": (
        "float64", 8, 8, 4, lambda g, q, i: (g, q), lambda g, q, i: (q, g), lambda g, q, i: (g, 2 * q + i),
    ),
    "mma_m16n8k8_f64": ("float64", 16, 8, 8, A_8_TF32, B_8_TF32, C_16),
}  # fmt: skip


def to_registers(matrix: Matrix, position: Position) -> Matrix:
    """A row of fragment elements for each lane."""
    count = matrix.size // 32
    return np.array([[matrix[position(lane // 4, lane % 4, i)] for i in range(count)] for lane in range(32)])


def from_registers(registers: Matrix, shape: tuple[int, int], position: Position) -> Matrix:
    """The reverse of :func:`to_registers`."""
    matrix = np.full(shape, np.nan)
    for lane, i in itertools.product(range(32), range(registers.shape[1])):
        matrix[position(lane // 4, lane % 4, i)] = registers[lane, i]
    return matrix


def dense(values: Matrix, dtype: DType, alignment: int) -> Tile:
    """A packed tile for a matrix."""
    rows, columns = values.shape
    return replace(Tile.dense(rows, columns, dtype), alignment=alignment)


def mma_launch(name: str, a: list[Matrix], b: Matrix, c: Matrix) -> Launch:
    """A launch of one instruction for each A, all with the same B and C."""
    dtype, _, _, _, position_a, position_b, position_c = LAYOUTS[name]
    rows_a = np.vstack([to_registers(one, position_a) for one in a])
    rows_b = to_registers(b, position_b)
    rows_c = np.vstack([to_registers(c, position_c)] * len(a))
    result: DType = "float64" if dtype == "float64" else "float32"
    # a register holds two 16-bit elements
    tiles = (
        dense(rows_a, dtype, max(4, DTYPE_BYTES[dtype])),
        dense(rows_b, dtype, max(4, DTYPE_BYTES[dtype])),
        dense(rows_c, result, DTYPE_BYTES[result]),
    )
    return Launch(Function(name, f"registers::{name}<{len(a)}>"), tiles, 32, 90, (rows_a, rows_b, rows_c))


@pytest.mark.parametrize("name", LAYOUTS)
def test_fragments_of_a_one_hot_product(emulator: Emulator, name: str) -> None:
    _, m, n, k, _, _, position_c = LAYOUTS[name]
    positions = list(itertools.product(range(m), range(k)))
    one_hot = []
    for i, j in positions:
        a = np.zeros((m, k))
        a[i, j] = 1.0
        one_hot.append(a)
    b = np.arange(1.0, 1 + k * n).reshape(k, n)
    c = np.arange(0.0, 1000 * m * n, 1000).reshape(m, n)
    (outcome,) = emulator.run([mma_launch(name, one_hot, b, c)], ["kernels/registers.cuh"])
    assert outcome.error == ""
    for number, a in enumerate(one_hot):
        got = from_registers(outcome.c[32 * number : 32 * (number + 1)], (m, n), position_c)
        assert np.array_equal(got, a @ b + c), positions[number]


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_instruction_rounds_once(emulator: Emulator, name: str) -> None:
    dtype, m, n, k, _, _, position_c = LAYOUTS[name]
    random = np.random.default_rng(1)
    a, b = (rounded(random.uniform(-1, 1, shape), dtype) for shape in ((m, k), (k, n)))
    if dtype == "float32":
        truncated_a, truncated_b = (
            (x.astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b)
        )
        exact = truncated_a.astype(np.float64) @ truncated_b.astype(np.float64)
    else:
        exact = np.asarray(a @ b, dtype=np.float64)
    c = rounded(random.uniform(-1, 1, (m, n)), "float64" if dtype == "float64" else "float32")
    (outcome,) = emulator.run([mma_launch(name, [a], b, c)], ["kernels/registers.cuh"])
    got = from_registers(outcome.c, (m, n), position_c)
    expected = exact + c
    if dtype == "float64":
        assert np.allclose(got, expected, rtol=1e-14, atol=1e-15)
    else:
        assert np.array_equal(got, rounded(expected, "float32"))


def ldmatrix(emulator: Emulator, matrices: int, values: Matrix, alignment: int = 16, arch: int = 90) -> Outcome:
    """Each lane's elements of some matrices, whose rows A has."""
    tiles = (
        replace(Tile.dense(len(values), 8, "float16"), alignment=alignment),
        Tile.dense(1, 1, "float16"),
        replace(Tile.dense(32, 2 * matrices, "float16"), alignment=4),
    )
    function = Function("ldmatrix", f"registers::ldmatrix<{matrices}>")
    launch = Launch(function, tiles, 32, arch, (values, np.zeros((1, 1)), None))
    (outcome,) = emulator.run([launch], ["kernels/registers.cuh"])
    return outcome


@pytest.mark.parametrize("matrices", [2, 4])
def test_ldmatrix_transposes_each_matrix(emulator: Emulator, matrices: int) -> None:
    values = np.arange(256.0).reshape(32, 8)
    outcome = ldmatrix(emulator, matrices, values)
    assert outcome.error == ""
    for lane, matrix, half in itertools.product(range(32), range(matrices), range(2)):
        row, column = 2 * (lane % 4) + half, lane // 4
        assert outcome.c[lane, 2 * matrix + half] == values[8 * matrix + row, column]


@pytest.mark.parametrize(("matrices", "arch", "rows", "alignment", "error"), [
    (4, 90, 31, 16, "thread 31 (warp 0, lane 31): ldmatrix row of 16 bytes out of tile at 1 byte past the end of A"),
    (2, 90, 16, 16, ""),
    (2, 75, 16, 16, "thread 16 (warp 0, lane 16): ldmatrix row"),
    (4, 90, 32, 8, "thread 0 (warp 0, lane 0): ldmatrix row of 16 bytes misaligned at A row 0, column 0"),
])  # fmt: skip
def test_ldmatrix_rows_are_checked(
    emulator: Emulator, matrices: int, arch: int, rows: int, alignment: int, error: str
) -> None:
    outcome = ldmatrix(emulator, matrices, np.zeros((rows, 8)), alignment, arch)
    assert error in outcome.error
    assert bool(error) == bool(outcome.error)


def elementwise(emulator: Emulator, call: str, a: Matrix, source: DType, target: DType, count: int) -> Outcome:
    """Run a function whose thread i writes element i of C."""
    tiles = (
        replace(Tile.dense(1, a.size, source), alignment=8),
        Tile.dense(1, 1, source),
        Tile.dense(1, count, target),
    )
    launch = Launch(Function(call, call), tiles, count, 90, (a.reshape(1, -1), np.zeros((1, 1)), None), 0.5, -2.0)
    (outcome,) = emulator.run([launch], ["kernels/registers.cuh"])
    assert outcome.error == ""
    return outcome


@pytest.mark.parametrize("mask", [1, 4, 16, 31])
@pytest.mark.parametrize(("dtype", "cxx"), [("float32", "float"), ("float64", "double")])
def test_shuffle_xor(emulator: Emulator, dtype: DType, cxx: str, mask: int) -> None:
    values = np.arange(32.0)
    outcome = elementwise(emulator, f"registers::shuffle_xor<{cxx}, {mask}>", values, dtype, dtype, 32)
    assert np.array_equal(outcome.c[0], values[np.arange(32) ^ mask])


def test_scalars_reach_every_thread(emulator: Emulator) -> None:
    outcome = elementwise(emulator, "registers::scalars<float>", np.zeros(1), "float32", "float32", 96)
    assert np.array_equal(outcome.c, np.full((1, 96), -1.5))


@pytest.mark.parametrize(
    ("selector", "order"), [(0x5410, [0, 1, 4, 5]), (0x7632, [2, 3, 6, 7]), (0x0246, [6, 4, 2, 0])]
)
def test_permute_bytes(emulator: Emulator, selector: int, order: list[int]) -> None:
    halves = np.random.default_rng(1).uniform(1, 2, 128)
    outcome = elementwise(emulator, f"registers::permute<{selector}>", halves, "float16", "float32", 32)
    pairs = np.frombuffer(to_bytes(halves, "float16"), np.uint8).reshape(32, 8)
    assert np.array_equal(np.frombuffer(outcome.c_bytes, np.uint8).reshape(32, 4), pairs[:, order])


NARROW: list[tuple[str, DType]] = [("wt::f16", "float16"), ("wt::bf16", "bfloat16")]
WIDE: list[tuple[str, DType]] = [("float", "float32"), ("double", "float64")]


@pytest.mark.parametrize(("to", "target"), NARROW)
@pytest.mark.parametrize(("source", "dtype"), WIDE)
def test_narrowing_rounds_to_nearest_even(
    emulator: Emulator, to: str, target: DType, source: str, dtype: DType
) -> None:
    step = 2.0**-10 if target == "float16" else 2.0**-7
    smallest = 2.0**-24 if target == "float16" else 2.0**-133
    largest = 65504.0 if target == "float16" else 2.0**128 - 2.0**120
    ties = [1 + step * (i + 0.5) for i in range(4)]
    values = [*ties, *(np.nextafter(np.array(ties), 0)), *(np.nextafter(np.array(ties), 2))]
    values += [smallest * x for x in (0.25, 0.5, 0.75, 1, 1.5, 2.5, 1023.5)] + [largest, largest * (1 + step / 4)]
    values += [0.0, -0.0, -1.3, np.inf, -np.inf, np.nan, largest * 1.5]
    random = np.random.default_rng(1)
    values += list(random.uniform(-2, 2, 600) * 2.0 ** random.integers(-30, 15, 600))
    with np.errstate(over="ignore"):
        exact = rounded(np.array(values + [1.0] * (-len(values) % 32)), dtype)
        expected = rounded(exact, target)
    outcome = elementwise(emulator, f"registers::convert<{to}, {source}>", exact, dtype, target, exact.size)
    assert np.array_equal(outcome.c[0], expected, equal_nan=True)


@pytest.mark.parametrize(("source", "dtype"), NARROW)
@pytest.mark.parametrize(("to", "target"), WIDE)
def test_widening_is_exact(emulator: Emulator, to: str, target: DType, source: str, dtype: DType) -> None:
    patterns = np.arange(0, 65536, 64, dtype=np.uint16) + np.arange(1024, dtype=np.uint16) % 61
    values = from_bytes(patterns.tobytes(), dtype)
    outcome = elementwise(emulator, f"registers::convert<{to}, {source}>", values, dtype, target, values.size)
    assert np.array_equal(outcome.c[0], values, equal_nan=True)
