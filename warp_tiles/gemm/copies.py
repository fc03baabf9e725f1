"""Operands of :func:`warp_tiles.matmul` whose lines are not aligned: estimates of their loads and of copies. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

from warp_tiles.gemm.matmul_problem import ALIGNED, KEPT_BYTES, STRIDED, MatmulProblem, Operand
from warp_tiles.gemm.problem import DTYPE_BYTES

_COPY_US = 5.0  # of a copy's launch, on the GPU and on the host
_COPIED = 3.7e6  # bytes that a copy reads or writes in 1 us, also one that transposes
_ALLOCATED = 0.9e6  # bytes of a workspace that is not kept, in 1 us
# of threads that load 2, 4 or 8 bytes at a time, fitted to 90 loops on an H200 (not on record): the time of each, and
# the threads of a multiprocessor that do not wait for each other
_PIECE_US, LOADING_THREADS = 0.049, 384
_MOST_COPY_BYTES = 2**31  # of a matrix, because strides have 32 bits


def unaligned_us(problem: MatmulProblem, operand: Operand, steps_us: float, vectors: float) -> float:
    """Estimated time that a loop takes longer for an operand whose lines are not aligned, and which is not copied.

    Args:
        steps_us: Estimated time of the product's loops with aligned operands, in microseconds.
        vectors: Times 16 bytes of the operand that a thread loads, in all blocks that follow one another.
    """
    p, is_a = problem, operand == "a"
    dtype, alignment = (p.a, p.a_alignment) if is_a else (p.b, p.b_alignment)
    size, is_along_k = DTYPE_BYTES[dtype], not p.a_transposed if is_a else p.b_transposed
    if size == 4 and not p.tf32 and is_along_k:  # always copied by single elements, to transpose tiles
        return steps_us if alignment == STRIDED else 0.0
    if alignment == STRIDED or size == 2 or p.tf32:
        return vectors * ALIGNED / max(alignment, size) * _PIECE_US
    return steps_us * {4: 0.15, 8: 0.3}[size]


def copies_us(
    problem: MatmulProblem,
    operands: Collection[Operand],
    line_bytes: int = ALIGNED,
    transposed: Operand | None = None,
) -> float:
    """Estimated time of copies of operands; infinity if a matrix is too large for one.

    Args:
        line_bytes: Lines of a copy begin at multiples of it. The gaps are neither read nor written.
        transposed: The operand whose copy has its columns as lines, along K.
    """
    moved_bytes = memory_bytes = 0
    for operand in operands:
        copy_bytes = _copy_bytes(problem, operand, line_bytes, operand == transposed)
        if copy_bytes >= _MOST_COPY_BYTES:
            return math.inf
        is_shared = problem.a_shared if operand == "a" else problem.b_shared
        matrices = 1 if is_shared else problem.batch * (1 + (problem.split_operand == operand))
        moved_bytes += matrices * _copy_bytes(problem, operand, ALIGNED, operand == transposed)
        memory_bytes += matrices * copy_bytes
    allocated_us = memory_bytes / _ALLOCATED if memory_bytes > KEPT_BYTES else 0.0
    return len(operands) * _COPY_US + 2 * moved_bytes / _COPIED + allocated_us


def _copy_bytes(problem: MatmulProblem, operand: Operand, line_bytes: int, is_transposed: bool) -> int:
    """The size of a copy of a matrix."""
    p, is_a = problem, operand == "a"
    lines, length = (p.m if is_a else p.n), p.k
    if not is_transposed and (p.a_transposed if is_a else not p.b_transposed):
        lines, length = length, lines
    return lines * -(-length * DTYPE_BYTES[p.a if is_a else p.b] // line_bytes) * line_bytes
