"""Warp functions of the kernels of a product that are written in CUDA, and the order of the tiles."""

# mypy: ignore-errors
# Warp reads annotations as values, so they are not types, and the file does not import them from __future__

import functools
from typing import Any

from warp_tiles.gemm.dtypes import DType
from warp_tiles.matmul.keys import TileKernel


def types(*names: DType) -> list[Any]:
    """Warp's scalar types."""
    import warp as wp

    return [getattr(wp, name) for name in names]


_BLOCK_NUMBER = """
#if defined(__CUDA_ARCH__)
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
#else
    return index;
#endif
"""


@functools.cache
def block_number_function() -> Any:
    """A Warp function of a block's number, for kernels in which each block computes one tile.

    It returns its argument, ``wp.tid()``. On a GPU it reads the same number from the block's coordinates. So the
    compiler knows that all threads have the same number, and what follows from it takes fewer registers.
    """
    import warp as wp

    @wp.func_native(_BLOCK_NUMBER)
    def block_number(index: int) -> int: ...

    return block_number


@functools.cache
def quotient_function() -> Any:
    """A Warp function of ``number // divisor`` and the remainder, for a number that is not negative.

    A division takes about a hundred cycles, for which each block would wait before its first load. ``inverse`` is that
    of :func:`warp_tiles.matmul.raster.inverse`; with it, the first quotient is at most one too small.
    """
    import warp as wp

    @wp.func
    def quotient(number: int, divisor: int, inverse: wp.uint32):
        found = int((wp.uint64(wp.uint32(number)) * wp.uint64(inverse)) >> wp.uint64(32))
        rest = number - found * divisor
        if rest >= divisor:
            found += 1
            rest -= divisor
        return found, rest

    return quotient


@functools.cache
def raster_function() -> Any:
    """A Warp function of the tile of a block. Consecutive blocks go down the columns of a group, and share loads."""
    import warp as wp

    quotient = quotient_function()

    @wp.func
    def tile_position(
        number: int,
        rows: int,
        columns: int,
        group: int,
        of_group: wp.uint32,
        of_height: wp.uint32,
        of_last_height: wp.uint32,
    ):
        whole, within = quotient(number, group * columns, of_group)
        first = whole * group
        height = wp.min(group, rows - first)
        column, row = quotient(within, height, wp.where(height == group, of_height, of_last_height))
        return first + row, column

    return tile_position


_ARRIVE = """
#if defined(__CUDA_ARCH__)
    __syncthreads();
    int is_last = 0;
    if (threadIdx.x == 0) {
        __threadfence();  // releases the sums of this block
        is_last = atomicAdd(arrived.data + tile, 1) == slices - 1;
        if (is_last) atomicExch(arrived.data + tile, 0);
        __threadfence();  // acquires the sums of the others
    }
    return __syncthreads_or(is_last);
#else
    arrived.data[tile] = (arrived.data[tile] + 1) % slices;
    return arrived.data[tile] == 0;
#endif
"""


@functools.cache
def arrival_function() -> Any:
    """A Warp function that is not 0 for the last one of the blocks of a tile, and that resets the tile's counter.

    Blocks call it after they stored their sums. This follows ``threadFenceReduction`` of the CUDA samples.
    """
    import warp as wp

    @wp.func_native(_ARRIVE)
    def arrive(arrived: wp.array(dtype=wp.int32, ndim=1), tile: int, slices: int) -> int: ...

    return arrive


_ADD = """
    using Sum = typename tile_c::Type;
    constexpr int WIDTH = 16 / sizeof(Sum), VECTORS = tile_c::Layout::Size / WIDTH;
#if defined(__CUDA_ARCH__)
    constexpr int THREADS = WP_TILE_BLOCK_DIM;
    const int thread = threadIdx.x;
#else
    constexpr int THREADS = 1, thread = 0;
#endif
    constexpr int EACH = (VECTORS + THREADS - 1) / THREADS, AT_ONCE = EACH < 8 ? EACH : 8;  // loads under way
    struct alignas(16) Vector { Sum sums[WIDTH]; };
    const Vector* slice = reinterpret_cast<const Vector*>(Sums.data) + static_cast<long long>(first) * VECTORS;
    Vector* result = reinterpret_cast<Vector*>(c.data.ptr);
    for (int done = 0; done < EACH; done += AT_ONCE) {
        Vector totals[AT_ONCE];
        for (int part = 0; part < slices; ++part) {
            Vector loaded[AT_ONCE];
            for (int i = 0; i < AT_ONCE; ++i) {
                const int vector = (done + i) * THREADS + thread;
                if (vector < VECTORS) loaded[i] = slice[static_cast<long long>(part) * VECTORS + vector];
            }
            for (int i = 0; i < AT_ONCE; ++i)
                for (int j = 0; j < WIDTH; ++j)
                    totals[i].sums[j] = part == 0 ? loaded[i].sums[j] : totals[i].sums[j] + loaded[i].sums[j];
        }
        for (int i = 0; i < AT_ONCE; ++i) {
            const int vector = (done + i) * THREADS + thread;
            if (vector < VECTORS) result[vector] = totals[i];
        }
    }
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
"""


@functools.cache
def addition_function(key: TileKernel) -> Any:
    """A Warp function that sets a shared tile to the sums of its slices, which it adds in order.

    A thread has several loads under way, because too few blocks run to hide their latency.
    """
    import warp as wp

    (sums,) = types(key.sums)
    TILE_M, TILE_N, _ = key.tile

    @wp.func_native(_ADD)
    def sum_slices(c: wp.tile[sums, TILE_M, TILE_N], Sums: wp.array(dtype=sums, ndim=3), first: int, slices: int): ...

    return sum_slices


_PREFETCH = """
#if defined(__CUDA_ARCH__)
    constexpr int LINE = 128;  // bytes
    const auto* const start = reinterpret_cast<const char*>(C.data);
    const long long size = sizeof(*C.data);
    if (C.strides[1] == size) {
        const int lines = (columns * size + LINE - 1) / LINE;
        for (int i = threadIdx.x; i < rows * lines; i += WP_TILE_BLOCK_DIM) {
            const int row = first_row + i / lines;
            const long long column = first_column * size + i % lines * LINE;
            if (row < C.shape[0] && column < C.shape[1] * size)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(start + row * (long long)(C.strides[0]) + column));
        }
    }
#endif
"""


@functools.cache
def prefetch_function(out: DType) -> Any:
    """A Warp function that fetches a tile of C into the L2 cache, and does not wait for it."""
    import warp as wp

    (dtype,) = types(out)

    @wp.func_native(_PREFETCH)
    def prefetch(C: wp.array(dtype=dtype, ndim=2), first_row: int, first_column: int, rows: int, columns: int): ...

    return prefetch
