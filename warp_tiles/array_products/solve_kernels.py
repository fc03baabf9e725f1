"""The Warp kernels of factorizations and solves, of whole matrices in one block, of panels in many,
and of small matrices in one thread each.

All matrices are positive definite, and all factors lower ones: L of A = L L^T. ``upper`` says that memory holds the
transposes, rows by rows: then kernels load the upper triangle U = L^T. Tiles extend beyond an array whose size is not a
multiple of theirs. There they hold zeros, and the diagonal gets ones, so that a factor of the rest is the identity.
"""

# mypy: ignore-errors
# Warp reads annotations as values, so they are not types, and the file does not import them from __future__

import functools
from dataclasses import dataclass, fields
from pathlib import Path

import warp as wp

from warp_tiles.array_products.kernels import forward_kernel, types
from warp_tiles.gemm.problem import DType

_NONE_FAILED = wp.constant(2**31 - 1)


@dataclass(frozen=True)
class SolveKernel:
    """The constants of a kernel.

    Attributes:
        rows: Rows and columns of a tile of the matrix.
        columns: Columns of a tile of right-hand sides; 0 if the kernel solves nothing.
        step: Elements of a row that an iteration of a loop of products multiplies; 0 without products.
        is_padded: True if tiles extend beyond the matrix.
        has_info: True if the kernel stores whether each matrix is positive definite.
    """

    dtype: DType
    rows: int
    columns: int
    step: int
    threads: int
    upper: bool
    is_padded: bool = True
    has_info: bool = False


@functools.cache
def padding_function(key: SolveKernel):
    """A Warp function that sets the diagonal of a tile to ones from a row on.

    An assignment is a barrier, so all threads assign. Those without an element of the diagonal assign one of the other
    triangle each, which nothing reads: in the last 24 columns of the first rows of at least 40.
    """
    (value,) = types(key.dtype)
    ROWS, THREADS, upper = key.rows, key.threads, key.upper

    @wp.func
    def pad(matrix: wp.tile[value, ROWS, ROWS], row: int, t: int):
        for first in range(row, ROWS, THREADS):
            i = first + t
            j = i
            if i >= ROWS:
                i = t // 24
                j = ROWS - 1 - t % 24
            if upper:
                matrix[j, i] = value(1.0)
            else:
                matrix[i, j] = value(1.0)

    return pad


@functools.cache
def first_failure(key: SolveKernel):
    """A Warp function that stores what LAPACK's potrf returns as ``info``: 0, or the order of the first leading minor
    that is not positive. Its root on the diagonal of the factor is not positive, or NaN."""
    (value,) = types(key.dtype)
    ROWS, THREADS = key.rows, key.threads

    @wp.func
    def store_info(factor: wp.tile[value, ROWS, ROWS], Info: wp.array(dtype=int), z: int, k: int, t: int):
        found = _NONE_FAILED
        for first in range(0, ROWS, THREADS):
            j = first + t
            if j < ROWS:  # noqa: SIM102  Warp evaluates both sides of an `and`
                if not (factor[j, j] > value(0.0)):
                    found = wp.min(found, k + j + 1)
        least = wp.tile_min(wp.tile(found))
        failed = least[0]
        if t == 0:
            if k == 0:
                Info[z] = 0
            if failed != _NONE_FAILED and Info[z] == 0:
                Info[z] = failed

    return store_info


