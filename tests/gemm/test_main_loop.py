"""The choice of a loop's pipeline: instruction, grid of warps, stages and shared memory; and of its reverse pass."""

from dataclasses import replace
from typing import Any

import pytest

from warp_tiles.gemm.main_loop import (
    LoopPlan,
    LoopProblem,
    ReverseLoop,
    gradient_bytes,
    gradient_problems,
    reason_for_double_buffers,
    reason_for_no_buffers,
    reverse_loop,
    transpositions,
)
from warp_tiles.gemm.pipeline import (
    AUTO,
    STAGE_ALIGNMENT,
    InstructionFamily,
    LoopMemory,
    MmaPlan,
    PipelineConfig,
    PipelineOverrides,
    staged_product,
)
from warp_tiles.gemm.problem import DTYPE_BYTES, DType, GemmProblem, Precision, Role, Target, TileOperand, products
from warp_tiles.gemm.rejected import Rejected

ALL: tuple[InstructionFamily, ...] = ("wgmma", "mma")
SMALL = LoopMemory(8192, 24576, 24576, True)


def problem_of(
    m: int,
    n: int,
    k: int,
    threads: int,
    arch: int = 90,
    dtype: DType = "float16",
    result: DType = "float32",
    layout: str = "rr",
    precision: Precision = "default",
) -> GemmProblem:
    """A product whose A and B are contiguous along their rows ("r") or columns ("c")."""

    def operand(rows: int, columns: int, letter: str) -> TileOperand:
        by_rows = letter == "r"
        strides = (columns, 1) if by_rows else (1, rows)
        return TileOperand(dtype, (rows, columns), strides, "row_major" if by_rows else "col_major", True)

    c = TileOperand(result, (m, n), (n, 1), "row_major", True)
    a, b = operand(m, k, layout[0]), operand(k, n, layout[1])
    return products(a, b, c, precision=precision, target=Target(arch, threads)).problems[Role.FORWARD]


def tf32(m: int, n: int, k: int, threads: int, layout: str, arch: int = 90) -> GemmProblem:
    return problem_of(m, n, k, threads, arch, "float32", layout=layout, precision="tf32")


def fp32(m: int, n: int, k: int, threads: int, layout: str) -> GemmProblem:
    return problem_of(m, n, k, threads, dtype="float32", layout=layout)


def fp64(m: int, n: int, k: int, threads: int, arch: int = 90) -> GemmProblem:
    return problem_of(m, n, k, threads, arch, "float64", "float64")


def pipeline_of(
    problem: GemmProblem,
    memory: LoopMemory,
    families: tuple[InstructionFamily, ...] = ALL,
    choice: PipelineOverrides = AUTO,
    products: int = 1,
    **fields: Any,
) -> PipelineConfig | Rejected:
    """The pipeline of a loop of products with accumulators of their own, or why it has none."""
    loop = LoopProblem(((problem,) * products,), tuple(range(products)), families, memory, **fields)
    found = loop.plan(choice)
    return found.loop if isinstance(found, LoopPlan) else found


def idle(problem: GemmProblem, at_end: bool = True) -> LoopMemory:
    """The memory of a loop whose only tiles are A, B and C, all of them idle."""
    stage = DTYPE_BYTES[problem.a.dtype] * problem.k * (problem.m + problem.n)
    tiles = stage + DTYPE_BYTES[problem.c.dtype] * problem.m * problem.n
    return LoopMemory(stage, tiles, tiles, at_end)


