"""Loads of tiles, and stages in memory that others use, on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.emulator.generated import Kernels, build
from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.emulator.staged import compile_cases, padded, strided
from tests.nightly import some
from tests.staged_cases import HEADER, Case, with_type
from warp_tiles.compile.toolchain import ToolchainFacts
from warp_tiles.errors import ToolchainError

KERNEL = """
@wp.kernel(enable_backward=False)
def {name}({arguments}):
{body}
    wp.tile_store(C, c)
"""
LOAD_A = "a = wp.tile_load(A, shape=({m}, {k}), offset=(0, s * {k}), storage='shared'{options})"
LOAD_B = "b = wp.tile_load(B, shape=({k}, {m}), offset=(s * {k}, 0), storage='shared'{options})"
PRODUCT = "wp.tile_matmul(a, b, c)"
ZEROS = "c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage='shared')"


def kernel(
    name: str, dtype: str, before: str, *body: str, m: int = 64, k: int = 32, more: str = "", options: str = "",
    head: str = "for s in range(B.shape[0] // {k}):", load_a: str = LOAD_A, load_b: str = LOAD_B,
) -> str:  # fmt: skip
    """The source of a kernel of A, B, further arrays and C, whose loop loads tiles of m x k and k x m elements."""
    arrays = [f"{array}: wp.array2d(dtype=wp.{dtype})" for array in "AB"]
    arrays += [f"{array}: wp.array2d(dtype=wp.float32)" for array in (*more, "C")]
    lines = [head, *(f"    {line}" for line in (load_a, load_b, *body))]
    text = "\n".join([*before.splitlines(), *lines]).format(m=m, k=k, options=options)
    indented = "\n".join(f"    {line}" for line in text.splitlines())
    return KERNEL.format(name=name, arguments=", ".join(arrays), body=indented)


def numbers(seed: int, *shape: int, dtype: str = "float32") -> Values:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def product(a: Values, b: Values) -> Values:
    return a.astype(np.float32) @ b.astype(np.float32)


# ---- loops of two buffers: each iteration waits for its own loads, in conditions and before jumps too

START = "c = wp.tile_load(C, shape=(32, 32), storage='shared')"
SMALL: dict[str, Any] = {"m": 32, "k": 16}
AGAIN = "again = wp.tile_load(B, shape=(16, 32), offset=(s * 16, 0), storage='shared')"
# the last statement of an iteration, or of a loop, reads elements of a tile that other threads load next
READS = {
    "continues": ("if a[31, 15] + a[0, 0] < 100.0:", "    continue", PRODUCT),
    "breaks": (
        "for _ in range(B.shape[1]):", f"    {AGAIN}", "    wp.tile_matmul(a, again, c)",
        "    if a[31, 15] + a[0, 0] < 100.0:", "        break", "    wp.tile_matmul(a, again, c)",
    ),
    "reads_in_a_condition": (
        "turn = int(0)", "while wp.float32(turn) + 0.0 * a[turn % 32, 0] < 1.0:", f"    {AGAIN}",
        "    wp.tile_matmul(a, again, c)", "    turn += 1",
    ),
}  # fmt: skip
TWO_BUFFERS = (
    "".join(kernel(name, "float32", START, PRODUCT, *lines, **SMALL) for name, lines in READS.items())
    # D is unaligned, so the store reads single elements of a tile that the next iteration loads
    + kernel("copying", "float32", ZEROS, PRODUCT, "wp.tile_store(D, a, offset=(0, s * 32))", more="D")
    + kernel("aligned", "float32", START, PRODUCT, m=32, options=", aligned=True")
)


@pytest.fixture(scope="module")
def two_buffers(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return build(machine, tmp_path_factory.mktemp("two_buffers"), TWO_BUFFERS, 64)


@pytest.mark.parametrize(("name", "products"), list(zip(READS, (1, 2, 2))))
def test_loads_wait_for_statements_before_jumps_and_in_conditions(
    two_buffers: Kernels, name: str, products: int
) -> None:
    a, b, c = numbers(1, 32, 64), numbers(2, 64, 32), numbers(3, 32, 32)
    assert np.array_equal(two_buffers.run(name, (1, 1), [a, b, c])["C"], c + products * product(a, b))


def test_a_loop_that_stores_its_operands(two_buffers: Kernels) -> None:
    a, b, c, d = numbers(1, 64, 96), numbers(2, 96, 64), np.zeros((64, 64), np.float32), np.zeros((64, 97), np.float32)
    arrays = two_buffers.run("copying", (1, 1), [a, b, d[:, :96], c])
    assert np.array_equal(arrays["C"], product(a, b))
    assert np.array_equal(arrays["D"], a)


def test_aligned_loads_are_checked(two_buffers: Kernels) -> None:
    a, b, c = numbers(1, 32, 32), numbers(2, 32, 32), np.zeros((32, 32), np.float32)
    assert np.array_equal(two_buffers.run("aligned", (1, 1), [a, b, c])["C"], product(a, b))
    unaligned = numbers(3, 32 * 32 + 1)[1:].reshape(32, 32)
    outcome = two_buffers.emulated.forward(two_buffers.kernel("aligned"), (1, 1), [unaligned, b, c])
    assert "aligned=True but global address not 16-byte aligned" in outcome.error


# ---- loads of vectors ahead of the products

WEIGHTED = """
@wp.kernel(enable_backward=False)
def weighted_{dtype}(A: wp.array2d(dtype=wp.{dtype}), B: wp.array2d(dtype=wp.{dtype}), C: wp.array2d(dtype=wp.float32)):
    c = wp.tile_zeros(shape=(32, 32), dtype=wp.float32, storage="shared")
    for k in range(0, B.shape[0], 16):
        b = wp.tile_load(B, shape=(16, 32), offset=(k, 0), storage="shared")
        e = wp.tile_load(A[0], shape=16, offset=k)
        w = wp.tile_broadcast(wp.tile_reshape(e, shape=(16, 1)), shape=(16, 32))
        wp.tile_matmul(wp.tile_transpose(b), wp.tile_map(wp.mul, w, b), c)
    wp.tile_store(C, c)
