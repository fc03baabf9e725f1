"""The choice of the reverse pass of a loop: the products of gradients, their threads, and shared memory."""

from dataclasses import replace
from typing import Any

import pytest

from tests.gemm.test_main_loop import ALL, problem_of
from warp_tiles.gemm.main_loop import ReverseLoop, gradient_bytes, gradient_problems, reverse_loop
from warp_tiles.gemm.pipeline import LoopMemory
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.rejected import Rejected


def found(problem: GemmProblem, **fields: Any) -> ReverseLoop | Rejected:
    families = fields.pop("families", ALL)
    return reverse_loop(problem, families, replace(LoopMemory(16 << 10, 64 << 10, 64 << 10), **fields))


def plan(problem: GemmProblem, **fields: Any) -> ReverseLoop:
    result = found(problem, **fields)
    assert isinstance(result, ReverseLoop), result
    return result


# sizes, arrangements and whether G is the left operand, by the layouts of A and B. A and B are 64 x 32 and 32 x 96.
LAYOUTS = {
    "rr": (("64x32x96", "row_major", "col_major", True), ("32x96x64", "col_major", "row_major", False)),
    "rc": (("64x32x96", "row_major", "row_major", True), ("96x32x64", "col_major", "row_major", True)),
    "cr": (("32x64x96", "row_major", "col_major", False), ("32x96x64", "row_major", "row_major", False)),
    "cc": (("32x64x96", "col_major", "col_major", False), ("96x32x64", "col_major", "col_major", True)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_have_the_orientation_of_the_loaded_tile(layout: str) -> None:
    problems = gradient_problems(problem_of(64, 96, 32, 128, layout=layout))
    assert tuple((v.size, v.a.arrangement, v.b.arrangement, left) for v, left in problems) == LAYOUTS[layout]
    assert all(v.is_dense and v.c.arrangement == "row_major" and v.c.dtype == "float32" for v, _ in problems)


@pytest.mark.parametrize(("dtype", "parts"), [("float16", 2), ("bfloat16", 2), ("float32", 1), ("float64", 1)])
def test_bytes_of_g(dtype: Any, parts: int) -> None:
    size = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[dtype]
    problem = problem_of(64, 64, 32, 128, dtype=dtype, result="float64" if dtype == "float64" else "float32")
    assert gradient_bytes(problem) == parts * 64 * 64 * size
    small = problem_of(16, 16, 16, 32, dtype=dtype, result="float64" if dtype == "float64" else "float32")
    assert gradient_bytes(small) == parts * max(1024, 16 * 16 * size), "stage buffers begin at multiples of 1024 bytes"


def test_short_steps_leave_threads_idle() -> None:
    few = plan(problem_of(64, 64, 16, 256))
    assert (few.of_a.problem.threads, few.of_b.problem.threads) == (128, 128)
    assert few.of_b.plan.swapped, "16 rows and 64 columns"
    assert plan(problem_of(64, 64, 64, 128)).of_b.problem.threads == 128


def test_tiles_that_no_warp_can_multiply() -> None:
    tf32 = problem_of(64, 32, 16, 64, 80, dtype="float32", precision="tf32", layout="cc")
    rejected = Rejected("no_tensor_core_grid", (64, "16x64x32"))
    assert found(tf32) == rejected.after("gradients of 16x64x32: ")
    few = replace(tf32, threads=16)
    assert isinstance(found(few), Rejected), "fewer threads than a warp have a reason, too"


def test_registers_of_both_sums() -> None:
    assert found(problem_of(128, 96, 64, 64, 80)) == Rejected("many_gradient_accumulators", (224, 199))


def test_shared_memory() -> None:
    problem = problem_of(64, 64, 64, 128)
    assert plan(problem).needed_bytes == 16384 + 2 * 16384
    assert plan(problem).extra_bytes == 0
    assert plan(problem, idle_bytes=32 << 10).extra_bytes == (16 << 10) + 1024
    assert plan(problem, idle_bytes=32 << 10, at_end=False).extra_bytes == 49 << 10
    assert isinstance(found(problem, around_bytes=160 << 10), ReverseLoop)
    assert found(problem, around_bytes=170 << 10) == Rejected("gradients_do_not_fit", (2, 239616, 230912))


def test_instructions() -> None:
    assert plan(problem_of(64, 64, 64, 128)).instructions == ("wgmma",)
    assert plan(problem_of(64, 64, 32, 128)).instructions == ("wgmma",)
    assert plan(problem_of(64, 32, 32, 128)).instructions == ("wgmma", "mma_m16n8k16")
    assert plan(problem_of(64, 64, 64, 128), families=("mma",)).instructions == ("mma_m16n8k16",)
    assert plan(problem_of(64, 64, 32, 128, dtype="float32")).instructions == ("fma",)
    double = problem_of(64, 64, 16, 128, dtype="float64", result="float64")
    assert plan(double).instructions == ("mma_m16n8k8",)
    assert plan(double).accumulators == plan(double).of_a.plan.accumulators + plan(double).of_b.plan.accumulators
