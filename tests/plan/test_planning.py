"""Plans: the needed products, their kernels, register limits, and the reasons."""

from dataclasses import replace
from typing import Any

import pytest

from tests.codegen.decisions import staged_loop
from tests.codegen.modules import BIG, SMALL, session
from warp_tiles import settings
from warp_tiles.codegen.trace import FunctionUse, Session
from warp_tiles.gemm.problem import DType, GemmProblem, Operand, Role
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.gemm.tile_config import TileConfig, registers
from warp_tiles.plan.planner import resolve, with_register_limit
from warp_tiles.plan.planning import KernelMemory, ModulePlan, PlannedFunction, PlannedLoop
from warp_tiles.solver.problem import Problem, SolverProblem, register_limit, registers_of_indexed

A, B, C = Role.ADJOINT_A, Role.ADJOINT_B, Role.FORWARD


def by_role(plan: ModulePlan) -> dict[Role, PlannedFunction]:
    assert len({item.role for item in plan.functions}) == len(plan.functions)
    return {item.role: item for item in plan.functions}


def use(kernel: str, function: str, backward: bool) -> FunctionUse:
    return FunctionUse(kernel, function, backward, f"{kernel} {'has' if backward else 'has no'} backward pass")


def test_without_a_use_the_generated_adjoints_give_the_reason() -> None:
    called = resolve(session(("k", BIG)), {0}, ["k"], [])
    assert by_role(called)[A].reason == "needed: its adjoint is called"
    skipped = resolve(session(("k", BIG)), (), ["k"], [])
    assert by_role(skipped)[A].reason == "not needed: no kernel calls its adjoint"


def test_a_problem_with_two_roles_is_listed_under_both() -> None:
    # one site's forward product may be another's adjoint; it is built once, see test_engine.py
    site = {C: BIG[C], A: SMALL[C], B: BIG[B]}
    plan = resolve(session(("one", site), ("two", SMALL)), {0}, ["one", "two"], [])
    assert {item.role for item in plan.needed if item.problem == SMALL[C]} == {C, A}


def test_scalar_sites_of_different_functions_stay_apart() -> None:
    made = Session("module", None, 1)
    for name in ("one", "two"):
        made.add("tile_matmul", name, {}, scalar_reason=Rejected("cpu"))
    plan = resolve(made, (), ["one", "two"], [])
    assert {item.function for item in plan.functions if item.role is C} == {"one", "two"}


_MATRIX = Operand("float32", "row_major", 8, 16)
FACTOR = SolverProblem("cholesky", 8, 8, (_MATRIX, _MATRIX), False, 128, 90)
FACTOR_ADJOINT = SolverProblem("cholesky_adjoint", 8, 8, (_MATRIX,) * 3, False, 128, 90)


def test_only_a_site_with_one_adjoint_is_a_solver() -> None:
    made = Session("module", 90, 128)
    made.add("tile_cholesky", "k", {C: FACTOR, Role.ADJOINT: FACTOR_ADJOINT}, roles=(C, Role.ADJOINT))
    made.add("tile_matmul", "k", BIG)
    made.add("tile_cholesky", "k", {A: BIG[A]}, roles=(A,))
    assert [site.is_solver for site in made.sites] == [True, False, False]


def test_only_sites_with_a_generated_adjoint_need_it() -> None:
    made = session(*((f"f{index}", BIG) for index in range(12)))
    plan = resolve(made, {1}, ["k"], [])  # 10 and 11 begin with the same digit
    assert {item.function for item in plan.needed if item.role is A} == {"f1"}


def test_a_plan_prints_its_decisions_and_has_a_table_for_notebooks() -> None:
    found = resolve(session(("k<1>", BIG)), (), ["k<1>"], [use("k<1>", "k<1>", False)])
    title, *lines = str(found).splitlines()
    assert title == "module module, sm_90, 128 threads"
    assert [line.strip().partition(" ")[0] for line in lines] == ["forward", "adjoint_a", "adjoint_b"]
    assert lines[0].endswith(", k<1>: needed")
    table = found._repr_html_()
    assert table.count("<tr>") == 3
    assert "k&lt;1&gt;" in table
    assert "k<1>" not in table


# ---- registers


PRODUCT = BIG[Role.FORWARD]
_WIDE_MATRIX = Operand("float32", "row_major", 64, 16)
WIDE = SolverProblem("cholesky", 64, 64, (_WIDE_MATRIX, _WIDE_MATRIX), False, 256, 90)
SOLVE = SolverProblem("lower_solve", 64, 64, (_WIDE_MATRIX,) * 3, False, 256, 90)
SOLVERS = "every kernel calls a solver function, which gains more from resident blocks than from registers"


def planned(problem: Problem, kernel: str = "k", provider: str = "own", needed: bool = True) -> PlannedFunction:
    return PlannedFunction(problem, Role.FORWARD, "call", kernel, (kernel,), needed, "", provider)