@functools.cache
def block_kernel(key: SolveKernel, factors: bool, stores: bool, forward: bool, solves: bool):
    """A kernel of ``n, A, L, B, X, Info``: one block for each matrix A of (batch, n, n).

    Args:
        factors: True to factor A; else A is a factor.
        stores: True to store the factor in L.
        forward: With ``solves``, True to solve with L before L^T.
        solves: True to solve with L^T at least: X of (batch, n, columns) from B.
    """
    (value,) = types(key.dtype)
    ROWS, COLUMNS, upper = key.rows, key.columns, key.upper
    is_padded, has_info = key.is_padded, key.has_info
    pad, store_info = padding_function(key), first_failure(key)

    def solve_in_block(
        n: int,
        A: wp.array(dtype=value, ndim=3),
        L: wp.array(dtype=value, ndim=3),
        B: wp.array(dtype=value, ndim=3),
        X: wp.array(dtype=value, ndim=3),
        Info: wp.array(dtype=int),
    ):
        z, t = wp.tid()
        a = wp.tile_load(A[z], shape=(ROWS, ROWS), storage="shared")
        if is_padded:
            pad(a, n, t)
        if factors:
            if upper:
                wp.tile_cholesky_inplace(a, fill_mode="upper")
            else:
                wp.tile_cholesky_inplace(a)
            if has_info:
                store_info(a, Info, z, 0, t)
        if stores:
            wp.tile_store(L[z], a)
        if solves:
            for column in range(0, X.shape[2], COLUMNS):
                x = wp.tile_load(B[z], shape=(ROWS, COLUMNS), offset=(0, column), storage="shared")
                if upper:
                    if forward:
                        wp.tile_lower_solve_inplace(wp.tile_transpose(a), x)
                    wp.tile_upper_solve_inplace(a, x)
                else:
                    if forward:
                        wp.tile_lower_solve_inplace(a, x)
                    wp.tile_upper_solve_inplace(wp.tile_transpose(a), x)
                wp.tile_store(X[z], x, offset=(0, column))

    return forward_kernel(solve_in_block)


@functools.cache
def diagonal_kernel(key: SolveKernel):
    """A kernel of ``n, first, k, L, Info``: factors the block at row k of each matrix, after it has subtracted the
    products of the columns from ``first`` to k. L holds the factor left of column k, and A in the rest."""
    (value,) = types(key.dtype)
    ROWS, STEP, upper = key.rows, key.step, key.upper
    is_padded, has_info = key.is_padded, key.has_info
    pad, store_info = padding_function(key), first_failure(key)

    def factor_diagonal(n: int, first: int, k: int, L: wp.array(dtype=value, ndim=3), Info: wp.array(dtype=int)):
        z, t = wp.tid()
        matrix = L[z]
        diagonal = wp.tile_load(matrix, shape=(ROWS, ROWS), offset=(k, k), storage="shared")
        for j in range(first, k, STEP):
            if upper:
                above = wp.tile_load(matrix, shape=(STEP, ROWS), offset=(j, k), storage="shared")
                beside = wp.tile_load(matrix, shape=(STEP, ROWS), offset=(j, k), storage="shared")
                wp.tile_matmul(wp.tile_transpose(above), beside, diagonal, alpha=-1.0)
            else:
                left = wp.tile_load(matrix, shape=(ROWS, STEP), offset=(k, j), storage="shared")
                right = wp.tile_load(matrix, shape=(ROWS, STEP), offset=(k, j), storage="shared")
                wp.tile_matmul(left, wp.tile_transpose(right), diagonal, alpha=-1.0)
        if is_padded:
            pad(diagonal, n - k, t)
        if upper:
            wp.tile_cholesky_inplace(diagonal, fill_mode="upper")
        else:
            wp.tile_cholesky_inplace(diagonal)
        wp.tile_store(matrix, diagonal, offset=(k, k))
        if has_info:
            store_info(diagonal, Info, z, k, t)

    return forward_kernel(factor_diagonal)


@functools.cache
def panel_kernel(key: SolveKernel):
    """A kernel of ``n, first, k, L``: the blocks of the factor below that of :func:`diagonal_kernel`, one each."""
    (value,) = types(key.dtype)
    ROWS, STEP, upper = key.rows, key.step, key.upper

    def solve_panel(n: int, first: int, k: int, L: wp.array(dtype=value, ndim=3)):
        z, i, _ = wp.tid()
        matrix = L[z]
        row = k + (i + 1) * ROWS
        diagonal = wp.tile_load(matrix, shape=(ROWS, ROWS), offset=(k, k), storage="shared")
        if upper:
            block = wp.tile_load(matrix, shape=(ROWS, ROWS), offset=(k, row), storage="shared")
            for j in range(first, k, STEP):
                above = wp.tile_load(matrix, shape=(STEP, ROWS), offset=(j, k), storage="shared")
                other = wp.tile_load(matrix, shape=(STEP, ROWS), offset=(j, row), storage="shared")
                wp.tile_matmul(wp.tile_transpose(above), other, block, alpha=-1.0)
            wp.tile_lower_solve_inplace(wp.tile_transpose(diagonal), block)
            wp.tile_store(matrix, block, offset=(k, row))
        else:
            below = wp.tile_load(matrix, shape=(ROWS, ROWS), offset=(row, k), storage="shared")
            for j in range(first, k, STEP):
                left = wp.tile_load(matrix, shape=(ROWS, STEP), offset=(row, j), storage="shared")
                right = wp.tile_load(matrix, shape=(ROWS, STEP), offset=(k, j), storage="shared")
                wp.tile_matmul(left, wp.tile_transpose(right), below, alpha=-1.0)
            wp.tile_lower_solve_inplace(diagonal, wp.tile_transpose(below))
            wp.tile_store(matrix, below, offset=(row, k))

    return forward_kernel(solve_panel)


