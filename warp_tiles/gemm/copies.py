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


def copies_us(problem: MatmulProblem, operands: Collection[Operand]) -> float:
    """Estimated time of copies of operands; infinity if a matrix is too large for one."""
    if any(_copy_bytes(problem, operand) >= _MOST_COPY_BYTES for operand in operands):
        return math.inf
    total_bytes = 0
    for operand in operands:
        is_shared = problem.a_shared if operand == "a" else problem.b_shared
        matrices = 1 if is_shared else problem.batch * (1 + (problem.split_operand == operand))
        total_bytes += matrices * _copy_bytes(problem, operand)
    allocated_us = total_bytes / _ALLOCATED if total_bytes > KEPT_BYTES else 0.0
    return len(operands) * _COPY_US + 2 * total_bytes / _COPIED + allocated_us


def _copy_bytes(problem: MatmulProblem, operand: Operand) -> int:
    """The size of a copy of a matrix, without gaps."""
    p, is_a = problem, operand == "a"
    lines, length = (p.m if is_a else p.n), p.k
    if p.a_transposed if is_a else not p.b_transposed:
        lines, length = length, lines
    return lines * -(-length * DTYPE_BYTES[p.a if is_a else p.b] // ALIGNED) * ALIGNED
