"""Kernels of the backward pass without tiles: gradients of epilogues, sums of columns, scaling."""

# mypy: ignore-errors
# Warp reads annotations as values, so they are no types, and the file does not import them from __future__

import functools
from typing import Any

from warp_tiles.gemm.dtypes import DType
from warp_tiles.product.kernels import forward_only, types


@functools.cache
def gradient_kernel(function: Any, dtype: DType, sums: DType) -> Any:
    """A kernel of ``Before, Gradient, Result, factor``: the gradient before an epilogue, from the one after it.

    ``Before`` are the values that the epilogue gets. All arrays are (batch, m, n).
    """
    import warp as wp

    value, total = types(dtype, sums)

    @wp.kernel(enable_backward=False, module="unique")
    def epilogue_gradient(
        Before: wp.array(dtype=total, ndim=3),
        Gradient: wp.array(dtype=value, ndim=3),
        Result: wp.array(dtype=value, ndim=3),
        factor: total,
    ):
        z, i, j = wp.tid()
        slope = wp.grad(function)(Before[z, i, j])
        Result[z, i, j] = value(factor * slope * total(Gradient[z, i, j]))

    return forward_only(epilogue_gradient)


@functools.cache
def scale_kernel(source: DType, result: DType, sums: DType) -> Any:
    """A kernel of ``Source, Result, factor``: a scaled copy. Both arrays are (batch, m, n)."""
    import warp as wp

    source_type, result_type, total = types(source, result, sums)

    @wp.kernel(enable_backward=False, module="unique")
    def scaled_copy(
        Source: wp.array(dtype=source_type, ndim=3), Result: wp.array(dtype=result_type, ndim=3), factor: total
    ):
        z, i, j = wp.tid()
        Result[z, i, j] = result_type(factor * total(Source[z, i, j]))

    return forward_only(scaled_copy)


@functools.cache
def column_sums_kernel(dtype: DType, sums: DType) -> Any:
    """A kernel of ``Gradient, Sums, height, one``: sums of ``height`` rows.

    ``Gradient`` is (batch, m, n). ``Sums`` is (batch * chunks, 1, n). The launch has a thread for each of its elements.
    """
    import warp as wp

    value, total = types(dtype, sums)

    @wp.kernel(enable_backward=False, module="unique")
    def column_sums(
        Gradient: wp.array(dtype=value, ndim=3), Sums: wp.array(dtype=total, ndim=3), height: int, factor: total
    ):
        z, chunk, j = wp.tid()
        found = total(0.0)
        for i in range(chunk * height, wp.min(Gradient.shape[1], (chunk + 1) * height)):
            found += total(Gradient[z, i, j])
        Sums[z * ((Gradient.shape[1] + height - 1) // height) + chunk, 0, j] = factor * found

    return forward_only(column_sums)
