"""The Warp kernels of a product. Each has a Warp module of its own, so that Warp builds only those that are launched.

A constant of a factory is a constant of its kernel, and decides which branch of an ``if`` the kernel has.
"""

# mypy: ignore-errors
# Warp reads annotations as values, so they are no types, and the file does not import them from __future__

import functools
from typing import Any

from warp_tiles.gemm.dtypes import DType
from warp_tiles.product.keys import Epilogue, TileKernel


def types(*names: DType) -> list[Any]:
    """Warp's scalar types."""
    import warp as wp

    return [getattr(wp, name) for name in names]


def forward_only(kernel: Any) -> Any:
    """Turns adjoints off for a kernel's own module, as Warp demands for products of bfloat16. Returns the kernel."""
    import warp as wp

    if kernel.module.options["enable_backward"]:
        wp.set_module_options({"enable_backward": False}, module=kernel.module)
    return kernel


@functools.cache
def finish_function(epilogue: Epilogue) -> Any:
    """A Warp function that computes an element of C from its sum."""
    import warp as wp

    sums, out, bias_type = types(epilogue.sums, epilogue.out, epilogue.bias or epilogue.out)
    has_beta, has_bias, has_function = epilogue.has_beta, epilogue.bias is not None, epilogue.function is not None
    function = epilogue.function

    def finish(total: sums, alpha: sums, beta: sums, old: out, bias: bias_type):
        value = alpha * total
        if has_beta:
            value += beta * sums(old)
        if has_bias:
            value += sums(bias)
        if has_function:
            value = function(value)
        return out(value)

    if has_function and function.is_builtin():  # Warp's hash of a kernel contains no built-in functions of closures
        finish.__qualname__ += f"_{function.key}"
    return wp.func(finish)


@functools.cache
def raster_function() -> Any:
    """A Warp function of the tile of a block. Consecutive blocks go down the columns of a group, and share loads."""
    import warp as wp

    @wp.func
    def tile_position(number: int, rows: int, columns: int, group: int):
        first = number // (group * columns) * group
        height = wp.min(group, rows - first)
        within = number % (group * columns)
        return first + within % height, within // height

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


@functools.cache
def band_function(key: TileKernel) -> Any:
    """A Warp function that applies the epilogue to some rows of a tile of sums, and stores them in C."""
    import warp as wp

    stored = key.stored
    out, sums = types(stored.out, stored.sums)
    TILE_N, BAND = key.tile[1], key.band
    has_beta = stored.has_beta
    finish = finish_function(stored)

    @wp.func
    def store_band(
        C: wp.array(dtype=out, ndim=2), band: Any, bias: Any, first_row: int, first_column: int, alpha: sums, beta: sums
    ):
        if has_beta:
            old = wp.tile_load(C, shape=(BAND, TILE_N), offset=(first_row, first_column), storage="shared")
        else:
            old = out(0.0)
        result = wp.tile_map(wp.static(finish), band, alpha, beta, old, bias)
        wp.tile_store(C, result, offset=(first_row, first_column))

    return store_band


@functools.cache
def store_function(key: TileKernel) -> Any:
    """A Warp function that stores a tile of sums in C after the epilogue."""
    import warp as wp

    stored = key.stored
    out, bias_type, sums = types(stored.out, stored.bias or stored.out, stored.sums)
    TILE_M, TILE_N, _ = key.tile
    is_plain, has_bias, has_factor = key.is_plain, stored.bias is not None, stored.has_factor
    is_rounded = is_plain and stored.out != key.sums
    BAND = key.band
    store_band = band_function(key)

    @wp.func
    def store(
        C: wp.array(dtype=out, ndim=2),
        c: Any,
        Bias: wp.array(dtype=bias_type, ndim=1),
        Factor: wp.array(dtype=sums, ndim=1),
        i: int,
        j: int,
        alpha: sums,
        beta: sums,
    ):
        if is_rounded:
            wp.tile_store(C, wp.tile_astype(c, dtype=out), offset=(i * TILE_M, j * TILE_N))
        elif is_plain:
            wp.tile_store(C, c, offset=(i * TILE_M, j * TILE_N))
        else:
            if has_bias:
                row = wp.tile_load(Bias, shape=TILE_N, offset=j * TILE_N, storage="shared")
                bias = wp.tile_broadcast(row, shape=(BAND, TILE_N))
            else:
                bias = bias_type(0.0)
            scale = alpha
            if has_factor:
                scale = alpha * Factor[0]
            last = wp.min(TILE_M, C.shape[0] - i * TILE_M)
            for first in range(0, last, BAND):  # a band at a time needs few registers
                band = wp.tile_view(c, offset=(first, 0), shape=(BAND, TILE_N))
                store_band(C, band, bias, i * TILE_M + first, j * TILE_N, scale, beta)

    return store


