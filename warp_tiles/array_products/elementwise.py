"""Kernels without tiles: copies with aligned lines, gradients of epilogues, sums of columns, scaling."""

# mypy: ignore-errors
# Warp reads annotations as values, so they are not types, and the file does not import them from __future__

import functools
from typing import Any

import warp as wp

from warp_tiles.array_products.kernels import forward_kernel, types
from warp_tiles.gemm.problem import DType, accumulator_of

CHUNK = 128  # rows of a column that one thread reads


@functools.cache
def gradient_kernel(function: Any, dtype: DType) -> Any:
    """A kernel of ``factor, Before, Gradient, Result``: the gradient before an epilogue, from the one after it.

    ``Before`` are the values that the epilogue gets. All arrays are (batch, m, n).
    """
    value, total = types(dtype, accumulator_of(dtype))

    @forward_kernel
    def epilogue_gradient(
        factor: total,
        Before: wp.array(dtype=total, ndim=3),
        Gradient: wp.array(dtype=value, ndim=3),
        Result: wp.array(dtype=value, ndim=3),
    ):
        z, i, j = wp.tid()
        slope = wp.grad(function)(Before[z, i, j])
        Result[z, i, j] = value(factor * slope * total(Gradient[z, i, j]))

    return epilogue_gradient


@functools.cache
def scale_kernel(source: DType, result: DType, adds: bool = False) -> Any:
    """A kernel of ``factor, Source, Result``: a scaled copy, or its sum with Result. Both arrays are (batch, m, n)."""
    source_type, result_type, total = types(source, result, accumulator_of(source))

    @forward_kernel
    def scaled_copy(
        factor: total, Source: wp.array(dtype=source_type, ndim=3), Result: wp.array(dtype=result_type, ndim=3)
    ):
        z, i, j = wp.tid()
        scaled = factor * total(Source[z, i, j])
        if adds:
            scaled += total(Result[z, i, j])
        Result[z, i, j] = result_type(scaled)

    return scaled_copy


@functools.cache
def largest_kernel() -> Any:
    """A kernel of ``height, one, Values, Largest``: the largest finite magnitude.

    ``Values`` is (batch, m, n). ``Largest`` has one element, which is zero at first. The launch has a thread for each
    column of ``height`` rows.
    """

    @forward_kernel
    def largest_magnitude(
        height: int, factor: float, Values: wp.array(dtype=float, ndim=3), Largest: wp.array(dtype=float, ndim=3)
    ):
        z, chunk, j = wp.tid()
        largest = wp.float32(0.0)
        for i in range(chunk * height, wp.min(Values.shape[1], (chunk + 1) * height)):
            value = wp.abs(Values[z, i, j])
            if wp.isfinite(value):
                largest = wp.max(largest, value)
        if largest > Largest[0, 0, 0]:  # few threads find a larger one, so that few wait for each other
            wp.atomic_max(Largest, 0, 0, 0, largest)

    return largest_magnitude


@functools.cache
def parts_kernel(half: DType) -> Any:
    """A kernel of ``batch, one, Values, Largest, Parts, Factor``: float32 as sums of two 16-bit numbers.

    ``Values`` is (batch, m, n). ``Parts`` is (2 * batch, m, n), the rounded values and then what the rounding cut off.
    The values of float16 are multiplied before by a power of two, so that the largest magnitude is at least 2^14 and
    less than 2^15 (less if it is below 2^-112). ``Factor`` gets the inverse. So magnitudes from 2^-18 of the largest
    keep 22 bits or more. Those of bfloat16 have the exponents of float32, and keep 16 bits.
    """
    (value,) = types(half)
    is_scaled = half == "float16"

    @forward_kernel
    def two_parts(
        batch: int,
        factor: float,
        Values: wp.array(dtype=float, ndim=3),
        Largest: wp.array(dtype=float, ndim=3),
        Parts: wp.array(dtype=value, ndim=3),
        Factor: wp.array(dtype=float, ndim=3),
    ):
        z, i, j = wp.tid()
        scaled = Values[z, i, j]
        if is_scaled:
            # exponents as float32 stores them; that of the scale stays in the range of normal numbers
            exponent = wp.clamp(wp.cast(Largest[0, 0, 0], wp.int32) >> 23, 15, 254)
            scaled *= wp.cast((268 - exponent) << 23, wp.float32)
            if z + i + j == 0:
                Factor[0, 0, 0] = wp.cast((exponent - 14) << 23, wp.float32)
        rounded = value(scaled)
        Parts[z, i, j] = rounded
        rest = scaled - float(rounded)
        if not wp.isfinite(float(rounded)):
            rest = wp.float32(0.0)
        Parts[batch + z, i, j] = value(rest)

    return two_parts


