"""The Warp kernels of a product. Each has a Warp module of its own, so that Warp builds only those that are launched.

A constant of a factory is a constant of its kernel, and decides which branch of an ``if`` the kernel has.
"""

# mypy: ignore-errors
# Warp reads annotations as values, so they are not types, and the file does not import them from __future__

import functools
import inspect
import re
from typing import Any

from warp_tiles.gemm.pipeline import AUTO
from warp_tiles.matmul.device_functions import (
    addition_function,
    arrival_function,
    block_number_function,
    prefetch_function,
    quotient_function,
    raster_function,
    types,
)
from warp_tiles.matmul.keys import Epilogue, TileKernel


def forward_only(kernel: Any) -> Any:
    """Turns adjoints off for a kernel's own module, as Warp demands for products of bfloat16. Returns the kernel."""
    import warp as wp

    if kernel.module.options["enable_backward"]:
        wp.set_module_options({"enable_backward": False}, module=kernel.module)
    return kernel


@functools.cache
def always_loops() -> bool:
    """True if Warp is older than 1.19: it writes a loop over tiles into each kernel."""
    import warp as wp

    return "grid_stride" not in inspect.signature(wp.kernel).parameters


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
def tile_kernel(key: TileKernel) -> Any:
    """A kernel of numbers, ``slice_depth``, those of :func:`warp_tiles.matmul.raster.raster_arguments`, ``alpha`` and
    ``beta``, and of arrays: ``A, B, C, Bias, Factor, Sums, Arrived``. Most kernels read only the first arrays, so they
    read fewer lines of the constant cache. A block waits for each line before its first load.

    ``A`` is (batch, m, k) or transposed, ``B`` (batch, k, n) or transposed, ``C`` (batch, m, n). ``Factor`` has one
    element. ``slice_depth`` is the part of k in one slice; elements beyond k are zeros. ``rows`` and ``columns`` count
    the tiles of C. The launch has one dimension: a block for each tile of each slice of each matrix, or fewer ones if
    the kernel is persistent.

    With slices, each block stores its sums in ``Sums``, of shape (batch * rows * columns * slices, tile_m, tile_n), and
    the last block of a tile adds them. ``Arrived`` counts the blocks of each tile; it is zero before and after a
    launch. Without an epilogue, ``C`` is (batch * slices, m, n), and receives the sums of each slice.

    An operand in parts has twice the batch: the first parts of all matrices, and then the second ones.
    """
    import warp as wp

    stored = key.stored
    a_type, b_type, out, bias_type, sums = types(key.a, key.b, stored.out, stored.bias or stored.out, stored.sums)
    TILE_M, TILE_N, TILE_K = key.tile
    SLICES, in_slices, is_split, is_partial = key.slices, key.slices > 1, key.is_split, key.epilogue is None
    a_transposed, b_transposed, tf32 = key.a_transposed, key.b_transposed, key.tf32
    a_in_parts, b_in_parts = key.in_parts == "a", key.in_parts == "b"
    quotient, position, arrive, add = quotient_function(), raster_function(), arrival_function(), addition_function(key)
    prefetch, finish = prefetch_function(stored.out), finish_function(stored)
    is_plain, is_rounded = key.is_plain, key.is_plain and stored.out != key.sums
    reads_c, has_bias, has_factor = stored.has_beta, stored.bias is not None, stored.has_factor

    options = {} if always_loops() else {"grid_stride": key.is_persistent}
    has_one_tile, block_number = not (always_loops() or key.is_persistent), block_number_function()

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
        i, j = position(tile_number, rows, columns, group, of_group, of_height, of_last_height)
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
    kernel = wp.kernel(enable_backward=False, module="unique", **options)(matmul)
    if is_fixed:
        wp.set_module_options({"warp_tiles_main_loop": pipeline}, module=kernel.module)
    return forward_only(kernel)


@functools.cache
def reduce_kernel(epilogue: Epilogue) -> Any:
    """A kernel of ``slices, alpha, beta, Sums, C, Bias, Factor``: adds slices in order and applies the epilogue.

    ``Sums`` is (batch * slices, m, n) and ``C`` (batch, m, n). Each thread computes one element of C.
    """
    import warp as wp

    sums, out, bias_type = types(epilogue.sums, epilogue.out, epilogue.bias or epilogue.out)
    has_beta, has_bias, has_factor = epilogue.has_beta, epilogue.bias is not None, epilogue.has_factor
    finish = finish_function(epilogue)

    @wp.kernel(enable_backward=False, module="unique")
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

    return forward_only(add_slices)