@functools.cache
def tile_kernel(key: TileKernel) -> Any:
    """A kernel of arrays ``A, B, C, Bias, Factor, Sums, Arrived`` and numbers ``slice_depth, rows, columns, group,
    alpha, beta``.

    ``A`` is (batch, m, k) or transposed, ``B`` (batch, k, n) or transposed, ``C`` (batch, m, n). ``Factor`` has one
    element. ``slice_depth`` is the part of k in one slice; elements beyond k are zeros. ``rows`` and ``columns`` count
    the tiles of C. The launch has the batch as its first dimension, and a block for each slice of each tile.

    With slices, each block stores its sums in ``Sums``, of shape (batch * rows * columns * slices, tile_m, tile_n), and
    the last block of a tile adds them. ``Arrived`` counts the blocks of each tile; it is zero before and after a
    launch. Without an epilogue, ``C`` is (batch * slices, m, n), and receives the sums of each slice.

    An operand in parts has twice the batch: the first parts of all matrices, and then the second ones.
    """
    import warp as wp

    stored = key.stored
    a_type, b_type, out, bias_type, sums = types(key.a, key.b, stored.out, stored.bias or stored.out, stored.sums)
    TILE_M, TILE_N, TILE_K = key.tile
    SLICES, is_split, is_partial = key.slices, key.is_split, key.epilogue is None
    a_transposed, b_transposed, tf32 = key.a_transposed, key.b_transposed, key.tf32
    a_in_parts, b_in_parts = key.in_parts == "a", key.in_parts == "b"
    position, store, arrive, add = raster_function(), store_function(key), arrival_function(), addition_function(key)

    @wp.kernel(enable_backward=False, module="unique")
    def matmul(
        A: wp.array(dtype=a_type, ndim=3),
        B: wp.array(dtype=b_type, ndim=3),
        C: wp.array(dtype=out, ndim=3),
        Bias: wp.array(dtype=bias_type, ndim=1),
        Factor: wp.array(dtype=sums, ndim=1),
        Sums: wp.array(dtype=sums, ndim=3),
        Arrived: wp.array(dtype=wp.int32, ndim=1),
        slice_depth: int,
        rows: int,
        columns: int,
        group: int,
        alpha: sums,
        beta: sums,
    ):
        z, block = wp.tid()
        part = block // (rows * columns)
        i, j = position(block % (rows * columns), rows, columns, group)
        first = part * slice_depth
        matrix_a = A[z]
        matrix_b = B[z]
        result = z
        if is_partial:
            result = z * SLICES + part
        matrix_c = C[result]
        if a_in_parts:
            rest_of_a = A[z + A.shape[0] // 2]
        if b_in_parts:
            rest_of_b = B[z + B.shape[0] // 2]
        c = wp.tile_zeros(shape=(TILE_M, TILE_N), dtype=sums, storage="shared")
        for step in range(0, slice_depth, TILE_K):  # all blocks have the same steps, so that they are uniform
            k = first + step
            if a_transposed:
                stored_a = wp.tile_load(matrix_a, shape=(TILE_K, TILE_M), offset=(k, i * TILE_M), storage="shared")
                a = wp.tile_transpose(stored_a)
            else:
                a = wp.tile_load(matrix_a, shape=(TILE_M, TILE_K), offset=(i * TILE_M, k), storage="shared")
            if b_transposed:
                stored_b = wp.tile_load(matrix_b, shape=(TILE_N, TILE_K), offset=(j * TILE_N, k), storage="shared")
                b = wp.tile_transpose(stored_b)
            else:
                b = wp.tile_load(matrix_b, shape=(TILE_K, TILE_N), offset=(k, j * TILE_N), storage="shared")
            if a_in_parts:
                if a_transposed:
                    stored_rest = wp.tile_load(
                        rest_of_a, shape=(TILE_K, TILE_M), offset=(k, i * TILE_M), storage="shared"
                    )
                    rest = wp.tile_transpose(stored_rest)
                else:
                    rest = wp.tile_load(rest_of_a, shape=(TILE_M, TILE_K), offset=(i * TILE_M, k), storage="shared")
                wp.tile_matmul(a, b, c)
                wp.tile_matmul(rest, b, c)
            elif b_in_parts:
                if b_transposed:
                    stored_rest = wp.tile_load(
                        rest_of_b, shape=(TILE_N, TILE_K), offset=(j * TILE_N, k), storage="shared"
                    )
                    rest = wp.tile_transpose(stored_rest)
                else:
                    rest = wp.tile_load(rest_of_b, shape=(TILE_K, TILE_N), offset=(k, j * TILE_N), storage="shared")
                wp.tile_matmul(a, b, c)
                wp.tile_matmul(a, rest, c)
            elif tf32:
                wp.tile_matmul(a, b, c, precision="tf32")
            else:
                wp.tile_matmul(a, b, c)
        tile = (z * rows + i) * columns + j
        if is_split:
            wp.tile_store(Sums[tile * SLICES + part], c)
            if arrive(Arrived, tile, SLICES) != 0:
                add(c, Sums, tile * SLICES, SLICES)
                store(matrix_c, c, Bias, Factor, i, j, alpha, beta)
        else:
            store(matrix_c, c, Bias, Factor, i, j, alpha, beta)

    return forward_only(matmul)


@functools.cache
def reduce_kernel(epilogue: Epilogue) -> Any:
    """A kernel of ``Sums, C, Bias, Factor, slices, alpha, beta``: adds slices in order and applies the epilogue.

    ``Sums`` is (batch * slices, m, n) and ``C`` (batch, m, n). Each thread computes one element of C.
    """
    import warp as wp

    sums, out, bias_type = types(epilogue.sums, epilogue.out, epilogue.bias or epilogue.out)
    has_beta, has_bias, has_factor = epilogue.has_beta, epilogue.bias is not None, epilogue.has_factor
    finish = finish_function(epilogue)

    @wp.kernel(enable_backward=False, module="unique")
    def add_slices(
        Sums: wp.array(dtype=sums, ndim=3),
        C: wp.array(dtype=out, ndim=3),
        Bias: wp.array(dtype=bias_type, ndim=1),
        Factor: wp.array(dtype=sums, ndim=1),
        slices: int,
        alpha: sums,
        beta: sums,
    ):
        z, i, j = wp.tid()
        total = sums(0.0)
        for part in range(slices):
            total += Sums[z * slices + part, i, j]
        old = out(0.0)
        if has_beta:
            old = C[z, i, j]
        bias = bias_type(0.0)
        if has_bias:
            bias = Bias[j]
        scale = alpha
        if has_factor:
            scale = alpha * Factor[0]
        C[z, i, j] = finish(total, scale, beta, old, bias)

    return forward_only(add_slices)