def loop_of(
    m: int, n: int, k: int, threads: int, arch: int = 90, at_end: bool = True, choice: PipelineOverrides = AUTO
) -> PipelineConfig:
    """The pipeline of a loop of float16 operands in :func:`idle` memory."""
    problem = problem_of(m, n, k, threads, arch)
    found = pipeline_of(problem, idle(problem, at_end), choice=choice)
    assert isinstance(found, PipelineConfig)
    return found


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (problem_of(128, 256, 64, 256), MmaPlan("wgmma", 2, 1, 128)),
        (problem_of(64, 128, 64, 256), MmaPlan("wgmma", 1, 2, 32)),
        (problem_of(256, 128, 64, 256), MmaPlan("wgmma", 2, 1, 128)),
        (problem_of(64, 64, 64, 256), MmaPlan("wgmma", 2, 1, 16, swapped=True)),  # panels of B have 64 columns
        (problem_of(64, 64, 64, 256, layout="cr"), MmaPlan("mma_m16n8k16", 2, 4, 16)),  # and those of A 64 rows
        (problem_of(64, 64, 64, 64), MmaPlan("mma_m16n8k16", 1, 2, 64)),  # half a warpgroup
        (problem_of(32, 64, 32, 128), MmaPlan("wgmma", 1, 1, 16, swapped=True)),
        (problem_of(16, 64, 128, 128, layout="cc"), MmaPlan("wgmma", 1, 1, 8, swapped=True)),
        (problem_of(80, 128, 32, 128, dtype="bfloat16"), MmaPlan("wgmma", 1, 1, 80, swapped=True)),
        (problem_of(48, 128, 32, 256), MmaPlan("wgmma", 1, 2, 24, swapped=True)),  # each group has 64 columns
        (problem_of(32, 128, 64, 256), MmaPlan("wgmma", 1, 2, 16, swapped=True)),
        (problem_of(32, 64, 32, 256), MmaPlan("wgmma", 2, 1, 8, swapped=True)),  # and here 16 rows
        (problem_of(32, 64, 32, 256, layout="cr"), MmaPlan("mma_m16n8k16", 2, 4, 8)),  # panels of A have 32 rows
        (problem_of(96, 64, 32, 256, layout="cr"), MmaPlan("mma_m16n8k16", 2, 4, 24)),  # and here as well
        (problem_of(192, 64, 32, 256), MmaPlan("wgmma", 2, 1, 48, swapped=True)),
        (problem_of(32, 96, 32, 128), MmaPlan("mma_m16n8k16", 2, 2, 24)),  # 96 columns
        (problem_of(32, 64, 32, 128, 80), MmaPlan("mma_m16n8k16", 1, 4, 16)),
        (problem_of(32, 64, 32, 64), MmaPlan("mma_m16n8k16", 1, 2, 32)),
        (problem_of(128, 128, 64, 128, 80), MmaPlan("mma_m16n8k16", 2, 2, 128)),
        (problem_of(128, 128, 64, 128, 100, "bfloat16"), MmaPlan("mma_m16n8k16", 2, 2, 128)),
        (tf32(64, 64, 32, 128, "rc"), MmaPlan("wgmma", 1, 1, 32)),
        (tf32(48, 64, 32, 128, "rc"), MmaPlan("wgmma", 1, 1, 24, swapped=True)),
        (tf32(32, 64, 32, 128, "cc"), MmaPlan("mma_m16n8k8", 1, 4, 16)),  # A would be the instruction's B
        (tf32(128, 256, 32, 256, "rr"), MmaPlan("wgmma", 1, 2, 128, "b")),  # each group has 128 columns
        (tf32(64, 128, 32, 256, "rr"), MmaPlan("wgmma", 1, 2, 32, "b")),
        (tf32(128, 64, 32, 256, "rr"), MmaPlan("wgmma", 2, 1, 32, "b")),  # the groups share B
        (tf32(256, 128, 32, 256, "cc"), MmaPlan("wgmma", 2, 1, 128, "a")),
        (tf32(128, 128, 32, 256, "cr"), MmaPlan("mma_m16n8k8", 2, 4, 64)),  # no operand is contiguous along K
        (tf32(128, 32, 32, 128, "rr"), MmaPlan("mma_m16n8k8", 4, 1, 32)),  # 32 columns
        (tf32(128, 128, 24, 128, "rr"), MmaPlan("mma_m16n8k8", 2, 2, 128)),  # three steps
        (tf32(64, 64, 32, 64, "cr", 80), MmaPlan("mma_m16n8k8", 1, 2, 64)),
        (fp64(64, 64, 16, 128), MmaPlan("mma_m16n8k8", 2, 2, 64)),
        (fp64(64, 64, 16, 128, 80), MmaPlan("mma_m8n8k4", 2, 2, 64)),
        (fp32(128, 128, 16, 256, "rc"), MmaPlan("fma", 2, 4, 64, lanes_m=8, operands=128)),
        (fp32(64, 64, 16, 64, "cc"), MmaPlan("fma", 1, 2, 64, lanes_m=8, operands=80)),
        (fp32(128, 128, 16, 128, "cr"), MmaPlan("fma", 2, 2, 128, lanes_m=4, operands=48)),
        (fp32(128, 128, 64, 128, "cr"), MmaPlan("fma", 2, 2, 128, lanes_m=4, operands=48)),
    ],
)
def test_instruction_and_grid(problem: GemmProblem, expected: MmaPlan) -> None:
    assert staged_product(problem, ALL) == expected


