"""The register limit of a module, and its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.codegen.modules import BIG
from warp_tiles import settings
from warp_tiles.gemm.pipeline import PlannedLoop
from warp_tiles.gemm.problem import DType, GemmProblem, Operand, Role
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.plan.planning import KernelMemory, ModulePlan, PlannedVariant, with_register_limit
from warp_tiles.solver.variant import SolverVariant, Variant, register_limit, registers_of_indexed

PRODUCT = BIG[Role.FORWARD]
_MATRIX = Operand("float32", "row_major", 64, 16)
FACTOR = SolverVariant("cholesky", 64, 64, (_MATRIX, _MATRIX), False, 256, 90)
SOLVE = SolverVariant("lower_solve", 64, 64, (_MATRIX,) * 3, False, 256, 90)
SOLVERS = "every kernel calls a solver function, which gains more from resident blocks than from registers"


def planned(variant: Variant, kernel: str = "k", provider: str = "mma", needed: bool = True) -> PlannedVariant:
    return PlannedVariant(variant, Role.FORWARD, "call", kernel, (kernel,), needed, "", provider)


def limit(
    *variants: PlannedVariant, threads: int = 64, kernels: tuple[str, ...] = ("k",), indexed: int = 0
) -> tuple[int | None, str]:
    plan = ModulePlan("module", 90, threads, kernels, variants, settings.current(), indexed_elements=indexed)
    found = with_register_limit(plan)
    assert (found.to_json()["register_limit"], found.to_json()["register_limit_reason"]) == (
        found.register_limit, found.register_limit_reason
    )  # fmt: skip
    return found.register_limit, found.register_limit_reason


@pytest.mark.parametrize(
    ("threads", "provider", "expected"),
    [
        (128, "mma", (None, "")),
        (256, "mma", (128, "2 resident blocks hide latency")),
        (256, "cublasdx", (None, "")),
        (512, "mma", (128, "a block of 512 threads cannot launch with more")),
        (1024, "cublasdx", (64, "a block of 1024 threads cannot launch with more")),
        (1024, "scalar", (None, "")),
    ],
)
def test_products_have_the_limit_of_their_block(threads: int, provider: str, expected: tuple[int | None, str]) -> None:
    assert limit(planned(PRODUCT, provider=provider), threads=threads) == expected


@pytest.mark.parametrize(
    ("instruction", "accumulators", "expected"),
    [("wgmma", 64, 128), ("wgmma", 128, None), ("fma", 64, 128), ("fma", 65, None)],
)
def test_many_sums_of_a_loop_leave_room_for_one_block(
    instruction: str, accumulators: int, expected: int | None
) -> None:
    loop = PlannedLoop("k", "file.py", 1, 1, "pipelined", 4, "", instruction, accumulators)
    plan = ModulePlan("module", 90, 256, ("k",), (planned(PRODUCT),), settings.current(), loops=(loop,))
    assert with_register_limit(plan).register_limit == expected


@pytest.mark.parametrize(("operands", "expected"), [(32, 128), (128, None)])
def test_fma_with_vectors_along_k_needs_more_registers(operands: int, expected: int | None) -> None:
    loop = PlannedLoop("k", "file.py", 1, 1, "pipelined", 4, "", "fma", 64, operands=operands)
    plan = ModulePlan("module", 90, 256, ("k",), (planned(PRODUCT),), settings.current(), loops=(loop,))
    assert with_register_limit(plan).register_limit == expected


def test_a_reverse_pass_by_fma_needs_more_registers() -> None:
    loop = PlannedLoop("k", "file.py", 1, 1, "pipelined", 2, "", "", 64, "", "", ("fma",))
    plan = ModulePlan("module", 90, 256, ("k",), (planned(PRODUCT),), settings.current(), loops=(loop,))
    assert with_register_limit(plan).register_limit is None


def test_solvers_have_the_limit_of_the_one_that_needs_most() -> None:
    assert register_limit(FACTOR) < register_limit(SOLVE)
    assert limit(planned(FACTOR)) == (register_limit(FACTOR), SOLVERS)
    assert limit(planned(FACTOR), planned(SOLVE)) == (register_limit(SOLVE), SOLVERS)
    assert limit(planned(FACTOR), planned(SOLVE, needed=False)) == (register_limit(FACTOR), SOLVERS)


def test_a_kernel_without_a_solver_has_no_limit_for_solvers() -> None:
    assert limit(planned(FACTOR), kernels=("k", "other")) == (None, "")
    assert limit(planned(FACTOR), planned(PRODUCT, "other"), kernels=("k", "other")) == (None, "")
    assert limit(planned(FACTOR), planned(FACTOR, "other"), kernels=("k", "other")) == (register_limit(FACTOR), SOLVERS)
    assert limit(planned(FACTOR, provider="libmathdx")) == (None, "")


def test_the_lower_limit_counts() -> None:
    wide = replace(SOLVE, threads=1024, operands=(replace(_MATRIX, dtype="float64"),) * 3)
    assert register_limit(wide) > 64
    assert limit(planned(wide), threads=1024) == (64, "a block of 1024 threads cannot launch with more")
    assert limit(planned(FACTOR), threads=256) == (register_limit(FACTOR), SOLVERS)


def test_a_module_that_warp_links_has_no_limit() -> None:
    with settings.override(linker="warp"):
        assert limit(planned(FACTOR), threads=256) == (None, "")


@pytest.mark.parametrize(("elements", "registers"), [(23, 128), (40, 192), (500, 255)])
def test_large_indexed_loads_raise_the_limit_of_solvers(elements: int, registers: int) -> None:
    reason = f"an indexed load or store has {elements} elements for each thread"
    assert limit(planned(FACTOR), threads=32, indexed=elements) == (registers, reason)


def test_small_indexed_loads_do_not_lower_the_limit_of_solvers() -> None:
    assert registers_of_indexed(0) == 0
    assert registers_of_indexed(1) < register_limit(FACTOR)
    assert limit(planned(FACTOR), indexed=1) == (register_limit(FACTOR), SOLVERS)


def test_large_indexed_loads_do_not_raise_the_limit_of_the_block() -> None:
    alone = "a block of 1024 threads cannot launch with more"
    assert limit(planned(FACTOR), threads=1024, indexed=60) == (64, alone)
    assert limit(planned(PRODUCT), indexed=60) == (None, "")


def test_products_beside_a_solver_have_the_registers_that_their_instruction_needs() -> None:
    matrix = Operand("float64", "row_major", 16, 16)
    product = GemmProblem(16, 16, 16, matrix, matrix, matrix, "default", 64, 90)
    factor = SolverVariant("cholesky", 16, 16, (matrix, matrix), False, 64, 90)
    wide = replace(planned(product), tile_config=TileConfig("mma_m16n8k8", 16, 16))
    assert limit(planned(factor)) == (56, SOLVERS)
    assert limit(planned(factor), wide) == (64, "mma_m16n8k8 needs as many")
    assert limit(planned(factor), replace(wide, tile_config=TileConfig("mma_m8n8k4", 16, 16))) == (56, SOLVERS)


@pytest.mark.parametrize(
    ("n", "dtype", "registers"),
    [(16, "float32", 56), (16, "float64", 56), (32, "float32", 96), (32, "float64", 128), (48, "float64", 128)],
)
def test_factors_beside_a_loop_have_registers_for_a_row(n: int, dtype: DType, registers: int) -> None:
    matrix = Operand(dtype, "row_major", n, 16)
    factor = planned(SolverVariant("cholesky", n, n, (matrix, matrix), False, 128, 90))
    loop = PlannedLoop("k", "file.py", 7, 1, "kept", 0, "")
    plan = ModulePlan("module", 90, 128, ("k",), (factor,), settings.current(), loops=(loop,))
    found = with_register_limit(plan)
    assert found.register_limit == registers


def test_loops_beside_a_solver_keep_their_accumulators_in_registers() -> None:
    loop = PlannedLoop("k", "file.py", 7, 1, "pipelined", 4, "", "wgmma", 64)
    plan = ModulePlan("module", 90, 64, ("k",), (planned(FACTOR),), settings.current(), loops=(loop,))
    found = with_register_limit(plan)
    assert register_limit(FACTOR) < found.register_limit == 120
    assert found.register_limit_reason == "the loop of file.py:7 needs as many"


def test_the_memory_of_a_kernel_counts_static_memory_and_names_a_remedy() -> None:
    fits = KernelMemory.of("k", "forward", 232_448 - 1_280, 90, 64)
    assert (fits.needed_bytes, fits.problem) == (232_448, "")
    forward, backward = (KernelMemory.of("k", each, 232_448 - 1_279, 90, 64) for each in ("forward", "backward"))
    memory = "a block needs 232,449 bytes of shared memory, and has 232,448; use smaller tiles"
    assert forward.problem == f"a launch of kernel k fails: {memory}"
    assert backward.problem == f"the backward pass of kernel k fails: {memory}, or set enable_backward=False"
    plan = ModulePlan("module", 90, 64, ("k",), (), memory=(backward, fits, forward))
    assert plan.launch_problems == (forward.problem, backward.problem)
    assert [entry["problem"] for entry in plan.to_json()["memory"]] == [backward.problem, "", forward.problem]
