"""The chooser of tiles, threads and split-K for :func:`warp_tiles.matmul`. It is pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, Literal

from warp_tiles.gemm.dtypes import DTYPE_BYTES, DType
from warp_tiles.gemm.hardware import (
    LANES,
    RESERVED_SHARED_BYTES,
    RESIDENT_BLOCKS,
    RESIDENT_THREADS,
    block_shared_bytes,
    multiprocessor_shared_bytes,
)
from warp_tiles.heuristics.operand_copies import ALIGNED, OperandLines, is_copied

Operand = Literal["a", "b"]
Tier = tuple[str, str, str, str, int, int, int, int]


@dataclass(frozen=True)
class MatmulProblem:
    """A product of a batch of matrices, as the device computes it.

    Attributes:
        m, n, k: Rows and columns of C, and the elements that are summed.
        batch: The number of matrices.
        a, b, out: Element types.
        a_transposed, b_transposed: True if the operand's columns are contiguous in memory, and not its rows.
        tf32: True for tensor cores that round float32 to tf32.
        summed: True if C is one matrix, the sum over the batch.
        in_parts: The operand that is a sum of two arrays, so that each step of the loop has two products, or None.
        has_beta: True if C is read.
        a_alignment, b_alignment: The largest power of two, up to 16, that divides the addresses of the operand's
            contiguous lines; 0 if none is contiguous.
        a_shared, b_shared: True if all matrices of the batch have the same operand.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a: DType = "float32"
    b: DType = "float32"
    out: DType = "float32"
    a_transposed: bool = False
    b_transposed: bool = False
    tf32: bool = False
    summed: bool = False
    in_parts: Operand | None = None
    has_beta: bool = False
    a_alignment: int = ALIGNED
    b_alignment: int = ALIGNED
    a_shared: bool = False
    b_shared: bool = False

    @property
    def sums(self) -> DType:
        """Element type of the sums."""
        return "float64" if self.a == "float64" else "float32"

    @property
    def layout(self) -> str:
        """The layouts of A and B in the letters of BLAS: ``n``, or ``t`` for a transposed operand."""
        return "nt"[self.a_transposed] + "nt"[self.b_transposed]

    @property
    def tier(self) -> Tier:
        """The entry of a table of measured configurations: types, layout, and sizes rounded to powers of two.

        bfloat16 has the entries of float16, because it has the same instructions and sizes.
        """
        kind, b, out = (
            "float16" if name == "bfloat16" else name for name in ("tf32" if self.tf32 else self.a, self.b, self.out)
        )
        sizes = (round(math.log2(max(1, size))) for size in (self.m, self.n, self.k, self.batch))
        return (kind, b, out, self.layout, *sizes)  # type: ignore[return-value]  # four sizes


@dataclass(frozen=True)
class MatmulConfig:
    """How a product is computed.

    Attributes:
        tile_m, tile_n: Rows and columns of C that one block computes.
        tile_k: Elements of K in one step of its loop.
        threads: Threads of a block.
        split_k: The number of slices of K. Several blocks compute one tile of C, each from one slice.
        group: Blocks with consecutive numbers compute ``group`` rows of tiles column by column, so that the L2 cache
            serves their loads.
        copies_a, copies_b: True if the operand is first copied to lines that are aligned.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    threads: int
    split_k: int = 1
    group: int = 8
    copies_a: bool = False
    copies_b: bool = False

    def to_json(self) -> dict[str, int]:
        """The configuration as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> MatmulConfig:
        """Inverse of :meth:`to_json`."""
        m, n, k, threads, split_k, group = (
            int(values[name]) for name in ("tile_m", "tile_n", "tile_k", "threads", "split_k", "group")
        )
        a, b = (bool(values.get(name, False)) for name in ("copies_a", "copies_b"))  # older records lack them
        return MatmulConfig(m, n, k, threads, split_k, group, a, b)