"""


@pytest.fixture(scope="module")
def weighted(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    text = "".join(WEIGHTED.format(dtype=dtype) for dtype in ("float16", "float32"))
    built = build(machine, tmp_path_factory.mktemp("weighted"), text, 64)
    assert built.source.count("goto wt_multiply") == 2
    return built


@pytest.mark.parametrize("view", [np.copy, padded, strided], ids=["aligned", "unaligned", "apart"])
@pytest.mark.parametrize("rows", [48, 37, 5])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_vectors(weighted: Kernels, dtype: str, rows: int, view: Callable[[Values], Values]) -> None:
    """Their elements are contiguous and aligned, unaligned, or apart; and the last ones lie outside of the array."""
    weights, b = numbers(1, 1, rows, dtype=dtype), numbers(2, rows, 32, dtype=dtype)
    found = weighted.run(f"weighted_{dtype}", (1, 1), [view(weights), b, np.zeros((32, 32), np.float32)])
    assert np.array_equal(found["C"], product(b.T, weights.T * b))


# ---- loops with stages

# The stages of the next outer iteration lie in C, which other threads may still store.
OUTER_LOOP = """
@wp.kernel(enable_backward=False)
def outer_loop(A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32)):
    for i in range(A.shape[0] // 64):
        c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
        for s in range(A.shape[1] // 32):
            a = wp.tile_load(A, shape=(64, 32), offset=(i * 64, s * 32), storage="shared")
            b = wp.tile_load(B, shape=(32, 64), offset=(s * 32, 0), storage="shared")
            wp.tile_matmul(a, b, c)
        wp.tile_store(C, c, offset=(i * 64, 0))
"""
BEFORE = """small = wp.tile_load(E, shape=(5, 20), storage='shared')
large = wp.tile_load(E, shape=(64, 64), storage='shared')
c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage='shared')
wp.tile_store(D, small, offset=(64, 0))
wp.tile_store(D, large)"""
STAGED = (
    # columns of A begin in the middle of a vector, and between two words
    "".join(
        kernel(f"offset_{first}", "float16", ZEROS, PRODUCT, load_a=LOAD_A.replace("* {k})", f"* {{k}} + {first})"))
        for first in (4, 5)
    )
    # Stages lie where two tiles were read. The first tile leaves them at an address that is no multiple of 1024.
    + kernel("after_stores", "float16", BEFORE, PRODUCT, more="ED")
    + OUTER_LOOP
)  # fmt: skip


@pytest.fixture(scope="module", params=some(["auto", "mma"], 1, "slow"))
def staged(request: pytest.FixtureRequest, machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    found = build(machine, tmp_path_factory.mktemp("staged"), HEADER + STAGED, 128, main_loop=request.param)
    assert found.source.count("wt_module::Ring<") == 4
    return found


def check(kernels: Kernels, name: str, a: Values, b: Values, expected: Values) -> None:
    """Launch a kernel and compare C, whose rows are unaligned."""
    c = padded(np.full(expected.shape, np.nan, dtype=np.float32))
    assert np.array_equal(kernels.run(name, (1, 1), [a, b, c])["C"], expected)


@pytest.mark.parametrize("first", [4, 5])
@pytest.mark.parametrize("left", [4, 0, 12], ids=str)
def test_offsets_between_vectors(staged: Kernels, first: int, left: int) -> None:
    """A has columns up to the last tile's end and a few more, or ends inside that tile."""
    a, b = numbers(1, 64, 96 + left, dtype="float16"), numbers(2, 96, 64, dtype="float16")
    whole = np.zeros((64, 96 + first), dtype=np.float16)
    whole[:, : 96 + left] = a[:, : 96 + first]
    check(staged, f"offset_{first}", a, b, product(whole[:, first:], b))


def test_stages_after_other_tiles(staged: Kernels) -> None:
    a, b = numbers(1, 64, 96, dtype="float16"), numbers(2, 96, 64, dtype="float16")
    e, d = numbers(3, 64, 64), padded(np.full((69, 64), np.nan, dtype=np.float32))
    arrays = staged.run("after_stores", (1, 1), [a, b, e, d, np.zeros_like(e)])
    assert np.array_equal(arrays["C"], product(a, b))
    assert np.array_equal(arrays["D"][:64], e)
    assert np.array_equal(arrays["D"][64:, :20], e[:5, :20])


def test_stages_in_c_of_the_iteration_before(staged: Kernels) -> None:
    a, b = numbers(1, 192, 96, dtype="float16"), numbers(2, 96, 64, dtype="float16")
    check(staged, "outer_loop", a, b, product(a, b))


# ---- fp32 tiles that are transposed on their way into stages

# an array that changes in the loop
CHANGING = kernel("changing", "float32", ZEROS, PRODUCT, k=16, load_a="part = A[s * 64 :]\n    "
                  "a = wp.tile_load(part, shape=({m}, {k}), storage='shared')")  # fmt: skip
# A product with B on the right and one with B on the left have one type, because they have one C.
SHARED = [PRODUCT, "wp.tile_matmul(b, d, c)"]
LOAD_D = "d = wp.tile_load(D, shape=(64, 64), offset=(0, s * 64), storage='shared')"
TRANSPOSED = CHANGING + "".join(
    kernel(
        name, "float32", ZEROS, LOAD_D, *products, k=64, more="D", head="for s in range(A.shape[1] // 64):",
        load_b=LOAD_B.replace("(s * {k}, 0)", "(0, s * {k})"),
    )
    for name, products in (("left_last", SHARED), ("left_first", SHARED[::-1]))
)  # fmt: skip


@pytest.mark.slow
def test_transposed_tiles_of_other_loops(machine: Machine, tmp_path: Path) -> None:
    built = build(machine, tmp_path / "m", HEADER + TRANSPOSED, 128)
    assert "LoadBufferOnce<wt_module::TransposingBufferLoader>" in built.source
    assert built.source.count("wt_module::Ring<") == 3
    c = np.zeros((64, 64), dtype=np.float32)
    a, b = numbers(4, 192, 16), numbers(5, 48, 64)
    expected = sum(a[64 * s :][:64] @ b[16 * s :][:16] for s in range(3))
    assert np.array_equal(built.run("changing", (1, 1), [a, b, c])["C"], expected)
    a, b, d = (numbers(seed, 64, 128) for seed in (6, 7, 8))
    parts = [slice(64 * s, 64 * s + 64) for s in range(2)]
    expected = sum(a[:, part] @ b[:, part] + b[:, part] @ d[:, part] for part in parts)
    for name in ("left_last", "left_first"):
        assert np.array_equal(built.run(name, (1, 1), [a, b, d, c])["C"], expected), name


# ---- stores


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "columns"), [("float16", 133), ("float16", 132), ("float64", 133)])
def test_aligned_rows_that_end_within_or_between_vectors(
    machine: Machine, tmp_path: Path, dtype: str, columns: int
) -> None:
    cases = with_type({"plain": Case(64, 64, 16, 72, columns, 96)}, dtype)
    kernels = compile_cases(machine, tmp_path / "m", cases)
    assert kernels.source.count("wt_module::store_accumulators<") == 1
    a, b, e, expected = cases["plain"].arrays(0)
    c = np.full((72, 136), np.nan, dtype=expected.dtype)[:, :columns]
    assert np.array_equal(kernels.run("plain", cases["plain"].grid, [a, b, e, c])["C"], expected)


