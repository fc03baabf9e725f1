"""The Warp kernels of a product, the constants that decide them, and their functions in CUDA.

Each kernel has a Warp module of its own, so that Warp builds only those that are launched. A constant of a factory is a
constant of its kernel, and decides which branch of an ``if`` the kernel has.
"""

# mypy: ignore-errors
# Warp reads annotations as values, so they are not types, and the file does not import them from __future__

import functools
import inspect
import re
from dataclasses import dataclass
from typing import Any

import warp as wp

from warp_tiles.gemm.pipeline import AUTO, PipelineOverrides
from warp_tiles.gemm.problem import DType, accumulator_of


@dataclass(frozen=True)
class Epilogue:
    """What follows the sums: C = function(alpha * factor * sums + beta * C + bias), with the element types of each.

    The factor is in an array (``has_factor``), where a kernel stored it, or 1.
    """

    out: DType
    bias: DType | None = None
    has_beta: bool = False
    function: Any = None
    sums: DType = "float32"
    has_factor: bool = False


@dataclass(frozen=True)
class TileKernel:
    """The constants of a kernel with a loop of products. See ``MatmulCall`` and ``MatmulConfig`` for their meaning.

    Attributes:
        tile: Rows and columns of a tile of C, and elements of K in one step.
        epilogue: What follows the loop; None stores the sums of each slice of K in a matrix of its own.
    """

    a: DType
    b: DType
    tile: tuple[int, int, int]
    a_transposed: bool
    b_transposed: bool
    tf32: bool
    epilogue: Epilogue | None
    scaled: bool = True
    slices: int = 1
    split_operand: str | None = None
    main_loop: PipelineOverrides = AUTO

    @property
    def sums(self) -> DType:
        return accumulator_of(self.a)

    @property
    def stored(self) -> Epilogue:
        """What the kernel stores: after the epilogue, or the sums alone."""
        return self.epilogue or Epilogue(self.sums, sums=self.sums)

    @property
    def is_split(self) -> bool:
        return self.slices > 1 and self.epilogue is not None

    @property
    def is_plain(self) -> bool:
        """True if the sums of a tile are only rounded to C's type."""
        last = self.epilogue
        return last is None or (not self.scaled and last == Epilogue(last.out, sums=self.sums))


# ---- functions in CUDA, and the order of the tiles


def types(*names: DType) -> list[Any]:
    """Warp's scalar types."""
    return [getattr(wp, name) for name in names]


_BLOCK_NUMBER = """
#if defined(__CUDA_ARCH__)
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
#else
    return index;
#endif
"""


@wp.func_native(_BLOCK_NUMBER)
def block_number(index: int) -> int:
    """A block's number, for kernels in which each block computes one tile.

    It returns its argument, ``wp.tid()``. On a GPU it reads the same number from the block's coordinates. So the
    compiler knows that all threads have the same number, and what follows from it takes fewer registers.
    """


@wp.func
def quotient(number: int, divisor: int, inverse: wp.uint32):
    """``number // divisor`` and the remainder, for a number that is not negative.

    A division takes about a hundred cycles, for which each block would wait before its first load. ``inverse`` is that
    of :func:`inverse`; with it, the first quotient is at most one too small.
    """
    found = int((wp.uint64(wp.uint32(number)) * wp.uint64(inverse)) >> wp.uint64(32))
    rest = number - found * divisor
    if rest >= divisor:
        found += 1
        rest -= divisor
    return found, rest


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
    """The tile of a block. Consecutive blocks go down the columns of a group, and share loads."""
    whole, within = quotient(number, group * columns, of_group)
    first = whole * group
    height = wp.min(group, rows - first)
    column, row = quotient(within, height, wp.where(height == group, of_height, of_last_height))
    return first + row, column


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


@wp.func_native(_ARRIVE)
def arrive(arrived: wp.array(dtype=wp.int32, ndim=1), tile: int, slices: int) -> int:
    """Not 0 for the last one of the blocks of a tile. It resets the tile's counter.

    Blocks call it after they stored their sums. This follows ``threadFenceReduction`` of the CUDA samples.
    """


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
    (dtype,) = types(out)

    @wp.func_native(_PREFETCH)
    def prefetch(C: wp.array(dtype=dtype, ndim=2), first_row: int, first_column: int, rows: int, columns: int): ...

    return prefetch


