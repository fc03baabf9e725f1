"""The choice of :func:`warp_tiles.matmul`: candidates, their memory and estimated times, and the plan. It is pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Literal

from warp_tiles.array_products.lane_kernel import TILES as LANE_TILES
from warp_tiles.array_products.lane_kernel import LaneKernel
from warp_tiles.array_products.matmul_problem import (
    ALIGNED,
    LOADING_THREADS,
    STRIDED,
    Candidate,
    DecidedBy,
    Gpu,
    MatmulConfig,
    MatmulPlan,
    MatmulProblem,
    MeasuredConfigs,
    Operand,
    ShapeBucket,
    copies_us,
    unaligned_us,
)
from warp_tiles.array_products.matmul_rates import RATES, Rates
from warp_tiles.array_products.tensor_kernel import (
    ROW_BYTES,
    STEPS_OF_SLICE,
    TILE_PARTS,
    Slices,
    TensorKernel,
    clusters,
    in_slices,
    needs_clusters,
    overlapped,
    resident_clusters,
)
from warp_tiles.gemm.hardware import (
    LANES,
    TENSOR_CORES_ARCH,
    has_wgmma,
    loop_registers,
    multiprocessor,
    resident_blocks,
    static_shared_bytes,
)
from warp_tiles.gemm.main_loop import LoopPlan, loop_problem
from warp_tiles.gemm.pipeline import AUTO, STAGE_ALIGNMENT, WGMMA_ROWS, LoopMemory, PipelineOverrides
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem, dense_operand
from warp_tiles.gemm.rejected import Rejected, accepted, refuse, rejectable

# ---- constants of architectures and types

_KERNEL_SIDE = 33  # rows and columns of C, at least, for the kernel with tensor copies: over half a tile
_KERNEL_DEPTH = 128  # elements of K, at least, for those without wgmma: no shorter ones were measured
_GROUP_ROWS = 1024  # of C that consecutive blocks share
_MARGIN_BYTES = 2048  # shared memory for a bias and for alignment

_SLICES = 64  # at most
_SLICE_STEPS = 4  # at least, of the loop of one slice
_FEW_BLOCKS = 2  # of one multiprocessor
# a record counts if its configuration's estimate, over the least one, is at most so many times that ratio at the
# measured size
_OTHER_SIZES = 1.05
_LEAST_SIDE = 32  # of a tile in a larger matrix
_SHORT_STEPS, _SHORT_STAGES = 8, 3  # of loops whose blocks start and end often
_SHORT_TILE = (64, 64, 16)  # of float32 for few steps
_LONG_STEP_BYTES = 128  # of K; loops with shorter steps keep products in flight, which takes a stage
_DEEP_STEP_BYTES = 164 * 1024  # shared memory of a multiprocessor for several blocks whose steps are deep
_ODD_TILES = (64, 80), (80, 64)  # of float64, with fewer copies of elements for each product
_ACCUMULATORS = (32, 64)  # of a thread in float32, if tiles are many: with fewer, loops have no stages
_DEEP_SIDE = 64  # of a tile, at most, whose step may have twice the depth
# the sum of a tile's sides, at most, by the factor of its depth: of 16-bit types, and of others
_DEEPER_HALF_SIDES, _DEEPER_SIDES = {2: 64 + 128, 4: 32 + 64}, {2: 2 * _DEEP_SIDE}

# sides of tiles, larger tiles, elements of K in a step, elements of a tile from which a block has 256 threads
_SHAPES: dict[str, tuple[Sequence[int], Sequence[tuple[int, int]], int, int]] = {
    "float16": ((16, 32, 64, 128), ((128, 256), (256, 128)), 64, 128 * 256),
    "tf32": ((16, 32, 64, 128), ((256, 128), (128, 256)), 32, 128 * 256),
    "float32": ((16, 32, 64, 128), ((128, 256), (256, 128)), 32, 128 * 128),
    "float64": ((16, 32, 64), ((128, 128),), 16, 128 * 128),  # 64x128 spills with 256 threads
}


# for the kernel with tensor copies, also beside a loop without wgmma, whose estimate is too short, and for float32 and
# float64, whose loops' estimate is too long (docs/experiments.md)
_PREFERENCE, _PREFERENCE_OVER_MMA, _PREFERENCE_OF_LANES = 1.2, 1.4, {"float32": 1.05, "float64": 0.85}
_MEMORY = 3.0e6  # bytes that the GPU reads or writes in 1 us
_LAUNCH_US = 3.5  # of a loop, and of the kernel that adds the products of a batch


# ---- the choice


def choose_matmul(
    problem: MatmulProblem,
    gpu: Gpu,
    records: Mapping[ShapeBucket, MeasuredConfigs] | None = None,
    *,
    pipeline: PipelineOverrides | Rejected | None = None,
    forced: MatmulConfig | None = None,
    no_function: Rejected | None = None,
) -> MatmulPlan:
    """The plan of a product. Records decide first, then the least estimated time.

    Without a record that compares both, the best launch of the kernel with tensor copies is preferred to the best loop,
    unless its estimate is more than a factor times the loop's: ``_PREFERENCE``, or another one beside a loop without
    wgmma, for float32 and for float64. Operands of loops are copied where that saves time.

    Args:
        pipeline: What a setting fixes of the loop's pipeline, or the reason why loops have no stages; None if the
            launch may fix it.
        forced: The configuration that a search measures.
        no_function: The reason why the kernel applies no function of the user; None if it may. The loop is the one that
            would stand beside the kernel, which a bundle has.

    Raises:
        ValueError: The forced configuration is a launch of the kernel, which cannot compute the product.
    """
    rejection = kernel_rejection(problem, gpu.arch, pipeline)
    known = (records or {}).get(problem.bucket, MeasuredConfigs())
    best = forced or _fitting(problem, known.best, gpu, rejection)
    measured = best or _fitting(problem, known.loop, gpu, rejection)
    if measured is None or measured.tensor_copies:
        # of equal ones, one whose C wgmma computes itself: 16-bit results of C^T pass through shared memory
        rows = WGMMA_ROWS if problem.kind == "float16" else 1
        loops = (_with_copies(problem, loop, gpu) for loop in _loops(problem, gpu))
        loop = min(loops, key=lambda loop: (loop.time_us, loop.config.tile_m % rows > 0))
    else:
        loop = loop_candidate(problem, measured, gpu)
        if forced is None:
            loop = _with_copies(problem, loop, gpu)
    launch = rejection or _launch(problem, loop, gpu, best)
    if isinstance(launch, Rejected) and best is not None and best.tensor_copies:
        raise ValueError(f"no kernel with tensor copies for {problem.describe()}: {launch}")
    if problem.has_function and no_function is not None and isinstance(launch, Candidate):
        launch = no_function
    by_estimate = measured is None or (best is None and isinstance(launch, Candidate))
    decided_by: DecidedBy = "search" if forced else "heuristic" if by_estimate else "record"
    if isinstance(pipeline, PipelineOverrides):
        decided_by = "setting"
    fixed = _main_loop(problem, loop, gpu) if pipeline is None else AUTO
    stages = pipeline if isinstance(pipeline, Rejected) else _stages(problem, loop.config, gpu, pipeline or fixed)
    if isinstance(launch, Candidate):
        return MatmulPlan(problem, launch, loop.config, decided_by, fixed, stages, gpu.name)
    if isinstance(stages, LoopPlan):
        ring = stages.loop
        loop = replace(loop, shared_bytes=ring.shared_bytes, registers=ring.registers, resident_blocks=ring.blocks)
    return MatmulPlan(problem, loop, loop.config, decided_by, fixed, stages, gpu.name, launch)


def _fitting(
    problem: MatmulProblem, measured: MatmulConfig | None, gpu: Gpu, rejection: Rejected | None
) -> MatmulConfig | None:
    """A configuration that was measured for another product of the problem's bucket, if it fits this one.

    Launches of the kernel were measured with rows of C that need no stores of single elements, and with rows of A and B
    that need no clusters, nor other copies than theirs. Estimates tell what other sizes change: other waves, or tiles
    that C fills less.
    """
    if measured is None or problem.summed:
        return None
    there = problem.of_bucket
    is_refused = bool(rejection or kernel_rejection(there, gpu.arch))  # for either: ratios are of the same sets
    if measured.tensor_copies:
        copied = [operand for operand, copies in (("a", measured.copies_a), ("b", measured.copies_b)) if copies]
        is_other = copied != _kernel_copies(problem) or problem.c_alignment < ALIGNED
        is_lane = problem.kind in LANE_TILES
        if is_refused or is_other or (not is_lane and needs_clusters(_row_bytes(problem))):
            return None
    else:
        if problem.split_operand:
            measured = replace(measured, tile_k=measured.tile_k // 2)
        large = problem.kind == "float64" and (measured.tile_m, measured.tile_n) in _SHAPES["float64"][1]
        memory = multiprocessor(gpu.arch).block_shared_bytes
        if (large and problem.always_loops) or shared_bytes(problem, measured) > memory:
            return None
    there_us = _relative_us(there, measured, gpu, is_refused)
    if not measured.tensor_copies:
        measured = replace(measured, split_k=min(measured.split_k, _most_slices(problem, measured.tile_k)))
    return measured if _relative_us(problem, measured, gpu, is_refused) <= _OTHER_SIZES * there_us else None


def _relative_us(problem: MatmulProblem, measured: MatmulConfig, gpu: Gpu, loops_alone: bool) -> float:
    """The estimate of a loop, or of the launch most like a measured one, in relation to the least estimate."""
    launches = () if loops_alone else tuple(_launches(problem, gpu))
    own = _nearest(launches, measured) if measured.tensor_copies else loop_candidate(problem, measured, gpu)
    return own.time_us / min(one.time_us for one in (*_loops(problem, gpu), *launches))


@rejectable
def kernel_rejection(problem: MatmulProblem, arch: int, pipeline: PipelineOverrides | Rejected | None = None) -> None:
    """The reason why the kernel with tensor copies cannot compute a product; None if it can."""
    p = problem
    refuse(accepted(pipeline) is not None, "loop_asked")
    refuse(not has_wgmma(arch), "gpu_without_wgmma")
    is_lane = p.kind in LANE_TILES
    refuse(p.b != p.a or (is_lane and p.out != p.a), "kernel_dtypes", p.kind)
    refuse(p.k == 0, "no_products")
    refuse(p.summed or p.split_operand is not None, "kernel_sums")
    reads_by_copies = p.has_beta and not is_lane
    refuse(p.c_alignment == STRIDED or (reads_by_copies and p.c_alignment < ALIGNED), "kernel_alignment")
    refuse(_kernel_copies_us(p) == math.inf, "kernel_copies")
    refuse(min(p.m, p.n) < _KERNEL_SIDE, "kernel_side", _KERNEL_SIDE)
    refuse(is_lane and p.k < _KERNEL_DEPTH, "kernel_depth", p.kind, _KERNEL_DEPTH)


@rejectable
def _launch(problem: MatmulProblem, loop: Candidate, gpu: Gpu, measured: MatmulConfig | None) -> Candidate:
    """The launch of the kernel that computes a product, or the reason why the loop does: as measured, or by estimate.

    A loop may have more slices of K, which pays if tiles are few and K is long.
    """
    launches = _launches(problem, gpu)
    if measured is not None:
        refuse(not measured.tensor_copies, "loop_configured")
        return _nearest(launches, measured)
    best = min(launches, key=lambda launch: launch.time_us)
    over_loops = _PREFERENCE_OF_LANES.get(problem.kind, _PREFERENCE_OVER_MMA)
    factor = _PREFERENCE if problem.has_wgmma(gpu.arch) else over_loops
    refuse(factor * loop.time_us < best.time_us, "loop_faster", f"{factor:g}")
    return best


def _nearest(launches: Iterable[Candidate], measured: MatmulConfig) -> Candidate:
    """The launch most like a measured one, whose tile a product with a function may not have."""

    def distance(launch: Candidate) -> tuple[int, int, int, float]:
        config = launch.config
        tile = abs(config.tile_m - measured.tile_m) + abs(config.tile_n - measured.tile_n)
        cluster = abs(config.cluster_m - measured.cluster_m) + abs(config.cluster_n - measured.cluster_n)
        return tile, abs(config.split_k - measured.split_k), cluster, launch.time_us

    return min(launches, key=distance)


def _main_loop(problem: MatmulProblem, loop: Candidate, gpu: Gpu) -> PipelineOverrides:
    """What a launch fixes of its loop's pipeline.

    If few blocks share a multiprocessor, their stages may use the memory that further blocks would have used, because
    no other block hides the latency of loads. float32 keeps the choice between stages and double buffers. Many blocks
    with few steps have fewer stages, so that more of them are resident, and some start and end while others multiply.
    """
    config = loop.config
    if resident_blocks(gpu.arch, config.threads, shared_bytes=loop.shared_bytes) <= 1:  # it has all stages that fit
        return AUTO
    if problem.kind == "float32":
        is_short = has_wgmma(gpu.arch) and config.tile == _SHORT_TILE
    elif loop.blocks <= min(_FEW_BLOCKS, loop.resident_blocks):
        return PipelineOverrides(blocks=max(1, loop.blocks))
    else:
        is_wgmma = problem.kind == "float16" and problem.has_wgmma(gpu.arch) and config.tile_m % WGMMA_ROWS == 0
        is_short = is_wgmma and config.tile_k * DTYPE_BYTES[problem.a] >= _LONG_STEP_BYTES
    is_short = is_short and 0 < loop.steps <= _SHORT_STEPS
    return PipelineOverrides(stages=min(loop.steps + 1, _SHORT_STAGES)) if is_short else AUTO


def _stages(
    problem: MatmulProblem, config: MatmulConfig, gpu: Gpu, overrides: PipelineOverrides
) -> LoopPlan | Rejected:
    """The pipeline of the loop of a product's kernel, or the reason why it has no stages."""
    m, n, k = config.tile
    a = dense_operand(problem.a, m, k, transposed=problem.a_transposed)
    b = dense_operand(problem.b, k, n, transposed=problem.b_transposed)
    c = dense_operand(problem.accumulator, m, n)
    precision: Literal["tf32", "default"] = "tf32" if problem.tf32 and gpu.arch >= TENSOR_CORES_ARCH else "default"
    forward = GemmProblem(m, n, k, a, b, c, precision, config.threads, gpu.arch)
    second = {"a": ("rest", "b"), "b": ("a", "rest")}.get(problem.split_operand or "")
    products = [(forward, tiles) for tiles in (("a", "b"), second) if tiles is not None]
    sizes = {"a": m * k * DTYPE_BYTES[problem.a], "b": k * n * DTYPE_BYTES[problem.b]}
    loaded = [*sizes.values(), *([sizes[problem.split_operand]] if problem.split_operand else [])]
    tile_bytes = sum(loaded) + m * n * DTYPE_BYTES[problem.accumulator]
    tile_bytes += n * DTYPE_BYTES[problem.bias] if problem.bias and not problem.summed else 0
    stage_bytes = sum(_ceil(size, STAGE_ALIGNMENT) * STAGE_ALIGNMENT for size in loaded)
    memory = LoopMemory(stage_bytes, tile_bytes, tile_bytes)
    loop = loop_problem(products, ("wgmma", "mma"), memory, arrays=(0,) * len(products))
    return loop.plan_alone(overrides)