@dataclass(frozen=True)
class _Rates:
    """Speed of one multiprocessor, fitted to products of random sizes and layouts: float16 to the GPU's times on an H100,
    the others to times of calls on an H200 (not on record).

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
        arrival_us: Time from the last sums of a tile to their addition.
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
_OVERLAP = 3  # limits that take x and y alone take (x^3 + y^3)^(1/3) together
_MEMORY = 3.0e6  # bytes that the GPU reads or writes in 1 us
_LAUNCH_US = 3.0  # of the kernel that adds the products of a batch
_WGMMA_ROWS = 64  # of a tile, that one instruction multiplies
_COPY_BYTES = 16
_SLICES = 64  # at most
_FEW_BLOCKS = 2  # of one multiprocessor
_DEEP_SIDE = 64  # of a tile, at most, whose step may have twice the depth
_DEEP_ARCHS = (80, 90, 100, 103)  # with enough shared memory for several blocks that have such steps
_SLICE_STEPS = 4  # at least, of the loop of one slice
_GROUP_ROWS = 1024  # rows of C that consecutive blocks share
_LEAST_SIDE = 32  # of a tile in a larger matrix
_MARGIN_BYTES = 2048  # shared memory for a bias and for alignment

_CPU_TILE = MatmulConfig(32, 32, 32, 1)


def kind_of(problem: MatmulProblem) -> str:
    """The arithmetic of a product: ``float16`` (bfloat16 included), ``tf32``, ``float32`` or ``float64``."""
    if problem.tf32:
        return "tf32"
    wider = max((problem.a, problem.b), key=DTYPE_BYTES.__getitem__)
    return "float16" if wider == "bfloat16" else wider


def choose_matmul(
    problem: MatmulProblem,
    arch: int | None,
    multiprocessors: int,
    records: Mapping[Tier, MatmulConfig] | None = None,
) -> MatmulConfig:
    """The measured configuration of the problem's tier, or else the one with the least estimated time, with copies of
    operands where they save time.

    Args:
        problem: The product.
        arch: Compute capability, e.g. 90; None for the CPU.
        multiprocessors: Multiprocessors of the GPU.
        records: Measured configurations by tier.
    """
    if arch is None:
        return _CPU_TILE
    config = _without_copies(problem, arch, multiprocessors, records or {})
    whole, first = (cost_us(replace(problem, k=k), config, arch, multiprocessors) for k in (problem.k, 1))
    a, b = _lines(problem)
    return replace(config, copies_a=is_copied(a, whole - first), copies_b=is_copied(b, whole - first))


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


def _without_copies(
    problem: MatmulProblem, arch: int, multiprocessors: int, records: Mapping[Tier, MatmulConfig]
) -> MatmulConfig:
    measured = records.get(problem.tier)
    if measured is not None and problem.in_parts:
        measured = replace(measured, tile_k=measured.tile_k // 2)
    if measured is not None and shared_bytes(problem, measured) <= block_shared_bytes(arch) and not problem.summed:
        return replace(measured, split_k=min(measured.split_k, _most_slices(problem, measured.tile_k)))
    return min(
        candidates(problem, arch, multiprocessors), key=lambda config: cost_us(problem, config, arch, multiprocessors)
    )


def shared_bytes(problem: MatmulProblem, config: MatmulConfig) -> int:
    """Shared memory of a block in bytes: the tiles of A, B and C."""
    a = config.tile_m * config.tile_k * DTYPE_BYTES[problem.a] * (1 + (problem.in_parts == "a"))
    b = config.tile_n * config.tile_k * DTYPE_BYTES[problem.b] * (1 + (problem.in_parts == "b"))
    return a + b + config.tile_m * config.tile_n * DTYPE_BYTES[problem.sums] + _MARGIN_BYTES


def candidates(problem: MatmulProblem, arch: int, multiprocessors: int) -> Iterator[MatmulConfig]:
    """All configurations whose tiles fit shared memory, each with useful numbers of slices. There is always one."""
    for config in _tiles(problem):
        kind, most = kind_of(problem), multiprocessors * (_FEW_BLOCKS if kind_of(problem) != "float16" else math.inf)
        if config.tile_k > _SHAPES[kind][2] and (arch not in _DEEP_ARCHS or blocks_of(problem, config) > most):
            continue
        if shared_bytes(problem, config) <= block_shared_bytes(arch):
            config = replace(config, group=max(1, min(_ceil(problem.m, config.tile_m), _GROUP_ROWS // config.tile_m)))
            for slices in _slice_counts(problem, config, multiprocessors):
                yield replace(config, split_k=slices)


def cost_us(problem: MatmulProblem, config: MatmulConfig, arch: int, multiprocessors: int) -> float:
    """Estimated time in microseconds. It orders candidates; it is no prediction.

    A multiprocessor is limited by arithmetic, by the bytes that its blocks load from the L2 cache, and by the latency
    of loads, which its resident blocks share.
    """
    is_tf32_without = problem.tf32 and not _has_wgmma(problem, arch)
    rates = _RATES["tf32 without wgmma" if is_tf32_without else kind_of(problem)]
    tile = config.tile_m * config.tile_n
    steps = _ceil(_ceil(problem.k, config.tile_k), config.split_k)
    depth = steps * config.tile_k
    loaded = depth * (config.tile_m * DTYPE_BYTES[problem.a] + config.tile_n * DTYPE_BYTES[problem.b])
    is_split = config.split_k > 1 or problem.summed
    stored = tile * DTYPE_BYTES[problem.sums if is_split else problem.out]
    count = _ceil(blocks_of(problem, config), multiprocessors)  # of one multiprocessor
    fitting = _resident(problem, config, arch)
    resident = min(count, fitting)
    turns = _ceil(count, resident)
    rate = _rate(rates, config)
    rate *= min(1.0, config.threads / 128, resident * config.threads / _full_threads(problem, arch))
    if arch == 90 and config.tile_m % _WGMMA_ROWS:
        rate *= rates.without_wgmma
    copies = loaded / max(1, depth) * config.tile_k / (_COPY_BYTES * config.threads)  # of a thread in a step
    limits = (
        count * tile * depth / rate,
        count * loaded / rates.loaded,
        turns * steps * (rates.step_us + copies * rates.copy_us),
        _array_bytes(problem) / rates.memory,
    )
    time = math.pow(sum(math.pow(limit, _OVERLAP) for limit in limits), 1 / _OVERLAP)
    stored_in_us = rates.stored_alone if fitting == 1 else rates.stored
    time += turns * rates.start_us + count * (rates.block_us + stored / stored_in_us)
    if problem.summed:
        elements = config.split_k * problem.batch * problem.m * problem.n
        time += _LAUNCH_US + 2 * elements * DTYPE_BYTES[problem.sums] / _MEMORY
    elif is_split:  # one block of each tile reads the sums of all slices
        time += rates.arrival_us + config.split_k * tile * DTYPE_BYTES[problem.sums] / rates.loaded
    return time


def _array_bytes(problem: MatmulProblem) -> int:
    """Bytes of all matrices."""
    p = problem
    a, b, out = p.m * p.k * DTYPE_BYTES[p.a], p.k * p.n * DTYPE_BYTES[p.b], p.m * p.n * DTYPE_BYTES[p.out]
    return p.batch * out + (1 if p.a_shared else p.batch) * a + (1 if p.b_shared else p.batch) * b


def _rate(rates: _Rates, config: MatmulConfig) -> float:
    """Multiplications in 1 us, if enough threads are resident."""
    small = min(config.tile_m, config.tile_n)
    rate = rates.products
    if small < 128:
        rate *= rates.of_64 if small >= 64 else rates.of_32 if small >= 32 else rates.of_16
    elif config.tile_m == config.tile_n == 128:
        rate *= rates.two_groups if config.threads == 256 else rates.of_128
    return rate


def _full_threads(problem: MatmulProblem, arch: int) -> int:
    """Threads that keep a multiprocessor's arithmetic busy. One warpgroup does with wgmma, which is asynchronous."""
    return 128 if _has_wgmma(problem, arch) else 256