def limit(
    *problems: PlannedFunction, threads: int = 64, kernels: tuple[str, ...] = ("k",), **fields: Any
) -> tuple[int | None, str]:
    arch = fields.pop("arch", 90)
    fields.setdefault("memory", (KernelMemory.of("k", "forward", 50_000, arch, threads),))
    found = with_register_limit(ModulePlan("module", arch, threads, kernels, problems, settings.current(), **fields))
    assert (found.to_json()["register_limit"], found.to_json()["register_limit_reason"]) == (
        found.register_limit, found.register_limit_reason
    )  # fmt: skip
    return found.register_limit, found.register_limit_reason


@pytest.mark.parametrize(
    ("threads", "provider", "expected"),
    [
        (128, "own", (None, "")),
        (256, "own", (128, "2 resident blocks hide latency")),
        (256, "cublasdx", (None, "")),
        (512, "own", (128, "a block of 512 threads cannot launch with more")),
        (1024, "cublasdx", (64, "a block of 1024 threads cannot launch with more")),
        (1024, "scalar", (None, "")),
    ],
)
def test_products_have_the_limit_of_their_block(threads: int, provider: str, expected: tuple[int | None, str]) -> None:
    assert limit(planned(PRODUCT, provider=provider), threads=threads) == expected


TWO = (128, "2 resident blocks hide latency")
SPILLS = (
    128,
    "2 resident blocks hide latency; a few registers may spill, which costs less than losing the second block",
)


def loop_with(registers: int, blocks: int = 1) -> PlannedLoop:
    return staged_loop("file.py", 7, instruction="wgmma", registers=registers, blocks=blocks)


@pytest.mark.parametrize(
    ("arch", "registers", "resident", "expected"),
    [
        (90, 128, 2, TWO),
        (90, 160, 2, SPILLS),
        (90, 168, 2, (None, "")),
        (90, 136, 1, (None, "")),  # a limit would make the lone block spill for nothing
        (100, 136, 2, (None, "")),  # measured on sm_90 alone
    ],
)
def test_a_loop_has_the_limit_of_two_blocks_if_they_fit(
    arch: int, registers: int, resident: int, expected: tuple[int | None, str]
) -> None:
    assert limit(arch=arch, threads=256, loops=(loop_with(registers, resident),)) == expected


@pytest.mark.parametrize(
    ("arch", "dynamic_bytes", "expected"),
    [
        (80, 80_000, TWO), (80, 82_000, (None, "")), (86, 50_000, (None, "")), (90, 112_000, TWO),
        (90, 116_000, (None, "")),
    ],
)  # fmt: skip
def test_a_limit_for_two_blocks_follows_from_the_memory_of_the_kernels(
    arch: int, dynamic_bytes: int, expected: tuple[int | None, str]
) -> None:
    memory = (KernelMemory.of("k", "forward", dynamic_bytes, arch, 256),)
    assert limit(planned(PRODUCT), arch=arch, threads=256, memory=memory) == expected
    larger = (*memory, KernelMemory.of("other", "forward", 200_000, arch, 256))
    assert limit(planned(PRODUCT), arch=arch, threads=256, memory=larger) == expected, "one kernel gains"


@pytest.mark.parametrize(
    ("arch", "tile_m", "k_vector", "taken", "expected"),
    [
        (80, 64, 1, 104, TWO),
        (80, 64, 4, 152, (None, "")),
        (90, 64, 4, 152, SPILLS),
        (90, 128, 1, 176, (None, "")),  # a loop with 168 took 1.27 times as long with the limit on an H200
    ],
)
def test_a_product_that_takes_a_few_more_registers_has_the_limit_on_sm_90_alone(
    arch: int, tile_m: int, k_vector: int, taken: int, expected: tuple[int | None, str]
) -> None:
    config = TileConfig("fma", tile_m, 32, 8, 4, k_vector=k_vector)
    problem = replace(PRODUCT, m=256, n=256, arch=arch, threads=256)
    assert registers(problem, config) == taken
    assert limit(replace(planned(problem), tile_config=config), arch=arch, threads=256) == expected


FEW = replace(SOLVE, columns=1)
LARGE = replace(SOLVE, threads=1024, operands=(replace(_WIDE_MATRIX, dtype="float64"),) * 3)
_DOUBLE = Operand("float64", "row_major", 16, 16)
SOLVE_OF_DOUBLES = SolverProblem("lower_solve", 16, 1, (_DOUBLE,) * 3, False, 64, 90)
PRODUCT_OF_DOUBLES = planned(GemmProblem(16, 16, 16, _DOUBLE, _DOUBLE, _DOUBLE, "default", 64, 90))
BY_8, BY_4 = (replace(PRODUCT_OF_DOUBLES, tile_config=TileConfig(f"mma_{shape}", 16, 16)) for shape in
              ("m16n8k8", "m8n8k4"))  # fmt: skip