@pytest.mark.parametrize(
    ("problem", "code", "values"),
    [
        (fp32(32, 32, 32, 128, "cr"), "no_grid", (128, "32x32x32")),
        (fp64(128, 128, 16, 128), "many_accumulators", ("128x128x16", 256, 199)),
        (problem_of(64, 64, 16, 64, dtype="float32", result="float64"), "unsuitable_c", ("float32",)),
        (problem_of(64, 64, 64, 128, result="float16"), "unsuitable_c", ("float32",)),
        (problem_of(64, 72, 64, 128), "unsuitable_size", ("64x72x64", 16)),
        (problem_of(64, 64, 64, 128, arch=75), "no_async_copies", (75,)),
        (problem_of(64, 64, 64, 128, arch=70), "no_async_copies", (70,)),
        (problem_of(128, 256, 64, 128), "many_accumulators", ("128x256x64", 256, 199)),
        (problem_of(16, 16, 16, 128), "no_tensor_core_grid", (128, "16x16x16")),
        (problem_of(128, 208, 64, 128), "many_accumulators", ("128x208x64", 208, 199)),
    ],
)
def test_reasons(problem: GemmProblem, code: str, values: tuple[object, ...]) -> None:
    assert staged_product(problem, ALL) == Rejected(code, values)


@pytest.mark.parametrize(
    ("layouts", "side", "transposed"),
    [
        (("rr",), 64, "a"),
        (("cc",), 64, "b"),
        (("cr",), 64, ""),
        (("rc",), 64, ""),  # two tiles are transposed for a large tile of C alone
        (("rc",), 128, "ab"),
        (("rr", "cr"), 64, ""),  # one product wants a in the other way
        (("rr", "cc"), 64, ""),
    ],
)
def test_tiles_along_k_are_transposed(layouts: tuple[str, ...], side: int, transposed: str) -> None:
    found = transpositions([(fp32(side, side, 32, 128, layout), ("a", "b")) for layout in layouts])
    assert found == tuple(dict.fromkeys((frozenset(transposed), frozenset())))
    assert transpositions([(problem_of(128, 128, 32, 128, layout=layout), ("a", "b")) for layout in layouts]) == (
        frozenset(),
    )


def test_few_sums_without_tensor_cores_keep_double_buffers() -> None:
    def reason(threads: int, layout: str = "rr", precision: Precision = "default") -> Rejected | None:
        return reason_for_double_buffers(
            problem_of(64, 64, 32, threads, dtype="float32", layout=layout, precision=precision)
        )

    assert reason(256) == Rejected("few_accumulators", ("16 accumulators", 32))
    assert reason(128) is reason(256, "rc") is reason(256, "rr", "tf32") is None
    assert reason_for_double_buffers(problem_of(64, 64, 32, 256)) is None


