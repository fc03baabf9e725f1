"""The chooser of tiles, threads and split-K for :func:`warp_tiles.matmul`. It is pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from warp_tiles.gemm.dtypes import DTYPE_BYTES
from warp_tiles.gemm.hardware import LANES, multiprocessor
from warp_tiles.gemm.pipeline import AUTO, PipelineOverrides
from warp_tiles.heuristics.matmul_cost import cost_us
from warp_tiles.heuristics.matmul_problem import (
    WGMMA_ROWS,
    MatmulConfig,
    MatmulProblem,
    Tier,
    blocks_of,
    blocks_of_multiprocessor,
    ceil_div,
    has_wgmma,
    kind_of,
    resident_blocks,
    shared_bytes,
    steps_of,
)
from warp_tiles.heuristics.operand_copies import ALIGNED, OperandLines, is_copied

_SLICES = 64  # at most
_FEW_BLOCKS = 2  # of one multiprocessor
_SHORT_STEPS, _SHORT_STAGES = 8, 3  # of loops whose blocks start and end often
_SHORT_SIDE, _SHORT_DEPTH = 64, 16  # of such tiles of float32
_LONG_STEP_BYTES = 128  # of K; loops with shorter steps keep products in flight, which takes a stage
_DEEP_SIDE = 64  # of a tile, at most, whose step may have twice the depth
_DEEPER_SIDES = {2: 64 + 128, 4: 32 + 64}  # sums of a 16-bit tile's sides, at most, by the factor of its depth
_DEEP_ARCHS = (80, 90, 100, 103)  # with enough shared memory for several blocks that have such steps
_SLICE_STEPS = 4  # at least, of the loop of one slice
_GROUP_ROWS = 1024  # rows of C that consecutive blocks share
_LEAST_SIDE = 32  # of a tile in a larger matrix

_CPU_TILE = MatmulConfig(32, 32, 32, 1)


@dataclass(frozen=True)
class MatmulChoice:
    """The answer of the chooser.

    Attributes:
        config: The configuration.
        is_recorded: True if it was measured; False if its estimated time is the least.
    """

    config: MatmulConfig
    is_recorded: bool


def choose_matmul(
    problem: MatmulProblem,
    arch: int | None,
    multiprocessors: int,
    records: Mapping[Tier, MatmulConfig] | None = None,
) -> MatmulConfig:
    """The configuration of :func:`matmul_choice`."""
    return matmul_choice(problem, arch, multiprocessors, records or {}).config


def matmul_choice(
    problem: MatmulProblem, arch: int | None, multiprocessors: int, records: Mapping[Tier, MatmulConfig]
) -> MatmulChoice:
    """The measured configuration of the problem's tier, or else the one with the least estimated time, with copies of
    operands where they save time.

    Args:
        problem: The product.
        arch: Compute capability, e.g. 90; None for the CPU.
        multiprocessors: Multiprocessors of the GPU.
        records: Measured configurations by tier.
    """
    if arch is None:
        return MatmulChoice(_CPU_TILE, is_recorded=False)
    measured = _measured(problem, arch, records)
    config = measured or _estimated(problem, arch, multiprocessors)
    whole, first = (cost_us(replace(problem, k=k), config, arch, multiprocessors) for k in (problem.k, 1))
    count, resident = blocks_of_multiprocessor(problem, config, multiprocessors), resident_blocks(problem, config, arch)
    steps = ceil_div(count, resident) * steps_of(problem, config)  # of all blocks that follow one another

    def is_copied_first(lines: OperandLines, side: int) -> bool:
        tile_bytes = side * config.tile_k * DTYPE_BYTES[lines.dtype]
        return is_copied(lines, whole - first, steps * tile_bytes / (ALIGNED * config.threads))

    a, b = _lines(problem)
    config = replace(config, copies_a=is_copied_first(a, config.tile_m), copies_b=is_copied_first(b, config.tile_n))
    return MatmulChoice(config, is_recorded=measured is not None)


def _lines(problem: MatmulProblem) -> tuple[OperandLines, OperandLines]:
    """The lines of A and B."""
    p = problem
    a, b = (p.batch * (1 + (p.in_parts == name)) for name in ("a", "b"))
    a, b = 1 if p.a_shared else a, 1 if p.b_shared else b
    of_a = (p.k, p.m) if p.a_transposed else (p.m, p.k)
    of_b = (p.n, p.k) if p.b_transposed else (p.k, p.n)
    return (
        OperandLines(p.a, a, *of_a, p.a_alignment, not p.a_transposed, p.tf32),
        OperandLines(p.b, b, *of_b, p.b_alignment, p.b_transposed, p.tf32),
    )


def _measured(problem: MatmulProblem, arch: int, records: Mapping[Tier, MatmulConfig]) -> MatmulConfig | None:
    """The measured configuration of the problem's tier, if there is one and it fits."""
    measured = records.get(problem.tier)
    if measured is None or problem.summed or _spills(problem, measured):
        return None
    if problem.in_parts:
        measured = replace(measured, tile_k=measured.tile_k // 2)
    if shared_bytes(problem, measured) > multiprocessor(arch).block_shared_bytes:
        return None
    return replace(measured, split_k=min(measured.split_k, _most_slices(problem, measured.tile_k)))


def _estimated(problem: MatmulProblem, arch: int, multiprocessors: int) -> MatmulConfig:
    """The configuration with the least estimated time."""
    return min(
        candidates(problem, arch, multiprocessors), key=lambda config: _order(problem, config, arch, multiprocessors)
    )


def _order(problem: MatmulProblem, config: MatmulConfig, arch: int, multiprocessors: int) -> tuple[float, bool]:
    """The least is the best: the estimated time and, of equal ones, whether wgmma cannot compute C itself.

    It computes the transpose then, if at all, whose 16-bit results pass through shared memory before they are stored.
    """
    has_other_rows = kind_of(problem) == "float16" and config.tile_m % WGMMA_ROWS != 0
    return cost_us(problem, config, arch, multiprocessors), has_other_rows


def candidates(problem: MatmulProblem, arch: int, multiprocessors: int) -> Iterator[MatmulConfig]:
    """All configurations whose tiles fit shared memory, each with useful numbers of slices. There is always one."""
    for config in _tiles(problem):
        if _is_deep(problem, config) and not _may_be_deep(problem, config, arch, multiprocessors):
            continue
        if _is_of_sm_90(problem, config) and (arch != 90 or _spills(problem, config)):
            continue
        if shared_bytes(problem, config) <= multiprocessor(arch).block_shared_bytes:
            rows = min(ceil_div(problem.m, config.tile_m), _GROUP_ROWS // config.tile_m)
            config = replace(config, group=max(1, rows))
            for slices in _slice_counts(problem, config, multiprocessors):
                yield replace(config, split_k=slices)


def _is_deep(problem: MatmulProblem, config: MatmulConfig) -> bool:
    """True if a step is deeper than that of large tiles."""
    return config.tile_k > _SHAPES[kind_of(problem)][2]


def _may_be_deep(problem: MatmulProblem, config: MatmulConfig, arch: int, multiprocessors: int) -> bool:
    """True if the depth was measured.

    16-bit tiles of up to 64x64 may have twice the usual depth, and those of tf32 and float64 if blocks are few. Larger
    tiles, and four times the depth, need few blocks and wgmma. A loop with half the steps waits half as often. On an
    H200, steps of 256 made 16-bit products of 64x32 tiles 1.06 times as fast as steps of 128, and steps of 128 those of
    64x128 tiles 1.04 to 1.13 times as fast as steps of 64 (not on record).
    """
    is_few = blocks_of_multiprocessor(problem, config, multiprocessors) <= _FEW_BLOCKS
    if max(config.tile_m, config.tile_n) > _DEEP_SIDE or config.tile_k > 2 * _SHAPES[kind_of(problem)][2]:
        is_wgmma = config.tile_m % WGMMA_ROWS == 0 or config.tile_n % WGMMA_ROWS == 0
        return is_few and is_wgmma and has_wgmma(problem, arch)
    return arch in _DEEP_ARCHS and (is_few or kind_of(problem) == "float16")


def _is_of_sm_90(problem: MatmulProblem, config: MatmulConfig) -> bool:
    """True for tiles without wgmma that were measured on sm_90 alone."""
    return _is_short_float32(problem, config) or _is_large_float64(problem, config)


def _is_short_float32(problem: MatmulProblem, config: MatmulConfig) -> bool:
    """True for the tile of float32 that is meant for few steps."""
    tile = (config.tile_m, config.tile_n, config.tile_k)
    return kind_of(problem) == "float32" and tile == (_SHORT_SIDE, _SHORT_SIDE, _SHORT_DEPTH)


def _is_large_float64(problem: MatmulProblem, config: MatmulConfig) -> bool:
    """True for the tiles of float64 whose blocks have 256 threads."""
    return kind_of(problem) == "float64" and (config.tile_m, config.tile_n) in _SHAPES["float64"][1]


def _spills(problem: MatmulProblem, config: MatmulConfig) -> bool:
    """True if a block's registers do not suffice beside Warp's loop over tiles."""
    return problem.always_loops and _is_large_float64(problem, config)


def most_blocks(problem: MatmulProblem, config: MatmulConfig, arch: int | None, multiprocessors: int) -> int:
    """The number of blocks to launch, at most; 0 for a block for each tile and slice.

    A multiprocessor that has room for one block starts no other one. Its block can compute several tiles instead. On
    an H200 that saved 0.5 to 4 % for 16-bit operands. It cost 2 to 3 % for float32, and up to 10 % with tiles at edges,
    whose blocks take longer (not on record).
    """
    has_edges = problem.m % config.tile_m or problem.n % config.tile_n
    if arch is None or kind_of(problem) != "float16" or has_edges or config.split_k > 1:
        return 0
    has_more_tiles = blocks_of(problem, config) > multiprocessors
    return multiprocessors if has_more_tiles and resident_blocks(problem, config, arch) == 1 else 0


def pipeline_of(
    problem: MatmulProblem, config: MatmulConfig, arch: int | None, multiprocessors: int
) -> PipelineOverrides:
    """What a launch fixes of its loop's pipeline.

    If few blocks share a multiprocessor, their stages may use the memory that further blocks would have used, because
    no other block hides the latency of loads. float32 keeps the choice between stages and double buffers. Many blocks
    with few steps have fewer stages, so that more of them are resident, and some start and end while others multiply.
    On an H100, 64x128x64 tiles of 16-bit products with K of 128 to 424 were 1.04 to 1.24 times as fast with three
    stages. On an H200, 64x64x16 tiles of float32 products with K of 32 to 128 were 1.00 to 1.06 times as fast (not on
    record).
    """
    if arch is None:
        return AUTO
    count, resident = blocks_of_multiprocessor(problem, config, multiprocessors), resident_blocks(problem, config, arch)
    if resident == 1:  # its loop has all the stages that fit in any case
        return AUTO
    if count <= min(_FEW_BLOCKS, resident) and kind_of(problem) != "float32":
        return PipelineOverrides(blocks=max(1, count))
    steps = steps_of(problem, config)
    if _has_short_pipeline(problem, config, arch) and 0 < steps <= _SHORT_STEPS:
        return PipelineOverrides(stages=min(steps + 1, _SHORT_STAGES))
    return AUTO


def _has_short_pipeline(problem: MatmulProblem, config: MatmulConfig, arch: int) -> bool:
    """True for the tiles that were measured with few stages."""
    if _is_short_float32(problem, config):
        return arch == 90
    is_wgmma = kind_of(problem) == "float16" and has_wgmma(problem, arch) and config.tile_m % WGMMA_ROWS == 0
    return is_wgmma and config.tile_k * DTYPE_BYTES[problem.a] >= _LONG_STEP_BYTES


# sides of tiles, larger tiles, elements of K in a step, elements of a tile from which a block has 256 threads
_SHAPES: dict[str, tuple[Sequence[int], Sequence[tuple[int, int]], int, int]] = {
    "float16": ((16, 32, 64, 128), ((128, 256), (256, 128)), 64, 128 * 256),
    "tf32": ((16, 32, 64, 128), ((256, 128), (128, 256)), 32, 128 * 256),
    "float32": ((16, 32, 64, 128), ((128, 256), (256, 128)), 32, 128 * 128),
    "float64": ((16, 32, 64), ((64, 128), (128, 64)), 16, 64 * 128),
}


def _tiles(problem: MatmulProblem) -> Iterator[MatmulConfig]:
    """Tiles and threads for the types of a product. A side is at most the next one above the matrix's side."""
    kind = kind_of(problem)
    sides, larger, most, many = _SHAPES[kind]
    rows, columns = (_useful(sides, size) for size in (problem.m, problem.n))
    for tile_m, tile_n in (*product(rows, columns), *larger):
        tile, step = tile_m * tile_n, most
        if (tile_m, tile_n) in larger and (tile_m > 2 * problem.m or tile_n > 2 * problem.n):
            continue
        if kind == "tf32" and (tile_m, tile_n) == larger[problem.layout == "nn"]:
            continue  # B passes through registers if its rows are contiguous, so that fewer columns cost less
        if kind == "float32" and {tile_m, tile_n} == {64, 128} and not problem.b_transposed:
            continue  # their loops have double buffers, and took 1.05 to 1.44 times as long (not on record)
        if kind == "float32" and ((tile_m + tile_n) * step > tile or tile > many):
            step //= 2  # so that double buffers fit C's memory, and the code the instruction cache
        step = min(step // (2 if problem.in_parts else 1), max(16, 16 * ceil_div(problem.k, 16)))
        threads = 256 if tile >= many else 128 if tile >= 1024 else 64 if tile >= 512 else LANES
        yield MatmulConfig(tile_m, tile_n, step, threads)
        has_stages = kind != "float32" and (kind != "tf32" or tile > 32 * 32)  # with twice the depth
        if threads == 128 and has_stages and step == most:
            for factor in _depth_factors(kind, tile_m, tile_n):
                if factor * step < 2 * problem.k:  # half of this depth does not cover K
                    yield MatmulConfig(tile_m, tile_n, factor * step, threads)
        is_short = problem.k <= _SHORT_STEPS * _SHORT_DEPTH
        if kind == "float32" and is_short and tile_m == tile_n == _SHORT_SIDE and step == most:
            yield MatmulConfig(tile_m, tile_n, _SHORT_DEPTH, threads)
        if kind == "float32" and tile == many:
            yield MatmulConfig(tile_m, tile_n, max(16, step // 2), 128)
        elif tile == 128 * 128 and threads == 128:
            yield MatmulConfig(tile_m, tile_n, step, 256)


def _depth_factors(kind: str, tile_m: int, tile_n: int) -> list[int]:
    """How many times the usual depth a tile's step may have."""
    if kind == "float16":
        return [factor for factor, sides in _DEEPER_SIDES.items() if tile_m + tile_n <= sides]
    return [2] if max(tile_m, tile_n) <= _DEEP_SIDE else []


def _useful(sides: Sequence[int], size: int) -> list[int]:
    """The sides of tiles up to the first that has room for the whole matrix, without 16 for larger ones."""
    return [
        side
        for index, side in enumerate(sides)
        if (index == 0 or sides[index - 1] < size) and (side >= _LEAST_SIDE or size <= side)
    ]


def _slice_counts(problem: MatmulProblem, config: MatmulConfig, multiprocessors: int) -> list[int]:
    """1, and the numbers of slices that give each multiprocessor about one, two or four blocks."""
    alone = blocks_of(problem, config)
    most = _most_slices(problem, config.tile_k)
    found = {1, *(min(most, multiprocessors * share // alone) for share in (1, 2, 4))}
    return sorted(count for count in found if count >= 1)


def _most_slices(problem: MatmulProblem, tile_k: int) -> int:
    return max(1, min(_SLICES, ceil_div(problem.k, tile_k) // _SLICE_STEPS))