@functools.cache
def substitution_kernel(key: SolveKernel, forward: bool):
    """A kernel of ``n, first, last, L, X``: solves with rows and columns ``first`` to ``last`` of L, or of L^T if not
    ``forward``, in place. One block computes some columns of X, of shape (batch, n, columns)."""
    (value,) = types(key.dtype)
    ROWS, COLUMNS, upper, is_padded = key.rows, key.columns, key.upper, key.is_padded
    pad = padding_function(key)
    reads_rows = forward != upper  # memory holds the blocks of the triangle that is multiplied as they are

    def substitute(n: int, first: int, last: int, L: wp.array(dtype=value, ndim=3), X: wp.array(dtype=value, ndim=3)):
        z, c, t = wp.tid()
        matrix = L[z]
        right_sides = X[z]
        column = c * COLUMNS
        blocks = (last - first + ROWS - 1) // ROWS
        for number in range(blocks):
            i = first + number * ROWS
            start, end = first, i
            if not forward:
                i = first + (blocks - 1 - number) * ROWS
                start, end = i + ROWS, last
            x = wp.tile_load(right_sides, shape=(ROWS, COLUMNS), offset=(i, column), storage="shared")
            for j in range(start, end, ROWS):
                known = wp.tile_load(right_sides, shape=(ROWS, COLUMNS), offset=(j, column), storage="shared")
                if reads_rows:
                    block = wp.tile_load(matrix, shape=(ROWS, ROWS), offset=(i, j), storage="shared")
                    wp.tile_matmul(block, known, x, alpha=-1.0)
                else:
                    stored = wp.tile_load(matrix, shape=(ROWS, ROWS), offset=(j, i), storage="shared")
                    wp.tile_matmul(wp.tile_transpose(stored), known, x, alpha=-1.0)
            diagonal = wp.tile_load(matrix, shape=(ROWS, ROWS), offset=(i, i), storage="shared")
            if is_padded:
                pad(diagonal, n - i, t)
            if forward:
                if upper:
                    wp.tile_lower_solve_inplace(wp.tile_transpose(diagonal), x)
                else:
                    wp.tile_lower_solve_inplace(diagonal, x)
            else:
                if upper:
                    wp.tile_upper_solve_inplace(diagonal, x)
                else:
                    wp.tile_upper_solve_inplace(wp.tile_transpose(diagonal), x)
            wp.tile_store(right_sides, x, offset=(i, column))

    return forward_kernel(substitute)


@functools.cache
def triangle_kernel(dtype: DType, adds: bool, folds: bool = False):
    """A kernel of ``factor, Source, Result``: the lower triangle of each matrix, whose diagonal is scaled.

    Args:
        adds: True to add it to Result; else Result gets zeros above the diagonal.
        folds: True to add the transposed upper triangle to the lower one first.
    """
    (value,) = types(dtype)

    @forward_kernel
    def lower_triangle(factor: value, Source: wp.array(dtype=value, ndim=3), Result: wp.array(dtype=value, ndim=3)):
        z, i, j = wp.tid()
        found = value(0.0)
        if i >= j:
            found = Source[z, i, j]
            if i == j:
                found = factor * found
            elif folds:
                found += Source[z, j, i]
        if adds:
            if i >= j:
                Result[z, i, j] = Result[z, i, j] + found
        else:
            Result[z, i, j] = found

    return lower_triangle