NONE, ALONE = (None, ""), (64, "a block of 1024 threads cannot launch with more")
OTHER = {"kernels": ("k", "other")}
LIMITS: dict[str, tuple[tuple[PlannedFunction, ...], dict[str, Any], tuple[int | None, str]]] = {
    "a solver": ((planned(FEW),), {}, (register_limit(FEW), SOLVERS)),
    "the solver that needs most": ((planned(FEW), planned(SOLVE)), {}, (register_limit(SOLVE), SOLVERS)),
    "a solver that is not needed": ((planned(FEW), planned(SOLVE, needed=False)), {}, (register_limit(FEW), SOLVERS)),
    "a kernel without a solver": ((planned(WIDE),), OTHER, NONE),
    "a kernel with a product alone": ((planned(WIDE), planned(PRODUCT, "other")), OTHER, NONE),
    "kernels with solvers": ((planned(WIDE), planned(WIDE, "other")), OTHER, (register_limit(WIDE), SOLVERS)),
    "a solver of libmathdx": ((planned(WIDE, provider="libmathdx"),), {}, NONE),
    "a block below the solver": ((planned(LARGE),), {"threads": 1024}, ALONE),
    "a solver below the block": ((planned(WIDE),), {"threads": 256}, (register_limit(WIDE), SOLVERS)),
    "a module that Warp links": ((planned(WIDE),), {"threads": 256, "linker_reason": "it is a debug build"}, NONE),
    **{
        f"{elements} indexed elements": (
            (planned(WIDE),), {"threads": 32, "indexed_elements": elements},
            (limit, f"an indexed load or store has {elements} elements for each thread"),
        )
        for elements, limit in ((23, 128), (40, 192), (500, 255))
    },
    "few indexed elements": ((planned(WIDE),), {"indexed_elements": 1}, (register_limit(WIDE), SOLVERS)),
    "indexed elements in a large block": ((planned(WIDE),), {"threads": 1024, "indexed_elements": 60}, ALONE),
    "indexed elements without a solver": ((planned(PRODUCT),), {"indexed_elements": 60}, NONE),
    "a solve of doubles": ((planned(SOLVE_OF_DOUBLES),), {}, (56, SOLVERS)),
    "beside mma_m16n8k8": ((planned(SOLVE_OF_DOUBLES), BY_8), {}, (64, "mma_m16n8k8 needs as many")),
    "beside mma_m8n8k4": ((planned(SOLVE_OF_DOUBLES), BY_4), {}, (56, SOLVERS)),
    "beside cuBLASDx": (
        (planned(SOLVE_OF_DOUBLES), replace(PRODUCT_OF_DOUBLES, provider="cublasdx")), {}, (56, SOLVERS)
    ),
    "beside a loop": ((planned(WIDE),), {"loops": (loop_with(120),)}, (120, "the loop of file.py:7 needs as many")),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_modules_with_solvers_have_the_limit_of(name: str) -> None:
    functions, fields, expected = LIMITS[name]
    assert limit(*functions, **fields) == expected


def test_the_limits_above_differ() -> None:
    assert registers_of_indexed(0) < registers_of_indexed(1) < register_limit(FEW) < register_limit(SOLVE)
    assert register_limit(WIDE) < 120
    assert register_limit(LARGE) > 64


@pytest.mark.parametrize(
    ("n", "dtype", "registers"),
    [
        (16, "float32", 64), (15, "float64", 64), (16, "float64", 128), (32, "float32", 96), (32, "float64", 128),
        (48, "float64", 128),
    ],
)  # fmt: skip
def test_factors_beside_a_loop_have_registers_for_a_row(n: int, dtype: DType, registers: int) -> None:
    matrix = Operand(dtype, "row_major", n, 16)
    factor = planned(SolverProblem("cholesky", n, n, (matrix, matrix), False, 128, 90))
    loop = PlannedLoop("k", "file.py", line=7, hook=1, products=1)
    assert limit(factor, threads=128, loops=(loop,))[0] == registers


def test_the_memory_of_a_kernel_counts_static_memory_and_names_a_remedy() -> None:
    fits = KernelMemory.of("k", "forward", 232_448 - 1_280, 90, 64)
    assert (fits.needed_bytes, fits.failure) == (232_448, "")
    forward, backward = (KernelMemory.of("k", each, 232_448 - 1_279, 90, 64) for each in ("forward", "backward"))
    memory = "a block needs 232,449 bytes of shared memory, and has 232,448; use smaller tiles"
    assert forward.failure == f"a launch of kernel k fails: {memory}"
    assert backward.failure == f"the backward pass of kernel k fails: {memory}, or set enable_backward=False"
    plan = ModulePlan("module", 90, 64, ("k",), (), memory=(backward, fits, forward))
    assert plan.launch_failures == (forward.failure, backward.failure)
    assert [entry["failure"] for entry in plan.to_json()["memory"]] == [backward.failure, "", forward.failure]