def test_a_loop_beside_solvers_leaves_more_blocks_resident() -> None:
    """The panel loop of a blocked factorization in blocks of 32: float64 has few resident blocks with stages."""

    def found(dtype: DType, beside_solvers: bool) -> PipelineConfig | Rejected:
        problem = problem_of(32, 32, 32, 128, dtype=dtype, result=dtype, layout="rc")
        tile = 32 * 32 * (8 if dtype == "float64" else 4)
        memory = LoopMemory(2 * tile, 5 * tile, 3 * tile, at_end=False, beside_solvers=beside_solvers)
        return pipeline_of(problem, memory)

    alone = found("float64", False)
    assert isinstance(alone, PipelineConfig)
    assert alone.blocks < 5
    assert found("float64", True) == Rejected("few_blocks", ("3 resident blocks", 128, 5))
    assert found("float32", True) == found("float32", False)


@pytest.mark.parametrize(("threads", "accumulators"), [(128, "2 accumulators"), (512, "less than one accumulator")])
def test_a_loop_beside_solvers_with_few_accumulators_has_no_stages(threads: int, accumulators: str) -> None:
    problem = fp32(16, 16, 16, threads, "rc")
    rejected = Rejected("few_accumulators_beside_solver", (accumulators, 4))
    assert reason_for_double_buffers(problem, beside_solvers=True) == rejected
    assert reason_for_double_buffers(problem) is None
    assert reason_for_double_buffers(fp32(32, 32, 32, 128, "rc"), True) is None


@pytest.mark.parametrize(
    ("problem", "memory", "extra", "rejected"),
    [
        (fp32(64, 64, 32, 256, "rr"), LoopMemory(0, 32768, 0), 16384, None),  # 4 blocks of 8 warps in place of 6
        (
            fp32(64, 64, 32, 128, "rr"), LoopMemory(0, 32768, 0), 16384,
            Rejected("few_blocks_with_buffers", ("4 resident blocks", 128, 6)),
        ),
        (
            fp32(64, 64, 32, 128, "rr"), LoopMemory(0, 200000, 0), 65536,
            Rejected("buffers_do_not_fit", (265536, 230912)),
        ),
        (
            fp32(64, 64, 32, 128, "rr"), LoopMemory(0, 100000, 0), 65536,
            Rejected("few_blocks_with_buffers", ("1 resident block", 128, 2)),
        ),
        (
            fp32(64, 64, 32, 128, "rr"), LoopMemory(0, 110000, 0, around_bytes=130000), 65536,
            Rejected("buffers_do_not_fit", (305536, 230912)),
        ),
        (fp32(32, 32, 32, 128, "rr"), LoopMemory(0, 12288, 0), 8192, None),
        (
            fp32(16, 32, 32, 128, "rr"), LoopMemory(0, 4096, 0), 4096,
            Rejected("few_accumulators_for_buffers", ("4 accumulators", 8)),
        ),
        (
            fp32(32, 32, 32, 128, "rr"), LoopMemory(0, 12288, 0, beside_solvers=True), 8192,
            Rejected("buffers_beside_solver"),
        ),
    ],
)  # fmt: skip
def test_double_buffers_in_extra_memory(
    problem: GemmProblem, memory: LoopMemory, extra: int, rejected: Rejected | None
) -> None:
    assert reason_for_no_buffers([problem], memory, extra) == rejected


@pytest.mark.parametrize(
    ("n", "k", "threads", "arch", "stages", "in_flight", "blocks"),
    [
        (256, 64, 256, 90, 4, 1, 1),  # a block that is alone keeps products in flight
        (128, 64, 128, 90, 3, 0, 2),  # two blocks come before a fourth stage
        (128, 32, 128, 90, 5, 1, 2),  # a fifth stage leaves as many blocks
        (128, 32, 128, 80, 4, 0, 1),  # mma has nothing in flight
        (128, 64, 256, 80, 4, 0, 1),
        (128, 64, 256, 86, 3, 0, 1),  # with less shared memory
    ],
)
def test_stages_and_products_in_flight(
    n: int, k: int, threads: int, arch: int, stages: int, in_flight: int, blocks: int
) -> None:
    loop = loop_of(128, n, k, threads, arch)
    assert (loop.stages, loop.in_flight, loop.blocks) == (stages, in_flight, blocks)
    beyond_tiles = stages * loop.stage_bytes + STAGE_ALIGNMENT - (loop.stage_bytes + 4 * 128 * n)
    assert loop.extra_bytes == max(0, beyond_tiles)


