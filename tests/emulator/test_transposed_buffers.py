"""fp32 tiles that are transposed on their way into the stages of a loop, on the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.emulator.generated import build
from tests.emulator.module import Machine
from tests.emulator.test_loads import padded, strided
from tests.emulator.test_stages import check, compile_cases
from tests.nightly import some
from tests.staged_cases import HEADER, Case, with_type

pytestmark = pytest.mark.slow  # the emulator compiles for seconds


@pytest.mark.parametrize(
    ("threads", "m", "n", "steps"),
    some(
        [
            (96, 48, 64, (8, 16, 24, 40, 32)),  # three warps: no power of two
            (512, 64, 512, (32,)),  # more warps than rows to copy at a time
            (256, 128, 128, (8, 16, 32, 64)),
            (128, 64, 64, (8, 16, 24, 32, 40, 48, 64, 96)),
            (64, 32, 64, (8, 32, 40)),
        ],
        3,
    ),
)
def test_steps_and_threads(
    machine: Machine, tmp_path: Path, threads: int, m: int, n: int, steps: tuple[int, ...]
) -> None:
    """Tiles inside the arrays, and tiles that end beyond them in each direction."""
    cases = {f"k {k}": Case(m, n, k, 2 * m - 3, n, 3 * k - (k % 16 == 0)) for k in steps}
    cases["a has columns"] = Case(m, n, steps[0], m, n, 2 * steps[0], a_transposed=True)
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", with_type(cases, "float32"), 90, threads)
    assert source.count("wt_module::Ring<") == len(cases)
    assert source.count("a_transposed = true") == len(steps)
    check(emulated, kernels, with_type(cases, "float32"))


def test_both_operands(machine: Machine, tmp_path: Path) -> None:
    cases = with_type({f"k {k}": Case(128, 128, k, 128, 130, 70, b_transposed=True) for k in (16, 64)}, "float32")
    cases |= with_type({"small": Case(64, 128, 32, 128, 130, 70, b_transposed=True)}, "float32")
    emulated, kernels, source = compile_cases(machine, tmp_path / "m", cases, 90, 256)
    assert source.count("a_transposed = true, b_transposed = true") == 2
    check(emulated, kernels, cases)


@pytest.mark.parametrize("view", [strided, padded, np.asfortranarray], ids=["strided", "padded", "columns"])
@pytest.mark.parametrize("rows", [64, 40])
def test_strided_arrays(machine: Machine, tmp_path: Path, view: object, rows: int) -> None:
    case = with_type({"case": Case(64, 64, 32, rows, 64, 96)}, "float32")["case"]
    emulated, kernels, _ = compile_cases(machine, tmp_path / "m", {"case": case}, 90, 128)
    a, b, e, product = case.arrays(3)
    c = np.full(product.shape, np.nan, dtype=np.float32)
    results = emulated.run(kernels["case"], case.grid, [view(a), view(b), e, c])
    assert np.array_equal(results["C"], product)


CHANGING = """
@wp.kernel(enable_backward=False)
def changing(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
    for s in range(B.shape[0] // 16):
        part = A[s * 64 :]
        a = wp.tile_load(part, shape=(64, 16), storage="shared")
        b = wp.tile_load(B, shape=(16, 64), offset=(s * 16, 0), storage="shared")
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c)
"""


def test_an_array_that_changes_in_the_loop(machine: Machine, tmp_path: Path) -> None:
    built = build(machine, tmp_path / "m", HEADER + CHANGING, 128)
    assert "LoadBufferOnce<wt_module::TransposingBufferLoader>" in built.source
    random = np.random.default_rng(4)
    a, b = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((192, 16), (48, 64)))
    c = np.zeros((64, 64), dtype=np.float32)
    arrays = built.emulated.run(built.module.changing, (1, 1), [a, b, c])
    assert np.array_equal(arrays["C"], sum(a[64 * s :][:64] @ b[16 * s :][:16] for s in range(3)))


SHARED = """
@wp.kernel(enable_backward=False)
def {name}(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), D: wp.array2d(dtype=wp.float32),
           C: wp.array2d(dtype=wp.float32)):
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32, storage="shared")
    for s in range(A.shape[1] // 64):
        a = wp.tile_load(A, shape=(64, 64), offset=(0, s * 64), storage="shared")
        b = wp.tile_load(B, shape=(64, 64), offset=(0, s * 64), storage="shared")
        d = wp.tile_load(D, shape=(64, 64), offset=(0, s * 64), storage="shared")
        {first}
        {second}
    wp.tile_store(C, c)
"""


def test_a_tile_that_is_the_left_and_the_right_operand(machine: Machine, tmp_path: Path) -> None:
    """A product with B on the right and one with B on the left have one type, because they have one C."""
    lines = ["wp.tile_matmul(a, b, c)", "wp.tile_matmul(b, d, c)"]
    text = SHARED.format(name="left_last", first=lines[0], second=lines[1])
    text += SHARED.format(name="left_first", first=lines[1], second=lines[0])
    built = build(machine, tmp_path / "m", HEADER + text, 128)
    assert built.source.count("wt_module::Ring<") == 2
    random = np.random.default_rng(5)
    a, b, d = (random.integers(-3, 4, (64, 128)).astype(np.float32) for _ in range(3))
    parts = [slice(64 * s, 64 * s + 64) for s in range(2)]
    expected = sum(a[:, part] @ b[:, part] + b[:, part] @ d[:, part] for part in parts)
    for name in ("left_last", "left_first"):
        c = np.zeros((64, 64), dtype=np.float32)
        arrays = built.emulated.run(getattr(built.module, name), (1, 1), [a, b, d, c])
        assert np.array_equal(arrays["C"], expected), name
