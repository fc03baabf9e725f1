"""Blocked factorizations, solves and inverses of run-time size, as clients write them. Tests on two machines use them.

``solve_N(A, b, size, U, x)`` factors matrices A = U^T U in blocks of N x N and solves A x = b, with views of one tile
of all right-hand sides. ``invert_N(L, identity, size, X, inverse)`` inverts L L^T by two loops that use the same names
of tiles. ``substitute_N(L, b, size, y)`` solves L y = b for vectors.
"""

import numpy as np

MOST = 64  # rows of a matrix, at most
BLOCKS = (16, 32)
TEXT = """
@wp.func
def factor_and_solve_{n}(
    A: wp.array2d(dtype={t}), b: wp.array2d(dtype={t}), size: int, U: wp.array2d(dtype={t}), x: wp.array2d(dtype={t})
):
    rhs = wp.tile_load(b, shape=({most}, 1), storage="shared")
    for k in range(0, size, {n}):
        end = k + {n}
        rhs_view = wp.tile_view(rhs, shape=({n}, 1), offset=(k, 0))
        diagonal = wp.tile_load(A, shape=({n}, {n}), offset=(k, k), storage="shared")
        for j in range(0, k, {n}):
            u = wp.tile_load(U, shape=({n}, {n}), offset=(j, k), storage="shared")
            wp.tile_matmul(wp.tile_transpose(u), u, diagonal, alpha=-1.0)
            y = wp.tile_view(rhs, shape=({n}, 1), offset=(j, 0))
            wp.tile_matmul(wp.tile_transpose(u), y, rhs_view, alpha=-1.0)
        wp.tile_cholesky_inplace(diagonal, fill_mode="upper")
        wp.tile_store(U, diagonal, offset=(k, k))
        wp.tile_lower_solve_inplace(wp.tile_transpose(diagonal), rhs_view)
        for i in range(end, size, {n}):
            block = wp.tile_load(A, shape=({n}, {n}), offset=(k, i), storage="shared")
            for j in range(0, k, {n}):
                left = wp.tile_load(U, shape=({n}, {n}), offset=(j, k), storage="shared")
                right = wp.tile_load(U, shape=({n}, {n}), offset=(j, i), storage="shared")
                wp.tile_matmul(wp.tile_transpose(left), right, block, alpha=-1.0)
            wp.tile_lower_solve_inplace(wp.tile_transpose(diagonal), block)
            wp.tile_store(U, block, offset=(k, i))
    for i in range(size - {n}, -1, -{n}):
        i_end = i + {n}
        total = wp.tile_view(rhs, shape=({n}, 1), offset=(i, 0))
        for j in range(i_end, size, {n}):
            u_ij = wp.tile_load(U, shape=({n}, {n}), offset=(i, j), storage="shared")
            x_j = wp.tile_view(rhs, shape=({n}, 1), offset=(j, 0))
            wp.tile_matmul(u_ij, x_j, total, alpha=-1.0)
        u_ii = wp.tile_load(U, shape=({n}, {n}), offset=(i, i), storage="shared")
        wp.tile_upper_solve_inplace(u_ii, total)
    wp.tile_store(x, rhs)


@wp.kernel(enable_backward=False)
def solve_{n}(
    A: wp.array3d(dtype={t}), b: wp.array3d(dtype={t}), size: int, U: wp.array3d(dtype={t}), x: wp.array3d(dtype={t})
):
    world = wp.tid()
    factor_and_solve_{n}(A[world], b[world], size, U[world], x[world])


@wp.kernel(enable_backward=False)
def invert_{n}(
    L: wp.array3d(dtype={t}), identity: wp.array2d(dtype={t}), size: int, X: wp.array3d(dtype={t}),
    inverse: wp.array3d(dtype={t})
):
    world = wp.tid()
    for j in range(0, size, {n}):
        for i in range(j, size, {n}):
            block = wp.tile_load(identity, shape=({n}, {n}), offset=(i, j), storage="shared")
            diagonal = wp.tile_load(L[world], shape=({n}, {n}), offset=(i, i), storage="shared")
            for k in range(j, i, {n}):
                left = wp.tile_load(L[world], shape=({n}, {n}), offset=(i, k))
                right = wp.tile_load(X[world], shape=({n}, {n}), offset=(k, j))
                wp.tile_matmul(left, right, block, alpha=-1.0)
            wp.tile_lower_solve_inplace(diagonal, block)
            wp.tile_store(X[world], block, offset=(i, j))
    for i in range(0, size, {n}):
        for j in range(0, size, {n}):
            block = wp.tile_zeros(shape=({n}, {n}), dtype={t}, storage="shared")
            for k in range(wp.max(i, j), size, {n}):
                left = wp.tile_load(X[world], shape=({n}, {n}), offset=(k, i))
                right = wp.tile_load(X[world], shape=({n}, {n}), offset=(k, j))
                wp.tile_matmul(wp.tile_transpose(left), right, block)
            wp.tile_store(inverse[world], block, offset=(i, j))


@wp.kernel(enable_backward=False)
def substitute_{n}(L: wp.array3d(dtype={t}), b: wp.array2d(dtype={t}), size: int, y: wp.array2d(dtype={t})):
    world = wp.tid()
    for i in range(0, size, {n}):
        rhs = wp.tile_load(b[world], shape={n}, offset=i)
        for j in range(0, i, {n}):
            block = wp.tile_load(L[world], shape=({n}, {n}), offset=(i, j))
            known = wp.tile_load(y[world], shape={n}, offset=j)
            product = wp.tile_matmul(block, wp.tile_reshape(known, shape=({n}, 1)))
            rhs -= wp.tile_reshape(product, shape=({n},))
        wp.tile_lower_solve_inplace(wp.tile_load(L[world], shape=({n}, {n}), offset=(i, i)), rhs)
        wp.tile_store(y[world], rhs, offset=i)
"""


def text(dtype: str) -> str:
    """The source of all kernels, after ``import warp as wp``."""
    return "".join(TEXT.format(n=n, t=f"wp.{dtype}", most=MOST) for n in BLOCKS)


def matrices(size: int, count: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Positive definite matrices with one right-hand side each, in arrays of :data:`MOST` rows."""
    random = np.random.default_rng(size)
    a, b = np.zeros((count, MOST, MOST)), np.zeros((count, MOST, 1))
    factors = random.normal(size=(count, size, size))
    a[:, :size, :size] = factors @ factors.swapaxes(1, 2) / size + 2 * np.eye(size)
    b[:, :size] = random.normal(size=(count, size, 1))
    return a.astype(dtype), b.astype(dtype)


def solution(a: np.ndarray, b: np.ndarray, size: int) -> np.ndarray:
    """The solutions in float64, with zeros behind them."""
    x = np.zeros(b.shape)
    x[:, :size] = np.linalg.solve(a[:, :size, :size].astype(np.float64), b[:, :size].astype(np.float64))
    return x