@pytest.mark.parametrize(
    ("registers", "products", "stages", "blocks"), [(255, 1, 4, 1), (128, 1, 3, 2), (255, 2, 4, 1), (128, 2, 3, 2)]
)
def test_the_register_limit_of_the_module(registers: int, products: int, stages: int, blocks: int) -> None:
    """64 accumulators and 32 registers of operands exceed those of two blocks of 256 threads."""
    problem = fp32(128, 128, 32, 256, "cr")
    found = pipeline_of(problem, idle(problem), products=products, registers=registers)
    assert isinstance(found, PipelineConfig)
    assert (found.stages, found.blocks) == (stages, blocks)


@pytest.mark.parametrize(
    ("m", "n", "k", "threads", "found"),
    [
        (128, 64, 32, 64, Rejected("few_warps", (6, 8))),
        (128, 64, 32, 128, 3),
        (64, 128, 32, 128, 3),
        (64, 128, 16, 128, 4),
        (64, 64, 32, 64, 3),
        (64, 64, 64, 128, 3),
        (128, 128, 32, 128, 3),
    ],
)
def test_loops_by_fma_with_few_resident_blocks(m: int, n: int, k: int, threads: int, found: int | Rejected) -> None:
    """Where double buffers are as good, few blocks that wait for their loads are not."""
    problem = fp32(m, n, k, threads, "cr")

    def stages(may_double_buffer: bool) -> int | Rejected:
        loop = pipeline_of(problem, idle(problem), may_double_buffer=may_double_buffer)
        return loop.stages if isinstance(loop, PipelineConfig) else loop

    assert stages(True) == found
    assert isinstance(stages(False), int)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (problem_of(64, 64, 64, 128, 80), (3, 3)),  # not 4 stages of 2 blocks, nor 2 of 4
        (problem_of(64, 64, 64, 128, 89), (4, 1)),  # a third stage leaves one block, which needs a fourth
        (problem_of(64, 64, 32, 128, 89), (3, 3)),
        (problem_of(128, 128, 16, 128, 80), (4, 2)),
        (problem_of(64, 64, 32, 64, 80, "float32", layout="cr"), (2, 4)),  # fma needs 8 warps first
    ],
)
def test_loads_in_flight_come_before_blocks_and_these_before_stages(
    problem: GemmProblem, expected: tuple[int, int]
) -> None:
    """Each was the fastest on an H200 within the limits of the architecture (benchmarks/results/other_gpus.json)."""
    found = pipeline_of(problem, idle(problem))
    assert isinstance(found, PipelineConfig)
    assert (found.stages, found.blocks) == expected


def test_sums_of_all_products_decide_about_resident_blocks() -> None:
    problem = problem_of(64, 64, 32, 128, 80)
    found = [pipeline_of(problem, idle(problem), products=products) for products in (1, 4)]
    one, four = (loop.blocks for loop in found if isinstance(loop, PipelineConfig))
    assert one > four


def test_stages_that_leave_few_warps_are_refused() -> None:
    problem = fp64(64, 64, 64, 128)
    assert pipeline_of(problem, idle(problem)) == Rejected("few_blocks", ("1 resident block", 128, 2))