def _has_wgmma(problem: MatmulProblem, arch: int) -> bool:
    kind = kind_of(problem)
    return arch == 90 and (kind == "float16" or (kind == "tf32" and problem.layout != "tn"))


def _resident(problem: MatmulProblem, config: MatmulConfig, arch: int) -> int:
    """Blocks that one multiprocessor runs at a time, as far as shared memory and threads decide."""
    by_memory = _fitting(shared_bytes(problem, config), arch)
    return max(1, min(by_memory, RESIDENT_THREADS // config.threads, RESIDENT_BLOCKS))


def _fitting(shared: int, arch: int) -> int:
    """Blocks with so many bytes of shared memory that one multiprocessor has room for."""
    return multiprocessor_shared_bytes(arch) // (shared + RESERVED_SHARED_BYTES)


def blocks_of(problem: MatmulProblem, config: MatmulConfig) -> int:
    """The number of blocks."""
    tiles = _ceil(problem.m, config.tile_m) * _ceil(problem.n, config.tile_n)
    return tiles * config.split_k * problem.batch


def most_blocks(problem: MatmulProblem, config: MatmulConfig, arch: int | None, multiprocessors: int) -> int:
    """The number of blocks to launch, at most; 0 for a block for each tile and slice.

    A multiprocessor that has room for one block starts no other one. Its block can compute several tiles instead. On
    an H200 that saved 0.5 to 4 % for 16-bit operands. It cost 2 to 3 % for float32, and up to 10 % with tiles at edges,
    whose blocks take longer (not on record).
    """
    has_edges = problem.m % config.tile_m or problem.n % config.tile_n
    if arch is None or kind_of(problem) != "float16" or has_edges or config.split_k > 1:
        return 0
    return multiprocessors if _resident(problem, config, arch) == 1 else 0


def few_blocks(problem: MatmulProblem, config: MatmulConfig, arch: int | None, multiprocessors: int) -> int:
    """The blocks of one multiprocessor, if they are so few that stages should take the memory of others; else 0.

    Loads of such a launch wait for the latency of memory, because no other block has work meanwhile.
    """
    count = _ceil(blocks_of(problem, config), multiprocessors)
    return count if arch is not None and count <= min(_FEW_BLOCKS, _resident(problem, config, arch)) else 0


# sides of tiles, larger tiles, elements of K in a step, elements of a tile from which a block has 256 threads: for
# float64 none, as they would have too few registers
_SHAPES: dict[str, tuple[Sequence[int], Sequence[tuple[int, int]], int, int]] = {
    "float16": ((16, 32, 64, 128), ((128, 256), (256, 128)), 64, 128 * 256),
    "tf32": ((16, 32, 64, 128), ((256, 128), (128, 256)), 32, 128 * 256),
    "float32": ((16, 32, 64, 128), ((128, 256), (256, 128)), 32, 128 * 128),
    "float64": ((16, 32, 64), (), 16, 128 * 128),
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
        step = min(step // (2 if problem.in_parts else 1), max(16, 16 * _ceil(problem.k, 16)))
        threads = 256 if tile >= many else 128 if tile >= 1024 else 64 if tile >= 512 else LANES
        yield MatmulConfig(tile_m, tile_n, step, threads)
        if threads == 128 and max(tile_m, tile_n) <= _DEEP_SIDE and kind != "float32" and step == most < problem.k:
            yield MatmulConfig(tile_m, tile_n, 2 * step, threads)  # half the steps
        if kind == "float32" and tile == many:
            yield MatmulConfig(tile_m, tile_n, max(16, step // 2), 128)
        elif tile == 128 * 128 and threads == 128:
            yield MatmulConfig(tile_m, tile_n, step, 256)


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
    return max(1, min(_SLICES, _ceil(problem.k, tile_k) // _SLICE_STEPS))


def _ceil(size: int, part: int) -> int:
    return -(-size // part)
