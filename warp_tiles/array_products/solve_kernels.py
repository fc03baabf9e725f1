"""The Warp kernels of factorizations and solves, of whole matrices in one block, of its tiles in many,
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
        order = _NONE_FAILED
        for first in range(0, ROWS, THREADS):
            j = first + t
            if j < ROWS:  # noqa: SIM102  Warp evaluates both sides of an `and`
                if not (factor[j, j] > value(0.0)):
                    order = wp.min(order, k + j + 1)
        least = wp.tile_min(wp.tile(order))
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


_TAKE = """
#if defined(__CUDA_ARCH__)
    __shared__ int taken;
    if (threadIdx.x == 0) taken = atomicAdd(counters.data, 1);
    __syncthreads();
    const int result = taken;
    __syncthreads();  // the block may take another number
    return result;
#else
    return counters.data[0]++;
#endif
"""


@wp.func_native(_TAKE)
def take_number(counters: wp.array(dtype=wp.int32, ndim=1)) -> int:
    """The next number of a launch. Blocks that run have taken all numbers before, so a block may wait for those."""


_WAIT = """
#if defined(__CUDA_ARCH__)
    __shared__ int seen;
    if (threadIdx.x == 0) {
        int done;
        while ((done = atomicAdd(counters.data + counter, 0)) < least) __nanosleep(32);
        __threadfence();  // acquires what the other blocks have stored
        seen = done;
    }
    __syncthreads();
    const int result = seen;
    __syncthreads();
    return result;
#else
    return counters.data[counter];
#endif
"""


@wp.func_native(_WAIT)
def wait_for(counters: wp.array(dtype=wp.int32, ndim=1), counter: int, least: int) -> int:
    """Waits until a counter has a value, and returns its value."""


_ANNOUNCE = """
#if defined(__CUDA_ARCH__)
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();  // releases what this block has stored
        atomicExch(counters.data + counter, value);
    }
#else
    counters.data[counter] = value;