def test_stages_apart_from_idle_tiles() -> None:
    loop = loop_of(128, 128, 64, 256, at_end=False)
    assert loop.extra_bytes in (0, loop.stages * loop.stage_bytes + STAGE_ALIGNMENT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", PipelineOverrides()),
        ("mma", PipelineOverrides("mma")),
        ("wgmma, stages=3", PipelineOverrides("wgmma", 3)),
        ("stages=8,in_flight=0,warps_m=2", PipelineOverrides(None, 8, 0, 2)),
    ],
)
def test_a_choice_is_read_from_text_and_back(text: str, expected: PipelineOverrides) -> None:
    assert PipelineOverrides.parse(text) == expected
    assert PipelineOverrides.parse(expected.text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is unknown"),
        ("hmma", "'hmma' is unknown"),
        ("stages=1", "'stages=1' is unknown"),
        ("stages=13", "'stages=13' is unknown"),
        ("blocks=0", "'blocks=0' is unknown"),
        ("stages=", "'stages=' is unknown"),
        ("warps_m=-1", "'warps_m=-1' is unknown"),
        ("per_barrier=2", "'per_barrier=2' is unknown"),
        ("mma,wgmma", "family is given twice"),
        ("double_buffered,stages=3", "double buffers have no other fields"),
    ],
)
def test_a_bad_choice_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PipelineOverrides.parse(text)


@pytest.mark.parametrize(("m", "n", "accumulators", "swapped"), [(128, 256, 128, False), (32, 128, 16, True)])
@pytest.mark.parametrize(("warps_m", "grid"), [(1, (1, 2)), (2, (2, 1))])
def test_a_grid_can_be_chosen(
    m: int, n: int, accumulators: int, swapped: bool, warps_m: int, grid: tuple[int, int]
) -> None:
    found = staged_product(problem_of(m, n, 64, 256), ALL, PipelineOverrides(warps_m=warps_m))
    assert found == MmaPlan("wgmma", *grid, accumulators, swapped=swapped)


LARGE = problem_of(128, 256, 64, 256)


@pytest.mark.parametrize(
    ("problem", "memory", "families", "choice", "rejected"),
    [
        (LARGE, SMALL, ALL, PipelineOverrides(warps_m=3), Rejected("warps_m", (3, "128x256x64", "2, 1"))),
        (LARGE, SMALL, ALL, PipelineOverrides("double_buffered"), Rejected("double_buffers_asked")),
        (LARGE, SMALL, ("mma",), PipelineOverrides(in_flight=1), Rejected("none_in_flight", ("mma_m16n8k16", 2))),
        (
            LARGE, LoopMemory(49152, 180224, 180224, True), ALL, PipelineOverrides(stages=8),
            Rejected("stages_do_not_fit", (8, 49152, 394240, 230400)),
        ),
        (
            replace(LARGE, arch=86), LoopMemory(49152, 49152, 49152, True, 9999), ALL, AUTO,
            Rejected("stages_do_not_fit", (2, 49152, 109327, 99328)),
        ),
    ],
)  # fmt: skip
def test_a_pipeline_that_is_refused(
    problem: GemmProblem,
    memory: LoopMemory,
    families: tuple[InstructionFamily, ...],
    choice: PipelineOverrides,
    rejected: Rejected,
) -> None:
    assert pipeline_of(problem, memory, families, choice) == rejected


@pytest.mark.parametrize("stages", range(2, 9))
@pytest.mark.parametrize("in_flight", [0, 1])
def test_stages_can_be_chosen(stages: int, in_flight: int) -> None:
    choice = PipelineOverrides(stages=stages, in_flight=in_flight)
    found = pipeline_of(problem_of(64, 64, 32, 128), SMALL, choice=choice)
    if stages == 2 and in_flight:
        assert found == Rejected("none_in_flight", ("wgmma", 2))
    else:
        assert isinstance(found, PipelineConfig)
        assert (found.stages, found.in_flight) == (stages, in_flight)


def test_products_in_flight_take_the_stages_that_they_need() -> None:
    found = loop_of(64, 64, 64, 128, choice=PipelineOverrides(in_flight=1))
    assert (found.in_flight, found.stages) == (1, 4)