# ---- candidates


def candidates(problem: MatmulProblem, gpu: Gpu) -> tuple[Candidate, ...]:
    """All ways to compute a product: loops, of which there is always one, and launches of the kernel if it can."""
    launches = () if kernel_rejection(problem, gpu.arch) else _launches(problem, gpu)
    return *_loops(problem, gpu), *launches


def _launches(problem: MatmulProblem, gpu: Gpu) -> Iterator[Candidate]:
    """All launches of the kernel with tensor copies. The last tiles, if too few for all multiprocessors, get slices."""
    kernel = _kernel(problem, (0, 0))
    tiles = (lines[::-1] if kernel.computes_transpose else lines for lines in kernel.tiles)
    for tile, cluster in [(sides, pair) for sides in tiles for pair in _clusters(problem, sides)]:
        kernel = _kernel(problem, tile, False, cluster)
        is_useful = all(size > side - part for size, side, part in zip((problem.m, problem.n), tile, TILE_PARTS))
        if not is_useful or (problem.has_function and not kernel.may_have_function):
            continue
        yield (whole := launch_candidate(problem, tile, 1, gpu, cluster))
        resident = resident_clusters(gpu.multiprocessors, kernel)
        rest, steps = whole.slices.whole % resident, _ceil(problem.k, whole.config.tile_k)
        if rest and kernel.may_have_slices:
            waves = kernel.most_waves(are_alone=rest == whole.slices.whole)
            most = min(kernel.most_slices, waves * resident // rest, steps // STEPS_OF_SLICE)
            for count in range(2, most + 1):
                launch = launch_candidate(problem, tile, count, gpu, cluster)
                if (count - 1) * launch.slices.stages < steps:  # no slice is empty
                    yield launch


def _clusters(problem: MatmulProblem, tile: tuple[int, int]) -> Sequence[tuple[int, int]]:
    p, size = problem, DTYPE_BYTES[problem.a]
    if p.kind in LANE_TILES:
        return ((1, 1),)
    return clusters(_row_bytes(p), (_ceil(p.m, tile[0]), _ceil(p.n, tile[1])), (p.m * p.k * size, p.n * p.k * size))


def _row_bytes(problem: MatmulProblem) -> tuple[int, int]:
    """The lengths of the rows of A and of B that the kernel loads. Those of copies are whole lines of the caches."""
    p, size, copies = problem, DTYPE_BYTES[problem.a], _kernel_copies(problem)
    a, b = size * (p.m if p.a_transposed else p.k), size * (p.k if p.b_transposed else p.n)
    return ROW_BYTES if "a" in copies else a, ROW_BYTES if "b" in copies else b


def _kernel_copies(problem: MatmulProblem) -> list[Operand]:
    """The operands that the kernel reads from copies."""
    p, transposed = problem, _transposed(problem)
    operands: tuple[tuple[Operand, int], ...] = ("a", p.a_alignment), ("b", p.b_alignment)
    return [operand for operand, alignment in operands if alignment < ALIGNED or operand == transposed]


def _kernel_copies_us(problem: MatmulProblem) -> float:
    return copies_us(problem, _kernel_copies(problem), ROW_BYTES, _transposed(problem))


def launch_candidate(
    problem: MatmulProblem, tile: tuple[int, int], slices: int, gpu: Gpu, cluster: tuple[int, int] = (1, 1)
) -> Candidate:
    """The launch of the kernel with tensor copies with a tile, of which the last ones have so many slices of K.

    Args:
        cluster: The blocks of a cluster along M and N.
    """
    p, is_split, copies = problem, slices > 1, _kernel_copies(problem)
    kernel = _kernel(p, tile, is_split, cluster)
    rows, columns = (side * count for side, count in zip(tile, cluster))
    config = MatmulConfig(
        *tile,
        kernel.tile_k,
        kernel.threads,
        slices,
        _group(p, rows),
        cluster_m=cluster[0],
        cluster_n=cluster[1],
        tensor_copies=True,
        copies_a="a" in copies,
        copies_b="b" in copies,
    )
    tiles = p.batch * _ceil(p.m, rows) * _ceil(p.n, columns)
    work = Slices(tiles)
    if is_split:
        resident, steps = resident_clusters(gpu.multiprocessors, kernel), _ceil(p.k, kernel.tile_k)
        work = in_slices(tiles, slices, steps, resident, gpu.multiprocessors)
    time_us = kernel.launch_us(work, p.k, _row_bytes(p), p.array_bytes, gpu.multiprocessors) + _kernel_copies_us(p)
    memory = kernel.shared_bytes, kernel.registers, kernel.resident_blocks
    return Candidate(config, time_us, *memory, kernel=kernel, slices=work)


def _transposed(problem: MatmulProblem) -> Operand | None:
    """The operand that the kernel needs a copy of along K: wgmma reads one operand of tf32 only along K."""
    return ("a" if problem.m <= problem.n else "b") if problem.tf32 and problem.layout == "tn" else None


def _kernel(
    problem: MatmulProblem, tile: tuple[int, int], has_slices: bool = False, cluster: tuple[int, int] = (1, 1)
) -> TensorKernel:
    p, copied = problem, _transposed(problem)
    along_m, along_n = p.a_transposed and copied != "a", not p.b_transposed and copied != "b"
    is_lane = p.kind in LANE_TILES
    return (LaneKernel if is_lane else TensorKernel)(
        *(p.a, p.out, *tile, along_m, along_n, p.has_beta, p.bias, p.has_function, has_slices, *cluster),
        has_map=p.c_alignment == ALIGNED and not (is_lane and p.n * DTYPE_BYTES[p.out] % ALIGNED),
    )


def _loops(problem: MatmulProblem, gpu: Gpu) -> Iterator[Candidate]:
    """All loops whose tiles fit shared memory, each with useful numbers of slices."""
    for config in _tiles(problem, gpu):
        if shared_bytes(problem, config) > multiprocessor(gpu.arch).block_shared_bytes:
            continue
        tiles, most = _tiles_of(problem, config), _most_slices(problem, config.tile_k)
        # about one, two or four blocks for each multiprocessor
        slices = {1, *(min(most, gpu.multiprocessors * share // tiles) for share in (1, 2, 4))}
        group = _group(problem, config.tile_m)
        for count in sorted(slices - {0}):
            yield loop_candidate(problem, replace(config, group=group, split_k=count), gpu)


def _tiles(problem: MatmulProblem, gpu: Gpu) -> Iterator[MatmulConfig]:
    """Tiles and threads for the types of a product. A side is at most the next one above the matrix's side."""
    kind = problem.kind
    sides, larger, most, many = _SHAPES[kind]
    is_wgmma_gpu, alignments = has_wgmma(gpu.arch), (problem.a_alignment, problem.b_alignment)
    if kind == "float64" and (problem.always_loops or not is_wgmma_gpu):
        larger = ()  # measured on sm_90 alone, where registers do not suffice beside Warp's loop over tiles
    elif kind == "float64" and problem.layout == "nt" and problem.batch > 1 and min(alignments) < ALIGNED:
        larger = (*larger, *_ODD_TILES)
    rows, columns = (_useful(sides, size) for size in (problem.m, problem.n))
    for tile_m, tile_n in (*product(rows, columns), *larger):
        tile, step = tile_m * tile_n, most
        if (tile_m, tile_n) in larger and (tile_m > 2 * problem.m or tile_n > 2 * problem.n):
            continue
        if kind == "tf32" and (tile_m, tile_n) == larger[problem.layout == "nn"]:
            continue  # B passes through registers if its rows are contiguous, so that fewer columns cost less
        if kind == "float32" and {tile_m, tile_n} == {64, 128} and not problem.b_transposed:
            continue  # their loops have double buffers, which are slower here (docs/experiments.md)
        if kind == "float32" and ((tile_m + tile_n) * step > tile or tile > many):
            step //= 2  # so that double buffers fit C's memory, and the code the instruction cache
        step = min(step // (2 if problem.split_operand else 1), max(16, 16 * _ceil(problem.k, 16)))
        threads = 256 if tile >= many else 128 if tile >= 1024 else 64 if tile >= 512 else LANES
        config = MatmulConfig(tile_m, tile_n, step, threads)
        are_many = _ceil(_tiles_of(problem, config), gpu.multiprocessors) > _FEW_BLOCKS
        if kind == "float32" and min(tile_m, tile_n) <= _LEAST_SIDE and are_many:
            for fewer in dict.fromkeys(max(LANES, tile // accumulators) for accumulators in _ACCUMULATORS):
                yield replace(config, threads=fewer)
        elif kind != "float32" or config.tile != _SHORT_TILE or is_wgmma_gpu:
            yield config
        if threads == 128 and step == most:
            for factor in _depth_factors(problem, config, gpu):
                if factor * step < 2 * problem.k:  # half of this depth does not cover K
                    yield replace(config, tile_k=factor * step)
        is_short = kind == "float32" and problem.k <= _SHORT_STEPS * _SHORT_TILE[2] and is_wgmma_gpu
        if is_short and (tile_m, tile_n) == _SHORT_TILE[:2] and step == most:
            yield MatmulConfig(*_SHORT_TILE, threads)
        if kind == "float32" and tile == many:
            yield MatmulConfig(tile_m, tile_n, max(16, step // 2), 128)
        elif tile == 128 * 128 and threads == 128:
            yield MatmulConfig(tile_m, tile_n, step, 256)


def _depth_factors(problem: MatmulProblem, config: MatmulConfig, gpu: Gpu) -> Iterator[int]:
    """How many times the usual depth a tile's step may have: depths that were measured.

    16-bit tiles of up to 64x64 may have twice the depth, and those of tf32 and float64 if blocks are few. Larger tiles,
    and four times the depth, need few blocks and wgmma. A loop with half the steps waits half as often
    (docs/experiments.md).
    """
    kind, sides = problem.kind, (config.tile_m, config.tile_n)
    if kind == "float32" or (kind == "tf32" and math.prod(sides) <= 32 * 32):
        return  # these loops have no stages with twice the depth
    is_few = _ceil(_tiles_of(problem, config), gpu.multiprocessors) <= _FEW_BLOCKS
    is_wgmma = problem.has_wgmma(gpu.arch) and any(side % WGMMA_ROWS == 0 for side in sides)
    has_memory = multiprocessor(gpu.arch).shared_bytes >= _DEEP_STEP_BYTES
    for factor, most in (_DEEPER_HALF_SIDES if kind == "float16" else _DEEPER_SIDES).items():
        is_larger = factor > 2 or max(sides) > _DEEP_SIDE
        if sum(sides) <= most and (is_few and is_wgmma if is_larger else has_memory and (is_few or kind == "float16")):
            yield factor


def _useful(sides: Sequence[int], size: int) -> list[int]:
    """The sides of tiles up to the first that has room for the whole matrix, without 16 for larger ones."""
    following = zip((-1, *sides), sides)
    return [side for last, side in following if last < size and (side >= _LEAST_SIDE or size <= side)]


def _most_slices(problem: MatmulProblem, tile_k: int) -> int:
    return max(1, min(_SLICES, _ceil(problem.k, tile_k) // _SLICE_STEPS))


def _tiles_of(problem: MatmulProblem, config: MatmulConfig) -> int:
    """The tiles of all matrices C."""
    return problem.batch * _ceil(problem.m, config.tile_m) * _ceil(problem.n, config.tile_n)


def _group(problem: MatmulProblem, tile_m: int) -> int:
    return max(1, min(_ceil(problem.m, tile_m), _GROUP_ROWS // tile_m))


def shared_bytes(problem: MatmulProblem, config: MatmulConfig) -> int:
    """Shared memory of a block in bytes, static and dynamic: the tiles of A, B and C, a bias, and Warp's headers."""
    a = config.tile_m * config.tile_k * DTYPE_BYTES[problem.a] * (1 + (problem.split_operand == "a"))
    b = config.tile_n * config.tile_k * DTYPE_BYTES[problem.b] * (1 + (problem.split_operand == "b"))
    return a + b + config.tile_m * config.tile_n * DTYPE_BYTES[problem.accumulator] + _MARGIN_BYTES


def _ceil(size: int, part: int) -> int:
    return -(-size // part)


# ---- the estimate of a loop


def rates_name(problem: MatmulProblem, arch: int) -> str:
    """The entry of ``RATES`` for a product."""
    is_slower = problem.kind in ("float16", "tf32") and not problem.has_wgmma(arch)
    return f"{problem.kind} without wgmma" if is_slower else problem.kind


def loop_candidate(problem: MatmulProblem, config: MatmulConfig, gpu: Gpu, rates: Rates | None = None) -> Candidate:
    """The loop with a configuration.

    A multiprocessor is limited by arithmetic, by the bytes that its blocks load from the L2 cache, and by the latency
    of loads, which its resident blocks share.

    Args:
        rates: None for those of ``RATES``.
    """
    p, arch = problem, gpu.arch
    rates = rates or RATES[rates_name(p, arch)]
    tile, steps = config.tile_m * config.tile_n, _ceil(_ceil(p.k, config.tile_k), config.split_k)
    blocks = _ceil(_tiles_of(p, config) * config.split_k, gpu.multiprocessors)
    dynamic = shared_bytes(p, config) - static_shared_bytes(config.threads)
    # two blocks of 256 threads lack registers if an operand passes through them
    through = p.tf32 and p.has_wgmma(arch) and p.layout != "nt"
    registers = loop_registers(arch, "wgmma", tile // config.threads, through_registers=True) if through else 0
    resident = max(1, resident_blocks(arch, config.threads, shared_bytes=dynamic, registers=registers))
    candidate = Candidate(config, shared_bytes=dynamic, resident_blocks=resident, blocks=blocks, steps=steps)
    depth = steps * config.tile_k
    loaded = depth * (config.tile_m * DTYPE_BYTES[p.a] + config.tile_n * DTYPE_BYTES[p.b])
    is_split = config.split_k > 1 or p.summed
    stored = tile * DTYPE_BYTES[p.accumulator if is_split else p.out]
    # one warpgroup keeps the arithmetic busy with wgmma, which is asynchronous
    full_threads = 128 if p.has_wgmma(arch) else 256
    rate = rates.products * _tile_factor(rates, config)
    rate *= min(1.0, min(blocks, resident) * config.threads / full_threads)
    if p.kind == "float16" or p.tf32:
        rate *= min(1.0, config.threads / 128)
    if has_wgmma(arch) and config.tile_m % WGMMA_ROWS and config.tile_n % WGMMA_ROWS:
        rate *= rates.without_wgmma
    copies = loaded / max(1, depth) * config.tile_k / (ALIGNED * config.threads)  # of a thread in a step
    time_us = overlapped(
        blocks * tile * depth / rate,
        blocks * loaded / rates.loaded,
        candidate.waves * steps * (rates.step_us + copies * rates.copy_us),
        p.array_bytes / rates.memory,
    )
    stored_in_us = rates.stored_alone if resident == 1 else rates.stored
    time_us += _LAUNCH_US + candidate.waves * rates.start_us + blocks * (rates.block_us + stored / stored_in_us)
    if p.summed:
        elements = config.split_k * p.batch * p.m * p.n
        time_us += _LAUNCH_US + 2 * elements * DTYPE_BYTES[p.accumulator] / _MEMORY
    elif is_split:  # one block of each tile reads the accumulators of all slices
        time_us += rates.arrival_us + config.split_k * tile * DTYPE_BYTES[p.accumulator] / rates.loaded
    return replace(candidate, time_us=time_us)


def _tile_factor(rates: Rates, config: MatmulConfig) -> float:
    """The speed of a tile's products in relation to the largest tiles, if enough threads are resident."""
    small = min(config.tile_m, config.tile_n)
    if small < 128:
        return rates.of_64 if small >= 64 else rates.of_32 if small >= 32 else rates.of_16
    if config.tile_m == config.tile_n == 128:
        return rates.two_groups if config.threads == 256 else rates.of_128
    return 1.0


# ---- copies of operands whose lines are not aligned


def _with_copies(problem: MatmulProblem, loop: Candidate, gpu: Gpu) -> Candidate:
    """The loop with the copies of operands that save time, and with the time of copies and of unaligned lines."""
    config = loop.config
    sides: dict[Operand, int] = {}
    if problem.a_alignment < ALIGNED:
        sides["a"] = config.tile_m * DTYPE_BYTES[problem.a]
    if problem.b_alignment < ALIGNED:
        sides["b"] = config.tile_n * DTYPE_BYTES[problem.b]
    if not sides:
        return loop
    steps_us = loop.time_us - loop_candidate(replace(problem, k=1), config, gpu).time_us
    rounds = (loop.waves + loop.blocks * config.threads / LOADING_THREADS) / 2
    vectors = rounds * loop.steps * config.tile_k / (ALIGNED * config.threads)
    loaded_us = {operand: unaligned_us(problem, operand, steps_us, vectors * side) for operand, side in sides.items()}

    def added_us(copied: Sequence[Operand]) -> float:
        loaded = sum(loaded_us[operand] for operand in sides if operand not in copied)
        return loaded + copies_us(problem, copied)

    copied = min((some for count in range(len(sides) + 1) for some in combinations(sides, count)), key=added_us)
    config = replace(config, copies_a="a" in copied, copies_b="b" in copied)
    return replace(loop, config=config, time_us=loop.time_us + added_us(copied))