# ---- one thread for each matrix

# For matrices of at most so many rows: from how many on a thread for each is not slower than a block (docs/solves.md).
LEAST_BATCHES = {4: 4_096, 8: 16_384, 12: 32_768, 16: 65_536}
_STRIDED_ROWS, _MOST_COLUMNS = 12, 4
_MOST_REGISTERS = 160  # 32-bit ones of a thread for the triangle
_FEW_BYTES, _MOST_BYTES = 24 << 10, 48 << 10  # of shared memory, for a block of more than a warp, and of one


@dataclass(frozen=True)
class ThreadKernel:
    """The constants of a kernel.

    Attributes:
        columns: Right-hand sides; 0 if the kernel solves nothing.
        threads: Threads of a block, and so its matrices.
        dense: True if the elements of each array follow one another, so that few instructions compute an address.
        in_registers: True if a thread keeps the triangle in registers, else in shared memory.
        factors: True to factor A; else A is a factor.
        stores: True to store the factor in L.
        has_info: True to store whether each matrix is positive definite.
    """

    dtype: DType
    n: int
    columns: int
    threads: int
    dense: bool
    in_registers: bool
    factors: bool
    stores: bool
    forward: bool
    has_info: bool

    @property
    def source(self) -> str:
        constants = {field.name.upper(): getattr(self, field.name) for field in fields(self) if field.name != "dtype"}
        lines = [f"constexpr {type(value).__name__} {name} = {int(value)};" for name, value in constants.items()]
        body = Path(__file__).with_name("thread_solve.cuh").read_text("utf-8")
        return "\n".join([f"using T = wp::{self.dtype};", *lines, "", body])


def _pitch(n: int, columns: int) -> int:
    return n * (n + 1) // 2 + n * columns | 1


def threads_of_block(n: int, columns: int, size_bytes: int, batch: int, dense: bool) -> int:
    """Threads of a block that computes a matrix in each, if elements follow one another; 0 for blocks or panels."""
    least = next((least for rows, least in LEAST_BATCHES.items() if n <= rows), None)
    if least is None or batch < least or columns > _MOST_COLUMNS or (n > _STRIDED_ROWS and not dense):
        return 0
    matrix_bytes = _pitch(n, columns) * size_bytes
    fitting = [threads for threads in (128, 64) if threads * matrix_bytes <= _FEW_BYTES]
    return max(fitting, default=32 if 32 * matrix_bytes <= _MOST_BYTES else 0)


def fits_registers(n: int, size_bytes: int) -> bool:
    """True if the triangle of a matrix fits the registers of a thread."""
    return n * (n + 1) // 2 * size_bytes // 4 <= _MOST_REGISTERS


@functools.cache
def thread_kernel(key: ThreadKernel):
    """A kernel of ``batch, A, L, B, X, Info``, whose lower triangles of A and L count, with any strides.

    A block copies the triangles and right-hand sides of its matrices through shared memory, so that neighbouring
    threads read and write neighbouring elements. What a matrix has there is padded to an odd number of elements, so
    that threads use different banks. The launch has a thread for each matrix, and on a GPU as many more as fill its
    last block. Without a GPU, a block is a matrix.
    """
    (value,) = types(key.dtype)
    has_info = key.has_info

    @wp.func_native(key.source)
    def solve_matrix(
        A: wp.array(dtype=value, ndim=3),
        L: wp.array(dtype=value, ndim=3),
        B: wp.array(dtype=value, ndim=3),
        X: wp.array(dtype=value, ndim=3),
        z: int,
        batch: int,
    ) -> int: ...

    @forward_kernel
    def solve_in_thread(
        batch: int,
        A: wp.array(dtype=value, ndim=3),
        L: wp.array(dtype=value, ndim=3),
        B: wp.array(dtype=value, ndim=3),
        X: wp.array(dtype=value, ndim=3),
        Info: wp.array(dtype=int),
    ):
        z = wp.tid()
        failed = solve_matrix(A, L, B, X, z, batch)
        if has_info:  # noqa: SIM102  a constant decides what is generated
            if z < batch:
                Info[z] = failed

    return solve_in_thread