@pytest.mark.parametrize(
    ("blocks", "stages", "in_flight", "resident"), [(1, 12, 1, 1), (2, 6, 1, 2), (3, 4, 1, 3), (4, 3, 0, 4)]
)
def test_known_resident_blocks_share_all_memory(blocks: int, stages: int, in_flight: int, resident: int) -> None:
    found = loop_of(64, 64, 64, 128, choice=PipelineOverrides(blocks=blocks))
    assert (found.stages, found.in_flight, found.blocks) == (stages, in_flight, resident)


def test_a_block_with_large_tiles_stays_alone() -> None:
    alone, pair = (loop_of(128, 256, 64, 256, choice=PipelineOverrides(blocks=blocks)) for blocks in (1, 2))
    assert alone == pair
    assert (alone.stages, alone.blocks) == (4, 1)


# ---- the reverse pass: the products of gradients, their threads, and shared memory


def reverse(problem: GemmProblem, **fields: Any) -> ReverseLoop | Rejected:
    families = fields.pop("families", ALL)
    return reverse_loop(problem, families, replace(LoopMemory(16 << 10, 64 << 10, 64 << 10), **fields))


def reverse_plan(problem: GemmProblem, **fields: Any) -> ReverseLoop:
    result = reverse(problem, **fields)
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
    few = reverse_plan(problem_of(64, 64, 16, 256))
    assert (few.of_a.problem.threads, few.of_b.problem.threads) == (128, 128)
    assert few.of_b.plan.swapped, "16 rows and 64 columns"
    assert reverse_plan(problem_of(64, 64, 64, 128)).of_b.problem.threads == 128


def test_tiles_that_no_warp_can_multiply() -> None:
    tf32 = problem_of(64, 32, 16, 64, 80, dtype="float32", precision="tf32", layout="cc")
    rejected = Rejected("no_tensor_core_grid", (64, "16x64x32"))
    assert reverse(tf32) == rejected.after("gradients of 16x64x32: ")
    few = replace(tf32, threads=16)
    assert isinstance(reverse(few), Rejected), "fewer threads than a warp have a reason, too"


def test_registers_of_both_sums() -> None:
    assert reverse(problem_of(128, 96, 64, 64, 80)) == Rejected("many_gradient_accumulators", (224, 199))


def test_shared_memory() -> None:
    problem = problem_of(64, 64, 64, 128)
    assert reverse_plan(problem).needed_bytes == 16384 + 2 * 16384
    assert reverse_plan(problem).extra_bytes == 0
    assert reverse_plan(problem, idle_bytes=32 << 10).extra_bytes == (16 << 10) + 1024
    assert reverse_plan(problem, idle_bytes=32 << 10, at_end=False).extra_bytes == 49 << 10
    assert isinstance(reverse(problem, around_bytes=160 << 10), ReverseLoop)
    assert reverse(problem, around_bytes=170 << 10) == Rejected("gradients_do_not_fit", (2, 239616, 230912))


def test_instructions() -> None:
    assert reverse_plan(problem_of(64, 64, 64, 128)).instructions == ("wgmma",)
    assert reverse_plan(problem_of(64, 64, 32, 128)).instructions == ("wgmma",)
    assert reverse_plan(problem_of(64, 32, 32, 128)).instructions == ("wgmma", "mma_m16n8k16")
    assert reverse_plan(problem_of(64, 64, 64, 128), families=("mma",)).instructions == ("mma_m16n8k16",)
    assert reverse_plan(problem_of(64, 64, 32, 128, dtype="float32")).instructions == ("fma",)
    double = problem_of(64, 64, 16, 128, dtype="float64", result="float64")
    assert reverse_plan(double).instructions == ("mma_m16n8k8",)
    assert (
        reverse_plan(double).accumulators
        == reverse_plan(double).of_a.plan.accumulators + reverse_plan(double).of_b.plan.accumulators
    )