#endif
"""


@wp.func_native(_ANNOUNCE)
def announce(counters: wp.array(dtype=wp.int32, ndim=1), counter: int, value: int):
    """Sets a counter, for which other blocks wait."""


@functools.cache
def factor_kernel(key: SolveKernel):
    """A kernel of ``n, blocks, batch, A, L, Counters, Info``: a block for each of the blocks x blocks tiles of L.

    Tiles are computed column by column, of all matrices. Counters[0] counts the tiles that were begun, and others, of
    (batch, blocks), the tiles of a row of tiles that are stored. They are zero before. L may be A.
    """
    (value,) = types(key.dtype)
    ROWS, STEP, upper = key.rows, key.step, key.upper
    is_padded, has_info = key.is_padded, key.has_info
    pad, store_info = padding_function(key), first_failure(key)

    @wp.func
    def subtract(
        matrix: wp.array(dtype=value, ndim=2),
        tile: wp.tile[value, ROWS, ROWS],
        row: int,
        column: int,
        first: int,
        last: int,
    ):
        for k in range(first, last, STEP):
            if upper:
                above = wp.tile_load(matrix, shape=(STEP, ROWS), offset=(k, row), storage="shared")
                beside = wp.tile_load(matrix, shape=(STEP, ROWS), offset=(k, column), storage="shared")
                wp.tile_matmul(wp.tile_transpose(beside), above, tile, alpha=-1.0)
            else:
                left = wp.tile_load(matrix, shape=(ROWS, STEP), offset=(row, k), storage="shared")
                right = wp.tile_load(matrix, shape=(ROWS, STEP), offset=(column, k), storage="shared")
                wp.tile_matmul(left, wp.tile_transpose(right), tile, alpha=-1.0)

    def factor_tile(
        n: int,
        blocks: int,
        batch: int,
        A: wp.array(dtype=value, ndim=3),
        L: wp.array(dtype=value, ndim=3),
        Counters: wp.array(dtype=int),
        Info: wp.array(dtype=int),
    ):
        _, t = wp.tid()
        number = take_number(Counters)
        j = number // (batch * blocks)
        z = number // blocks - j * batch
        i = number % blocks
        matrix = L[z]
        row, column = i * ROWS, j * ROWS
        if i < j:
            nothing = wp.tile_zeros(shape=(ROWS, ROWS), dtype=value)
            if upper:
                wp.tile_store(matrix, nothing, offset=(column, row))
            else:
                wp.tile_store(matrix, nothing, offset=(row, column))
        else:
            of_row, of_column = 1 + z * blocks + i, 1 + z * blocks + j
            if upper:
                tile = wp.tile_load(A[z], shape=(ROWS, ROWS), offset=(column, row), storage="shared")
            else:
                tile = wp.tile_load(A[z], shape=(ROWS, ROWS), offset=(row, column), storage="shared")
            ready = wp.min(wait_for(Counters, of_row, 0), wait_for(Counters, of_column, 0))
            ready = wp.min(ready, j)
            subtract(matrix, tile, row, column, 0, ready * ROWS)
            for done in range(ready, j):
                wait_for(Counters, of_row, done + 1)
                wait_for(Counters, of_column, done + 1)
                subtract(matrix, tile, row, column, done * ROWS, done * ROWS + ROWS)
            if i == j:
                if is_padded:
                    pad(tile, n - column, t)
                if upper:
                    wp.tile_cholesky_inplace(tile, fill_mode="upper")
                else:
                    wp.tile_cholesky_inplace(tile)
            else:
                wait_for(Counters, of_column, j + 1)
                diagonal = wp.tile_load(matrix, shape=(ROWS, ROWS), offset=(column, column), storage="shared")
                if upper:
                    wp.tile_lower_solve_inplace(wp.tile_transpose(diagonal), tile)
                else:
                    wp.tile_lower_solve_inplace(diagonal, wp.tile_transpose(tile))
            if upper:
                wp.tile_store(matrix, tile, offset=(column, row))
            else:
                wp.tile_store(matrix, tile, offset=(row, column))
            if has_info:  # noqa: SIM102  a constant of the kernel
                if i == j:  # the next tile of the diagonal reads what this one stores
                    store_info(tile, Info, z, column, t)
            announce(Counters, of_row, j + 1)

    return forward_kernel(factor_tile)


@functools.cache
def substitution_kernel(key: SolveKernel, forward: bool):
    """A kernel of ``n, blocks, batch, strips, L, B, X, Counters``: X of (batch, n, columns) from B, with L, or with L^T
    if not ``forward``. A block computes a tile, of one of the strips of columns.

    Counters[0] counts the tiles that were begun, and others, of (batch, strips), the tiles of a strip that are stored.
    They are zero before. X may be B.
    """
    (value,) = types(key.dtype)
    ROWS, COLUMNS, STEP, upper, is_padded = key.rows, key.columns, key.step, key.upper, key.is_padded
    pad = padding_function(key)
    reads_rows = forward != upper  # memory holds the blocks of the triangle that is multiplied as they are

    @wp.func
    def subtract(
        matrix: wp.array(dtype=value, ndim=2),
        right_sides: wp.array(dtype=value, ndim=2),
        x: wp.tile[value, ROWS, COLUMNS],
        i: int,
        column: int,
        first: int,
        last: int,
    ):
        for k in range(first, last, STEP):
            solved = wp.tile_load(right_sides, shape=(STEP, COLUMNS), offset=(k, column), storage="shared")
            if reads_rows:
                block = wp.tile_load(matrix, shape=(ROWS, STEP), offset=(i, k), storage="shared")
                wp.tile_matmul(block, solved, x, alpha=-1.0)
            else:
                stored = wp.tile_load(matrix, shape=(STEP, ROWS), offset=(k, i), storage="shared")
                wp.tile_matmul(wp.tile_transpose(stored), solved, x, alpha=-1.0)

    def substitute(
        n: int,
        blocks: int,
        batch: int,
        strips: int,
        L: wp.array(dtype=value, ndim=3),
        B: wp.array(dtype=value, ndim=3),
        X: wp.array(dtype=value, ndim=3),
        Counters: wp.array(dtype=int),
    ):
        _, t = wp.tid()
        number = take_number(Counters)
        turn = number // (batch * strips)
        z = number // strips - turn * batch
        strip = number % strips
        matrix = L[z]
        right_sides = X[z]
        column = strip * COLUMNS
        counter = 1 + z * strips + strip
        i = turn * ROWS
        if not forward:
            i = (blocks - 1 - turn) * ROWS
        x = wp.tile_load(B[z], shape=(ROWS, COLUMNS), offset=(i, column), storage="shared")
        diagonal = wp.tile_load(matrix, shape=(ROWS, ROWS), offset=(i, i), storage="shared")
        if is_padded:
            pad(diagonal, n - i, t)
        ready = wp.min(wait_for(Counters, counter, 0), turn)
        if forward:
            subtract(matrix, right_sides, x, i, column, 0, ready * ROWS)
        else:
            subtract(matrix, right_sides, x, i, column, (blocks - ready) * ROWS, blocks * ROWS)
        for known in range(ready, turn):
            wait_for(Counters, counter, known + 1)
            first = known * ROWS
            if not forward:
                first = (blocks - 1 - known) * ROWS
            subtract(matrix, right_sides, x, i, column, first, first + ROWS)
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
        announce(Counters, counter, turn + 1)

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
        element = value(0.0)
        if i >= j:
            element = Source[z, i, j]
            if i == j:
                element = factor * element
            elif folds:
                element += Source[z, j, i]
        if adds:
            if i >= j:
                Result[z, i, j] = Result[z, i, j] + element
        else:
            Result[z, i, j] = element

    return lower_triangle


# ---- one thread for each matrix

_MOST_REGISTERS = 160  # 32-bit ones of a thread for the triangle


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