def inverse(divisor: int) -> int:
    """2**32 divided by a positive divisor, rounded down, and at most 2**32 - 1.

    For a number below 2**32, the upper 32 bits of its product with the inverse are its quotient, or one less.
    """
    return min(2**32 // divisor, 2**32 - 1)


def raster_arguments(rows: int, columns: int, group: int, slices: int) -> list[int]:
    """The arguments ``rows`` to ``of_last_height`` of :func:`tile_kernel`, for tiles of C in groups of rows."""
    divisors = (rows * columns * slices, rows * columns, group * columns, group, rows % group or group)
    return [rows, columns, group, *map(inverse, divisors)]


# ---- kernels


def forward_kernel(function: Any, **options: Any) -> Any:
    """Makes a kernel in a module of its own, both without adjoints, as Warp demands for products of bfloat16."""
    kernel = wp.kernel(enable_backward=False, module="unique", **options)(function)
    if kernel.module.options["enable_backward"]:
        wp.set_module_options({"enable_backward": False}, module=kernel.module)
    return kernel


@functools.cache
def always_loops() -> bool:
    """True if Warp is older than 1.19: it writes a loop over tiles into each kernel."""
    return "grid_stride" not in inspect.signature(wp.kernel).parameters


@functools.cache
def finish_function(epilogue: Epilogue) -> Any:
    """A Warp function that computes an element of C from its sum."""
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
def function_kernel(function: Any, sums: DType) -> tuple[Any, str]:
    """A kernel that calls a function of one sum, and the function's name in C++. It is only generated."""
    (total,) = types(sums)

    def element(x: total):
        return function(x)

    element.__qualname__ += f"_{function.key}"
    element = wp.func(element)

    @forward_kernel
    def call(values: wp.array(dtype=total)):
        i = wp.tid()
        values[i] = element(values[i])

    # Warp returns the kernel of an equal function, which calls that one
    return call, inspect.getclosurevars(call.func).nonlocals["element"].native_func


@functools.cache
def tile_kernel(key: TileKernel) -> Any:
    """A kernel of numbers, ``slice_depth``, those of :func:`raster_arguments`, ``alpha`` and
    ``beta``, and of arrays: ``A, B, C, Bias, Factor, Sums, Arrived``. Most kernels read only the first arrays, so they
    read fewer lines of the constant cache. A block waits for each line before its first load.

    ``A`` is (batch, m, k) or transposed, ``B`` (batch, k, n) or transposed, ``C`` (batch, m, n). ``Factor`` has one
    element. ``slice_depth`` is the part of k in one slice; elements beyond k are zeros. ``rows`` and ``columns`` count
    the tiles of C. The launch has one dimension: a block for each tile of each slice of each matrix.

    With slices, each block stores its sums in ``Sums``, of shape (batch * rows * columns * slices, tile_m, tile_n), and
    the last block of a tile adds them. ``Arrived`` counts the blocks of each tile; it is zero before and after a
    launch. Without an epilogue, ``C`` is (batch * slices, m, n), and receives the sums of each slice.

    A split operand has twice the batch: the first parts of all matrices, and then the second ones.
    """
    stored = key.stored
    a_type, b_type, out, bias_type, sums = types(key.a, key.b, stored.out, stored.bias or stored.out, stored.sums)
    TILE_M, TILE_N, TILE_K = key.tile
    SLICES, in_slices, is_split, is_partial = key.slices, key.slices > 1, key.is_split, key.epilogue is None
    a_transposed, b_transposed, tf32 = key.a_transposed, key.b_transposed, key.tf32
    a_in_parts, b_in_parts = key.split_operand == "a", key.split_operand == "b"
    add, prefetch, finish = addition_function(key), prefetch_function(stored.out), finish_function(stored)
    is_plain, is_rounded = key.is_plain, key.is_plain and stored.out != key.sums
    reads_c, has_bias, has_factor = stored.has_beta, stored.bias is not None, stored.has_factor

    has_one_tile = not always_loops()
    options = {"grid_stride": False} if has_one_tile else {}

    def matmul(
        slice_depth: int,
        rows: int,
        columns: int,
        group: int,
        of_matrix: wp.uint32,
        of_slice: wp.uint32,
        of_group: wp.uint32,
        of_height: wp.uint32,
        of_last_height: wp.uint32,
        alpha: sums,
        beta: sums,
        A: wp.array(dtype=a_type, ndim=3),
        B: wp.array(dtype=b_type, ndim=3),
        C: wp.array(dtype=out, ndim=3),
        Bias: wp.array(dtype=bias_type, ndim=1),
        Factor: wp.array(dtype=sums, ndim=1),
        Sums: wp.array(dtype=sums, ndim=3),
        Arrived: wp.array(dtype=wp.int32, ndim=1),
    ):
        number = wp.tid()
        if has_one_tile:
            number = block_number(number)
        z, tile_number = quotient(number, rows * columns * SLICES, of_matrix)
        part = 0
        if in_slices:
            part, tile_number = quotient(tile_number, rows * columns, of_slice)
        i, j = tile_position(tile_number, rows, columns, group, of_group, of_height, of_last_height)
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
        first_row, first_column = i * TILE_M, j * TILE_N
        if reads_c:
            prefetch(matrix_c, first_row, first_column, TILE_M, TILE_N)
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
        stores = True
        if is_split:
            tile = (z * rows + i) * columns + j
            wp.tile_store(Sums[tile * SLICES + part], c)
            stores = arrive(Arrived, tile, SLICES) != 0
            if stores:
                add(c, Sums, tile * SLICES, SLICES)
        scale = alpha
        if has_factor:
            scale = alpha * Factor[0]
        if stores:
            if is_rounded:
                wp.tile_store(matrix_c, wp.tile_astype(c, dtype=out), offset=(first_row, first_column))
            elif is_plain:
                wp.tile_store(matrix_c, c, offset=(first_row, first_column))
            else:
                if has_bias:
                    row = wp.tile_load(Bias, shape=TILE_N, offset=j * TILE_N, storage="shared")
                    bias = wp.tile_broadcast(row, shape=(TILE_M, TILE_N))
                else:
                    bias = bias_type(0.0)
                if reads_c:
                    old = wp.tile_load(matrix_c, shape=(TILE_M, TILE_N), offset=(first_row, first_column))
                else:
                    old = out(0.0)
                finished = wp.tile_map(wp.static(finish), c, scale, beta, old, bias)
                wp.tile_store(matrix_c, finished, offset=(first_row, first_column))

    is_fixed, pipeline = key.main_loop != AUTO, key.main_loop.text
    if is_fixed:  # part of the name, because Warp's hash of a kernel contains no options that are set afterwards
        matmul.__qualname__ += "_" + re.sub(r"\W+", "_", pipeline)
    kernel = forward_kernel(matmul, **options)
    if is_fixed:
        wp.set_module_options({"warp_tiles_main_loop": pipeline}, module=kernel.module)
    return kernel


@functools.cache
def reduce_kernel(epilogue: Epilogue) -> Any:
    """A kernel of ``slices, alpha, beta, Sums, C, Bias, Factor``: adds slices in order and applies the epilogue.

    ``Sums`` is (batch * slices, m, n) and ``C`` (batch, m, n). Each thread computes one element of C.
    """
    sums, out, bias_type = types(epilogue.sums, epilogue.out, epilogue.bias or epilogue.out)
    has_beta, has_bias, has_factor = epilogue.has_beta, epilogue.bias is not None, epilogue.has_factor
    finish = finish_function(epilogue)

    @forward_kernel
    def add_slices(
        slices: int,
        alpha: sums,
        beta: sums,
        Sums: wp.array(dtype=sums, ndim=3),
        C: wp.array(dtype=out, ndim=3),
        Bias: wp.array(dtype=bias_type, ndim=1),
        Factor: wp.array(dtype=sums, ndim=1),
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

    return add_slices