# products in sequence; and in one loop a product, a reduction, a tile in registers and a tile with rows of 12 bytes
MORE = f"""
@wp.kernel
def two_products(
    A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), E: wp.array2d(dtype=wp.float32),
    factor: wp.float32, C: wp.array2d(dtype=wp.float32),
):
    {ZEROS}
    for s in range(A.shape[1] // 32):
        {LOAD_A.format(m=64, k=32, options="")}
        {LOAD_B.format(m=64, k=32, options="")}
        {PRODUCT}
    e = wp.tile_load(E, shape=(64, 64), storage="shared")
    wp.tile_store(C, wp.tile_matmul(c, e) * factor)


@wp.kernel(enable_backward=False)
def mixed_tiles(
    A: wp.array2d(dtype=wp.float32),
    B: wp.array2d(dtype=wp.float32),
    C: wp.array2d(dtype=wp.float32),
    D: wp.array2d(dtype=wp.float32),
):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
    sums = wp.tile_zeros(shape=(1, 64), dtype=wp.float32)
    for step in range(A.shape[1] // 32):
        a = wp.tile_load(A, shape=(64, 32), offset=(i * 64, step * 32), storage="shared")
        b = wp.tile_load(B, shape=(32, 64), offset=(step * 32, j * 64), storage="shared")
        row = wp.tile_load(B, shape=(1, 64), offset=(step * 32, j * 64), storage="register")
        narrow = wp.tile_load(B, shape=(32, 3), offset=(step * 32, j * 64), storage="shared")
        sums += row * wp.tile_sum(narrow)[0]
        copy = a
        wp.tile_matmul(copy, b, c)
    wp.tile_store(C, c, offset=(i * 64, j * 64))
    wp.tile_store(D, sums, offset=(i, j * 64))
"""