@functools.cache
def column_sums_kernel(dtype: DType) -> Any:
    """A kernel of ``height, one, Gradient, Sums``: sums of ``height`` rows.

    ``Gradient`` is (batch, m, n). ``Sums`` is (batch * chunks, 1, n). The launch has a thread for each of its elements.
    """
    value, total = types(dtype, accumulator_of(dtype))

    @forward_kernel
    def column_sums(
        height: int, factor: total, Gradient: wp.array(dtype=value, ndim=3), Sums: wp.array(dtype=total, ndim=3)
    ):
        z, chunk, j = wp.tid()
        column_sum = total(0.0)
        for i in range(chunk * height, wp.min(Gradient.shape[1], (chunk + 1) * height)):
            column_sum += total(Gradient[z, i, j])
        Sums[z * ((Gradient.shape[1] + height - 1) // height) + chunk, 0, j] = factor * column_sum

    return column_sums


_COPY = """
    constexpr int SIZE = sizeof(*Source.data), WIDTH = 16 / SIZE, WORD_BYTES = <word>;
    struct alignas(SIZE) Bits { char bytes[SIZE]; };
    struct alignas(WORD_BYTES) Word { char bytes[WORD_BYTES]; };
    union alignas(16) Vector { Bits elements[WIDTH]; Word words[16 / WORD_BYTES]; };
    const char* const from = reinterpret_cast<const char*>(Source.data) + Source.strides[0] * (long long)(z)
        + Source.strides[1] * (long long)(line);
    char* const to = reinterpret_cast<char*>(Result.data) + Result.strides[0] * (long long)(z)
        + Result.strides[1] * (long long)(line);
    Vector copied = {};
    if (WORD_BYTES > SIZE && (vector + 1) * WIDTH <= Source.shape[2]) {
        for (int i = 0; i < 16 / WORD_BYTES; ++i)
            copied.words[i] = reinterpret_cast<const Word*>(from + 16 * (long long)(vector))[i];
    } else {
        for (int i = 0; i < WIDTH; ++i) {
            const int at = vector * WIDTH + i;
            if (at < Source.shape[2])
                copied.elements[i] = *reinterpret_cast<const Bits*>(from + Source.strides[2] * (long long)(at));
        }
    }
    reinterpret_cast<Vector*>(to)[vector] = copied;
"""


@functools.cache
def padding_kernel(dtype: DType, word: int) -> Any:
    """A kernel of ``Source, Result``, of shape (batch, lines, length).

    Lines of ``Result`` are aligned, and followed by zeros up to a multiple of 16 bytes. The launch has a thread for
    each 16 bytes.

    Args:
        word: Bytes of a load: lines of contiguous elements begin at multiples of them; or an element's.
    """
    (value,) = types(dtype)

    @wp.func_native(_COPY.replace("<word>", str(word)))
    def copy_vector(
        Source: wp.array(dtype=value, ndim=3), Result: wp.array(dtype=value, ndim=3), z: int, line: int, vector: int
    ): ...

    @forward_kernel
    def padded_copy(Source: wp.array(dtype=value, ndim=3), Result: wp.array(dtype=value, ndim=3)):
        z, line, vector = wp.tid()
        copy_vector(Source, Result, z, line, vector)

    return padded_copy


# of four lines and four elements of each; a warp reads 16 lines of 128 bytes, and writes 32 of 64
_TRANSPOSE = """
    struct alignas(16) Vector { float elements[4]; };
    const int lane = thread % 32, first = 16 * part + lane / 8 * 4, along = thread / 32 * 32 + lane % 8 * 4;
    const int lines = Source.shape[1], length = Source.shape[2];
    Vector found[4] = {};
    for (int i = 0; i < 4; ++i) {
        const char* const from = reinterpret_cast<const char*>(Source.data) + Source.strides[0] * (long long)(z)
            + Source.strides[1] * (long long)(first + i) + Source.strides[2] * (long long)(along);
        const bool is_aligned = reinterpret_cast<unsigned long long>(from) % 16 == 0 && Source.strides[2] == 4;
        if (first + i < lines && along + 4 <= length && is_aligned) {
            const Vector read = *reinterpret_cast<const Vector*>(from);
            for (int j = 0; j < 4; ++j)
                found[j].elements[i] = read.elements[j];
        } else if (first + i < lines) {
            for (int j = 0; j < 4; ++j)
                if (along + j < length)
                    found[j].elements[i] = *reinterpret_cast<const float*>(from + Source.strides[2] * (long long)(j));
        }
    }
    for (int j = 0; j < 4; ++j)
        if (first < lines && along + j < length)
            *reinterpret_cast<Vector*>(reinterpret_cast<char*>(Result.data) + Result.strides[0] * (long long)(z)
                + Result.strides[1] * (long long)(along + j) + 4 * (long long)(first)) = found[j];
"""
TRANSPOSED_LINES, TRANSPOSED_LENGTH = 16, 32  # of the part of a warp


@functools.cache
def transposing_kernel() -> Any:
    """A kernel of ``Source, Result``, of shapes (batch, lines, length) and (batch, length, lines), in float32.

    Lines of ``Result`` begin at multiples of 16 bytes, and are followed by zeros up to such a multiple. The launch has
    a thread for each four lines of each four elements.
    """

    @wp.func_native(_TRANSPOSE)
    def transpose_block(
        Source: wp.array(dtype=float, ndim=3), Result: wp.array(dtype=float, ndim=3), z: int, part: int, thread: int
    ): ...

    @forward_kernel
    def transposed_copy(Source: wp.array(dtype=float, ndim=3), Result: wp.array(dtype=float, ndim=3)):
        z, part, thread = wp.tid()
        transpose_block(Source, Result, z, part, thread)

    return transposed_copy
