"""The chooser of :func:`warp_tiles.matmul`: candidates, their memory and cost, and the choice. It is pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from warp_tiles.gemm.hardware import (
    LANES,
    TF32_MIN_ARCH,
    has_wgmma,
    multiprocessor,
    resident_blocks,
    static_shared_bytes,
)
from warp_tiles.gemm.main_loop import LoopAnswer, loop_question
from warp_tiles.gemm.matmul_question import (
    ALIGNED,
    STRIDED,
    DecidedBy,
    MatmulAnswer,
    MatmulConfig,
    MatmulProblem,
    MeasuredConfigs,
    Operand,
    ShapeBucket,
    kernel_launches,
    problem_of_kernel,
)
from warp_tiles.gemm.pipeline import AUTO, STAGE_ALIGNMENT, LoopMemory, PipelineOverrides
from warp_tiles.gemm.problem import DTYPE_BYTES, DType, GemmProblem, dense_operand
from warp_tiles.gemm.rejected import Rejected, accepted, refuse, rejectable
from warp_tiles.gemm.tensor_kernel import GROUP_ROWS, NO_WORK, REGISTERS, Slices, TensorKernel, overlapped

# ---- constants of architectures and types

_WGMMA_ROWS = 64  # of a tile, or of its transpose, that one instruction multiplies
_MARGIN_BYTES = 2048  # shared memory for a bias and for alignment

_SLICES = 64  # at most
_SLICE_STEPS = 4  # at least, of the loop of one slice
_FEW_BLOCKS = 2  # of one multiprocessor
_LEAST_SIDE = 32  # of a tile in a larger matrix
_SHORT_STEPS, _SHORT_STAGES = 8, 3  # of loops whose blocks start and end often
_SHORT_TILE = (64, 64, 16)  # of float32 for few steps
_LONG_STEP_BYTES = 128  # of K; loops with shorter steps keep products in flight, which takes a stage
_DEEP_STEP_BYTES = 164 * 1024  # shared memory of a multiprocessor for several blocks whose steps are deep
_DEEP_SIDE = 64  # of a tile, at most, whose step may have twice the depth
_DEEPER_SIDES = {2: 64 + 128, 4: 32 + 64}  # accumulators of a 16-bit tile's sides, at most, by the factor of its depth

# sides of tiles, larger tiles, elements of K in a step, elements of a tile from which a block has 256 threads
_SHAPES: dict[str, tuple[Sequence[int], Sequence[tuple[int, int]], int, int]] = {
    "float16": ((16, 32, 64, 128), ((128, 256), (256, 128)), 64, 128 * 256),
    "tf32": ((16, 32, 64, 128), ((256, 128), (128, 256)), 32, 128 * 256),
    "float32": ((16, 32, 64, 128), ((128, 256), (256, 128)), 32, 128 * 128),
    "float64": ((16, 32, 64), ((64, 128), (128, 64)), 16, 64 * 128),
}


@dataclass(frozen=True)
class _Rates:
    """Speed of one multiprocessor, fitted to products of random sizes and layouts.

    float16 was fitted on an H100, the others on an H200. Those times were not kept. ``benchmarks/fit_matmul.py``
    compares the rates with kept times, and fits others.

    Attributes:
        products: Multiplications with additions in 1 us, of tiles larger than 128x128.
        of_128, two_groups: Its factor for tiles of 128x128 with 128 and with 256 threads.
        of_64, of_32, of_16: Its factor for tiles whose smaller side is 64, 32 and 16.
        loaded: Bytes that are loaded from the L2 cache in 1 us.
        step_us: Time between two steps of a loop that has nothing to load or multiply, in microseconds.
        copy_us: Time that each copy of a thread adds to a step.
        without_wgmma: Factor of the products on GPUs that have wgmma, for tiles that it cannot multiply.
        start_us: Time of a block's start and of its first loads.
        block_us: Time of a block that starts while another one runs.
        stored, stored_alone: Bytes of C that are written in 1 us, while other blocks run, and while none does.
        arrival_us: Time from the last accumulators of a tile to their addition.
        memory: Bytes that the whole GPU reads or writes in 1 us.
    """

    products: float
    of_128: float
    two_groups: float
    of_64: float
    of_32: float
    of_16: float
    loaded: float
    step_us: float
    copy_us: float = 0.0
    without_wgmma: float = 1.0
    start_us: float = 1.5
    block_us: float = 0.2
    stored: float = 3.0e4
    stored_alone: float = 2.0e4
    arrival_us: float = 3.0
    memory: float = math.inf


_RATES = {
    "float16": _Rates(
        3.74e6, of_128=0.72, two_groups=0.73, of_64=0.96, of_32=0.25, of_16=0.23, loaded=8.44e4, step_us=0.2,
        copy_us=6.3e-3, without_wgmma=0.5, start_us=0.72, block_us=0.91, stored=1.58e4, stored_alone=1.58e4,
        arrival_us=2.85, memory=4.2e6,
    ),
    "tf32": _Rates(
        1.24e6, of_128=1.0, two_groups=1.0, of_64=1.2, of_32=0.4, of_16=0.24, loaded=5.0e4, step_us=0.68
    ),
    "tf32 without wgmma": _Rates(
        1.24e6, of_128=1.0, two_groups=0.95, of_64=1.2, of_32=0.4, of_16=0.24, loaded=1.1e5, step_us=0.16
    ),
    "float32": _Rates(
        1.7e5, of_128=0.96, two_groups=0.93, of_64=0.94, of_32=0.73, of_16=0.44, loaded=7.8e4, step_us=0.68
    ),
    "float64": _Rates(
        1.35e5, of_128=1.0, two_groups=1.0, of_64=0.95, of_32=0.85, of_16=0.51, loaded=8.0e4, step_us=0.4
    ),
}  # fmt: skip
# for the kernel with tensor copies (benchmarks/fit_matmul.py), and beside a loop with more slices (docs/experiments.md)
_PREFERENCE, _PREFERENCE_OVER_SLICES = 2.0, 1.5
_MEMORY = 3.0e6  # bytes that the GPU reads or writes in 1 us
_LAUNCH_US = 3.0  # of the kernel that adds the products of a batch

_COPY_US = 4.0  # of a copy's launch, on the GPU and on the host
_COPIED = 2.0e6  # bytes that a copy reads or writes in 1 us
# of a thread that loads the elements of 16 bytes one by one, fitted on an H100; the times were not kept
_VECTOR_US = 0.55
_MOST_COPY_BYTES = 2**31  # of a matrix, because strides have 32 bits


# ---- the choice


def choose_matmul(
    problem: MatmulProblem,
    arch: int,
    multiprocessors: int,
    records: Mapping[ShapeBucket, MeasuredConfigs] | None = None,
    *,
    gpu: str = "",
    pipeline: PipelineOverrides | Rejected | None = None,
) -> MatmulAnswer:
    """The measured configuration of the problem's shape bucket, or else that of the loop with the least estimated time,
    or of the kernel with tensor copies if estimates prefer it. Operands of loops are copied where that saves time.

    Args:
        pipeline: What a setting fixes of the loop's pipeline, or the reason why loops have no stages; None if the
            launch may fix it.
    """
    known = (records or {}).get(problem.bucket, MeasuredConfigs())
    best, loop = (_fitting(problem, one, arch, pipeline) for one in (known.best, known.loop))
    config = best or loop or _best_loop(problem, arch, multiprocessors)
    if not config.tensor_copies:
        config = _with_copies(problem, config, arch, multiprocessors)
    decided_by: DecidedBy = "record" if best or loop else "heuristic"
    return answer_of(
        problem, config, arch, multiprocessors,
        gpu=gpu, pipeline=pipeline, decided_by=decided_by, by_estimate=best is None,
    )  # fmt: skip


def _best_loop(problem: MatmulProblem, arch: int, multiprocessors: int) -> MatmulConfig:
    """The configuration of the loop with the least estimated time."""
    return min(candidates(problem, arch, multiprocessors), key=lambda one: _order(problem, one, arch, multiprocessors))


def answer_of(
    problem: MatmulProblem,
    config: MatmulConfig,
    arch: int,
    multiprocessors: int,
    *,
    gpu: str = "",
    pipeline: PipelineOverrides | Rejected | None = None,
    decided_by: DecidedBy = "search",
    by_estimate: bool = False,
) -> MatmulAnswer:
    """The answer with a given configuration. See :func:`choose_matmul`.

    Args:
        by_estimate: True if the configuration is that of the best loop, and estimates choose between this loop and the
            kernel with tensor copies.

    Raises:
        ValueError: The configuration is a launch of the kernel, which cannot compute the product.
    """
    found = kernel_of(problem, config, arch, multiprocessors, pipeline, by_estimate=by_estimate)
    kernel, slices = (found, NO_WORK) if isinstance(found, Rejected) else found
    if config.tensor_copies:
        if isinstance(found, Rejected):
            raise ValueError(f"no kernel with tensor copies for {problem.describe()}: {found}")
        config = _best_loop(problem, arch, multiprocessors)
    elif by_estimate and not isinstance(found, Rejected):
        decided_by = "heuristic"
    fixed = _pipeline(problem, config, arch, multiprocessors) if pipeline is None else AUTO
    loop = pipeline if isinstance(pipeline, Rejected) else loop_of(problem, config, arch, pipeline or fixed)
    if isinstance(kernel, TensorKernel):
        resources = kernel.shared_bytes, REGISTERS, 1
    elif isinstance(loop, LoopAnswer):
        resources = loop.loop.shared_bytes, loop.loop.registers, loop.loop.blocks
    else:
        dynamic = shared_bytes(problem, config) - static_shared_bytes(config.threads)
        resources = dynamic, 0, blocks_per_multiprocessor(problem, config, arch)
    who: DecidedBy = "setting" if isinstance(pipeline, PipelineOverrides) else decided_by
    return MatmulAnswer(problem, config, who, fixed, loop, *resources, gpu, kernel, slices)


@rejectable
def kernel_of(
    problem: MatmulProblem,
    config: MatmulConfig,
    arch: int,
    multiprocessors: int,
    pipeline: PipelineOverrides | Rejected | None = None,
    *,
    by_estimate: bool = True,
) -> tuple[TensorKernel, Slices]:
    """The kernel with tensor copies that computes a product, and its slices, or the reason why a loop does.

    The configuration decides, or the estimated times. A loop may have more slices of K, which pays if tiles are few and
    K is long.
    """
    accepted(problem_of_kernel(problem, arch, pipeline))
    refuse(not (config.tensor_copies or by_estimate), "loop_configured")
    launches = kernel_launches(problem, multiprocessors)
    if config.tensor_copies:
        _, kernel, slices = min(launches, key=lambda launch: _distance(config, *launch[1:]))
        return kernel, slices
    time_us, kernel, slices = launches[0]
    factor = _PREFERENCE if config.split_k <= slices.count else _PREFERENCE_OVER_SLICES
    refuse(factor * cost_us(problem, config, arch, multiprocessors) < time_us, "loop_faster", factor)
    return kernel, slices


def _distance(config: MatmulConfig, kernel: TensorKernel, slices: Slices) -> tuple[int, int]:
    """How much a launch differs from a measured one, whose tile a product with a function may not have."""
    tile = abs(kernel.tile_m - config.tile_m) + abs(kernel.tile_n - config.tile_n)
    return tile, abs(slices.count - config.split_k)


def loop_of(
    problem: MatmulProblem, config: MatmulConfig, arch: int, overrides: PipelineOverrides = AUTO
) -> LoopAnswer | Rejected:
    """The pipeline of the loop of a product's kernel, or the reason why it has no stages."""
    m, n, k = config.tile
    a = dense_operand(problem.a, m, k, transposed=problem.a_transposed)
    b = dense_operand(problem.b, k, n, transposed=problem.b_transposed)
    c = dense_operand(problem.accumulator, m, n)
    precision: Literal["tf32", "default"] = "tf32" if problem.tf32 and arch >= TF32_MIN_ARCH else "default"
    forward = GemmProblem(m, n, k, a, b, c, precision, config.threads, arch)
    second = {"a": ("rest", "b"), "b": ("a", "rest")}.get(problem.split_operand or "")
    products = [(forward, tiles) for tiles in (("a", "b"), second) if tiles is not None]
    sizes = {"a": m * k * DTYPE_BYTES[problem.a], "b": k * n * DTYPE_BYTES[problem.b]}
    loaded = [*sizes.values(), *([sizes[problem.split_operand]] if problem.split_operand else [])]
    tile_bytes = sum(loaded) + m * n * DTYPE_BYTES[problem.accumulator]
    tile_bytes += n * DTYPE_BYTES[problem.bias] if problem.bias and not problem.summed else 0
    stage_bytes = sum(-(-size // STAGE_ALIGNMENT) * STAGE_ALIGNMENT for size in loaded)
    question = loop_question(
        products,
        ("wgmma", "mma"),
        LoopMemory(stage_bytes, tile_bytes, tile_bytes),
        arrays=(0,) * len(products),
    )
    return question.answer_alone(overrides)


def _fitting(
    problem: MatmulProblem, measured: MatmulConfig | None, arch: int, pipeline: PipelineOverrides | Rejected | None
) -> MatmulConfig | None:
    """A configuration that was measured for another product of the problem's bucket, if it fits this one."""
    if measured is None or problem.summed:
        return None
    if measured.tensor_copies:
        return None if problem_of_kernel(problem, arch, pipeline) else measured
    if _spills(problem, measured):
        return None
    if problem.split_operand:
        measured = replace(measured, tile_k=measured.tile_k // 2)
    if shared_bytes(problem, measured) > multiprocessor(arch).block_shared_bytes:
        return None
    return replace(measured, split_k=min(measured.split_k, _most_slices(problem, measured.tile_k)))


def _order(problem: MatmulProblem, config: MatmulConfig, arch: int, multiprocessors: int) -> tuple[float, bool]:
    """The least is the best: the estimated time and, of equal ones, whether wgmma cannot compute C itself.

    It computes the transpose then, if at all, whose 16-bit results pass through shared memory before they are stored.
    """
    has_other_rows = problem.kind == "float16" and config.tile_m % _WGMMA_ROWS != 0
    return cost_us(problem, config, arch, multiprocessors), has_other_rows


def _pipeline(problem: MatmulProblem, config: MatmulConfig, arch: int, multiprocessors: int) -> PipelineOverrides:
    """What a launch fixes of its loop's pipeline.

    If few blocks share a multiprocessor, their stages may use the memory that further blocks would have used, because
    no other block hides the latency of loads. float32 keeps the choice between stages and double buffers. Many blocks
    with few steps have fewer stages, so that more of them are resident, and some start and end while others multiply.
    On an H100, 64x128x64 tiles of 16-bit products with K of 128 to 424 were 1.04 to 1.24 times as fast with three
    stages. On an H200, 64x64x16 tiles of float32 products with K of 32 to 128 were 1.00 to 1.06 times as fast (not on
    record).
    """
    count, resident = _blocks_each(problem, config, multiprocessors), blocks_per_multiprocessor(problem, config, arch)
    if resident == 1:  # its loop has all the stages that fit in any case
        return AUTO
    if count <= min(_FEW_BLOCKS, resident) and problem.kind != "float32":
        return PipelineOverrides(blocks=max(1, count))
    if problem.kind == "float32":
        is_short = has_wgmma(arch) and config.tile == _SHORT_TILE
    else:
        is_wgmma = problem.kind == "float16" and problem.has_wgmma(arch) and config.tile_m % _WGMMA_ROWS == 0
        is_short = is_wgmma and config.tile_k * DTYPE_BYTES[problem.a] >= _LONG_STEP_BYTES
    steps = _steps(problem, config)
    return PipelineOverrides(stages=min(steps + 1, _SHORT_STAGES)) if is_short and 0 < steps <= _SHORT_STEPS else AUTO


# ---- candidates


def candidates(problem: MatmulProblem, arch: int, multiprocessors: int) -> Iterator[MatmulConfig]:
    """All configurations whose tiles fit shared memory, each with useful numbers of slices. There is always one."""
    for config in _tiles(problem):
        if config.tile_k > _SHAPES[problem.kind][2] and not _may_be_deep(problem, config, arch, multiprocessors):
            continue
        is_short = problem.kind == "float32" and config.tile == _SHORT_TILE
        if (is_short or _is_large_float64(problem, config)) and (not has_wgmma(arch) or _spills(problem, config)):
            continue  # measured on sm_90 alone
        if shared_bytes(problem, config) <= multiprocessor(arch).block_shared_bytes:
            rows = min(_ceil(problem.m, config.tile_m), GROUP_ROWS // config.tile_m)
            blocks, most = blocks_of(problem, config), _most_slices(problem, config.tile_k)
            # about one, two or four blocks for each multiprocessor
            slices = {1, *(min(most, multiprocessors * share // blocks) for share in (1, 2, 4))}
            for count in sorted(slices - {0}):
                yield replace(config, group=max(1, rows), split_k=count)


def _may_be_deep(problem: MatmulProblem, config: MatmulConfig, arch: int, multiprocessors: int) -> bool:
    """True if a step that is deeper than that of large tiles was measured.

    16-bit tiles of up to 64x64 may have twice the usual depth, and those of tf32 and float64 if blocks are few. Larger
    tiles, and four times the depth, need few blocks and wgmma. A loop with half the steps waits half as often
    (docs/experiments.md).
    """
    is_few = _blocks_each(problem, config, multiprocessors) <= _FEW_BLOCKS
    if max(config.tile_m, config.tile_n) > _DEEP_SIDE or config.tile_k > 2 * _SHAPES[problem.kind][2]:
        is_wgmma = config.tile_m % _WGMMA_ROWS == 0 or config.tile_n % _WGMMA_ROWS == 0
        return is_few and is_wgmma and problem.has_wgmma(arch)
    has_memory = multiprocessor(arch).shared_bytes >= _DEEP_STEP_BYTES
    return has_memory and (is_few or problem.kind == "float16")


def _is_large_float64(problem: MatmulProblem, config: MatmulConfig) -> bool:
    """True for the tiles of float64 whose blocks have 256 threads."""
    return problem.kind == "float64" and (config.tile_m, config.tile_n) in _SHAPES["float64"][1]


def _spills(problem: MatmulProblem, config: MatmulConfig) -> bool:
    """True if a block's registers do not suffice beside Warp's loop over tiles."""
    return problem.always_loops and _is_large_float64(problem, config)


def _tiles(problem: MatmulProblem) -> Iterator[MatmulConfig]:
    """Tiles and threads for the types of a product. A side is at most the next one above the matrix's side."""
    kind = problem.kind
    sides, larger, most, many = _SHAPES[kind]
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
        yield MatmulConfig(tile_m, tile_n, step, threads)
        has_stages = kind != "float32" and (kind != "tf32" or tile > 32 * 32)  # with twice the depth
        if threads == 128 and has_stages and step == most:
            for factor in _depth_factors(kind, tile_m, tile_n):
                if factor * step < 2 * problem.k:  # half of this depth does not cover K
                    yield MatmulConfig(tile_m, tile_n, factor * step, threads)
        is_short = kind == "float32" and problem.k <= _SHORT_STEPS * _SHORT_TILE[2]
        if is_short and (tile_m, tile_n) == _SHORT_TILE[:2] and step == most:
            yield MatmulConfig(*_SHORT_TILE, threads)
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


def _most_slices(problem: MatmulProblem, tile_k: int) -> int:
    return max(1, min(_SLICES, _ceil(problem.k, tile_k) // _SLICE_STEPS))


# ---- blocks and their memory


def shared_bytes(problem: MatmulProblem, config: MatmulConfig) -> int:
    """Shared memory of a block in bytes, static and dynamic: the tiles of A, B and C, a bias, and Warp's headers."""
    a = config.tile_m * config.tile_k * DTYPE_BYTES[problem.a] * (1 + (problem.split_operand == "a"))
    b = config.tile_n * config.tile_k * DTYPE_BYTES[problem.b] * (1 + (problem.split_operand == "b"))
    return a + b + config.tile_m * config.tile_n * DTYPE_BYTES[problem.accumulator] + _MARGIN_BYTES


def blocks_per_multiprocessor(problem: MatmulProblem, config: MatmulConfig, arch: int) -> int:
    """Blocks that one multiprocessor runs at a time, as far as shared memory and threads decide."""
    dynamic = shared_bytes(problem, config) - static_shared_bytes(config.threads)
    return max(1, resident_blocks(arch, config.threads, shared_bytes=dynamic))


def blocks_of(problem: MatmulProblem, config: MatmulConfig) -> int:
    """The number of blocks, of one for each tile and slice."""
    tiles = _ceil(problem.m, config.tile_m) * _ceil(problem.n, config.tile_n)
    return tiles * config.split_k * problem.batch


def _blocks_each(problem: MatmulProblem, config: MatmulConfig, multiprocessors: int) -> int:
    """Blocks of one multiprocessor."""
    return _ceil(blocks_of(problem, config), multiprocessors)


def _steps(problem: MatmulProblem, config: MatmulConfig) -> int:
    """Steps of a block's loop."""
    return _ceil(_ceil(problem.k, config.tile_k), config.split_k)


def _ceil(size: int, part: int) -> int:
    return -(-size // part)


# ---- estimated times


def cost_us(problem: MatmulProblem, config: MatmulConfig, arch: int, multiprocessors: int) -> float:
    """Estimated time in microseconds. It orders candidates, and decides against the kernel with tensor copies.

    A multiprocessor is limited by arithmetic, by the bytes that its blocks load from the L2 cache, and by the latency
    of loads, which its resident blocks share.
    """
    is_tf32_without = problem.tf32 and not problem.has_wgmma(arch)
    rates = _RATES["tf32 without wgmma" if is_tf32_without else problem.kind]
    tile, steps = config.tile_m * config.tile_n, _steps(problem, config)
    depth = steps * config.tile_k
    loaded = depth * (config.tile_m * DTYPE_BYTES[problem.a] + config.tile_n * DTYPE_BYTES[problem.b])
    is_split = config.split_k > 1 or problem.summed
    stored = tile * DTYPE_BYTES[problem.accumulator if is_split else problem.out]
    count, fitting = _blocks_each(problem, config, multiprocessors), blocks_per_multiprocessor(problem, config, arch)
    resident = min(count, fitting)
    waves = _ceil(count, resident)
    # one warpgroup keeps the arithmetic busy with wgmma, which is asynchronous
    full_threads = 128 if problem.has_wgmma(arch) else 256
    rate = rates.products * _tile_factor(rates, config)
    rate *= min(1.0, config.threads / 128, resident * config.threads / full_threads)
    if has_wgmma(arch) and config.tile_m % _WGMMA_ROWS and config.tile_n % _WGMMA_ROWS:
        rate *= rates.without_wgmma
    copies = loaded / max(1, depth) * config.tile_k / (ALIGNED * config.threads)  # of a thread in a step
    time = overlapped(
        count * tile * depth / rate,
        count * loaded / rates.loaded,
        waves * steps * (rates.step_us + copies * rates.copy_us),
        problem.array_bytes / rates.memory,
    )
    stored_in_us = rates.stored_alone if fitting == 1 else rates.stored
    time += waves * rates.start_us + count * (rates.block_us + stored / stored_in_us)
    if problem.summed:
        elements = config.split_k * problem.batch * problem.m * problem.n
        time += _LAUNCH_US + 2 * elements * DTYPE_BYTES[problem.accumulator] / _MEMORY
    elif is_split:  # one block of each tile reads the accumulators of all slices
        time += rates.arrival_us + config.split_k * tile * DTYPE_BYTES[problem.accumulator] / rates.loaded
    return time


def _tile_factor(rates: _Rates, config: MatmulConfig) -> float:
    """The speed of a tile's products in relation to the largest tiles, if enough threads are resident."""
    small = min(config.tile_m, config.tile_n)
    if small < 128:
        return rates.of_64 if small >= 64 else rates.of_32 if small >= 32 else rates.of_16
    if config.tile_m == config.tile_n == 128:
        return rates.two_groups if config.threads == 256 else rates.of_128
    return 1.0


# ---- copies of operands whose lines are not aligned


def _with_copies(problem: MatmulProblem, config: MatmulConfig, arch: int, multiprocessors: int) -> MatmulConfig:
    """The configuration with a copy of each operand for which it saves time."""
    whole, first = (cost_us(replace(problem, k=k), config, arch, multiprocessors) for k in (problem.k, 1))
    waves = _ceil(_blocks_each(problem, config, multiprocessors), blocks_per_multiprocessor(problem, config, arch))

    def is_saved(operand: Operand, dtype: DType, side: int) -> bool:
        vectors = waves * _steps(problem, config) * (side * config.tile_k * DTYPE_BYTES[dtype])
        return is_copied(problem, operand, whole - first, vectors / (ALIGNED * config.threads))

    a, b = is_saved("a", problem.a, config.tile_m), is_saved("b", problem.b, config.tile_n)
    return replace(config, copies_a=a, copies_b=b)


def is_copied(problem: MatmulProblem, operand: Operand, steps_us: float, vectors: float) -> bool:
    """True if a copy of an operand with aligned lines takes less time than it saves.

    Args:
        steps_us: Estimated time of the product's loops with aligned operands, in microseconds.
        vectors: Pieces of 16 bytes of the operand that a thread loads, in all blocks that follow one another.
    """
    p, is_a = problem, operand == "a"
    dtype, alignment = (p.a, p.a_alignment) if is_a else (p.b, p.b_alignment)
    if alignment == ALIGNED:
        return False
    size, side = DTYPE_BYTES[dtype], p.m if is_a else p.n
    is_along_k = not p.a_transposed if is_a else p.b_transposed
    lines, length = (side, p.k) if is_along_k else (p.k, side)
    matrix_bytes = lines * _ceil(length * size, ALIGNED) * ALIGNED
    if matrix_bytes >= _MOST_COPY_BYTES:
        return False
    if size == 4 and not p.tf32 and is_along_k:  # always copied by single elements, to transpose tiles
        saved_us = steps_us if alignment == STRIDED else 0.0
    elif alignment == STRIDED or (size == 2 and alignment < 4):
        saved_us = vectors * _VECTOR_US  # threads wait for them
    else:
        saved_us = steps_us * {2: 1.0, 4: 1.0 if p.tf32 else 0.15, 8: 0.3}[size]
    is_shared = p.a_shared if is_a else p.b_shared
    matrices = 1 if is_shared else p.batch * (1 + (p.split_operand == operand))
    return _COPY_US + 2 * matrices * matrix_bytes / _COPIED < saved_us