@pytest.mark.slow
def test_other_tiles_beside_a_product(machine: Machine, tmp_path: Path) -> None:
    built = build(machine, tmp_path, MORE, 128, main_loop="double_buffered")
    a, b, e, c = numbers(1, 64, 64), numbers(2, 64, 64), numbers(3, 64, 64), np.zeros((64, 64), np.float32)
    assert np.array_equal(built.run("two_products", (1, 1), [a, b, e, 0.5, c])["C"], 0.5 * (a @ b @ e))
    a, b = numbers(1, 128, 64), numbers(2, 64, 128)
    arrays = built.run("mixed_tiles", (2, 2), [a, b, np.zeros((128, 128), np.float32), np.zeros((2, 128), np.float32)])
    assert np.array_equal(arrays["C"], a @ b)
    steps = b.reshape(2, 32, 2, 64)  # step, row, block, column
    accumulators = (steps[:, 0] * steps[..., :3].sum(axis=(1, 3))[..., None]).sum(axis=0).ravel()
    assert np.array_equal(arrays["D"], [accumulators, accumulators])


# ---- gradients of the launch or of the array


@pytest.fixture(scope="module")
def loops(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """Loops with stages, and of two buffers: after an odd number of iterations the last tiles are in the other ones."""
    cases = {str(steps): Case(64, 64, 32, 64, 64, 32 * steps, dtype="float32") for steps in (1, 2, 3)}
    return compile_cases(machine, tmp_path_factory.mktemp("loops") / "m", cases, threads=64, backward=True)


@pytest.mark.parametrize("view", [np.copy, padded], ids=["vectors", "elements"])
@pytest.mark.parametrize("passed_by", [("array",), ("launch",), ("array", "launch")], ids=" ".join)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_gradients(loops: Kernels, steps: int, passed_by: tuple[str, ...], view: Callable[[Values], Values]) -> None:
    a, b, e, adj_c = numbers(1, 64, 32 * steps), numbers(2, 32 * steps, 64), numbers(3, 64, 64), numbers(4, 64, 64)
    given = [view(a), view(b), e, np.zeros_like(e)]
    found = loops.run(str(steps), (1, 1), given, [view(np.zeros_like(a)), None, None, adj_c], passed_by)
    assert np.array_equal(found["adj_A"], product(adj_c, b.T))


ONE_PRODUCT = """
@wp.kernel
def one_product(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    a = wp.tile_load(A, shape=(64, 32), storage="shared")
    b = wp.tile_load(B, shape=(32, 64), storage="shared")
    wp.tile_store(C, wp.tile_matmul(a, b))
"""


@pytest.mark.slow
@pytest.mark.parametrize("operand", [0, 1])
def test_an_operand_of_a_product_outside_loops_has_no_gradient(machine: Machine, tmp_path: Path, operand: int) -> None:
    a, b, adj_c = numbers(1, 64, 32), numbers(2, 32, 64), numbers(4, 64, 64)
    gradients: list[Values | None] = [np.zeros_like(a), np.zeros_like(b), adj_c]
    gradients[operand] = None
    found = build(machine, tmp_path, ONE_PRODUCT, 64).run(
        "one_product", (1, 1), [a, b, np.zeros_like(adj_c)], gradients
    )
    name, expected = ("adj_A", product(adj_c, b.T)) if operand else ("adj_B", product(a.T, adj_c))
    assert np.array_equal(found[name], expected)


# ---- functions in the module's source

IN_SOURCE = """
@wp.kernel
def products(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    c = wp.tile_zeros(shape=(32, 32), dtype=wp.float32)
    for step in range(A.shape[1] // 32):
        a = wp.tile_load(A, shape=(32, 32), offset=(0, step * 32))
        b = wp.tile_load(B, shape=(32, 32), offset=(step * 32, 0))
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c)

@wp.kernel
def square(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    a = wp.tile_load(A, shape=(32, 32), storage="shared")
    wp.tile_store(C, wp.tile_matmul(a, a))

@wp.kernel
def solves(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    factor = wp.tile_cholesky(wp.tile_load(A, shape=(32, 32)))
    b = wp.tile_load(B, shape=(32, 32))
    y = wp.tile_cholesky_solve(factor, b)
    z = wp.tile_lower_solve(factor, b)
    wp.tile_store(C, z + y * wp.tile_upper_solve(factor, y))
"""


@pytest.mark.slow
def test_functions_in_the_source_compute_the_same(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(store: ToolchainFacts) -> None:
        raise ToolchainError("NVRTC was not found")

    settings = {"main_loop": "double_buffered", "solver_gradients": "own"}
    linked = build(machine, tmp_path / "linked", IN_SOURCE, **settings)
    monkeypatch.setattr(ToolchainFacts, "toolchain", missing)
    in_source = build(machine, tmp_path / "in_source", IN_SOURCE, **settings)
    for call in ("wt::block_gemm<", "wt::block_gemm_add<", "wt::solver::Cholesky<", "WP_TILE_SYNC(); wt_gemm"):
        assert call in in_source.source
    assert "wt::block_gemm" not in linked.source
    a, b, c, g = numbers(1, 32, 96), numbers(2, 96, 32), np.zeros((32, 32), np.float32), numbers(3, 32, 32)
    symmetric = np.asarray(a[:, :32] + a[:, :32].T + 200 * np.eye(32), dtype=np.float32)
    for name, left in {"products": a, "square": a[:, :32].copy(), "solves": symmetric}.items():
        arrays = [left, b if name == "products" else b[:32].copy(), c]
        given = [*map(np.zeros_like, arrays[:2]), g]
        expected, found = (
            [kernels.run(name, (1,), arrays), kernels.run(name, (1,), arrays, given)] for kernels in (linked, in_source)
        )
        np.testing.assert_equal(found, expected, err_msg=name)
        assert np.isfinite(expected[0]["C"]).all()
        assert expected[1]["adj_A"].any()
