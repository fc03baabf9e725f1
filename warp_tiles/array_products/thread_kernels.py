"""The Warp kernel of small matrices in large batches: one thread factors a matrix and solves with it.

A block copies the lower triangles and the right-hand sides of its matrices through shared memory, so that neighbouring
threads read and write neighbouring elements. What a matrix has there is padded to an odd number of elements, so that
its thread and those of other matrices use different banks. Without a GPU, a block is a matrix.
"""

# mypy: ignore-errors
# Warp reads annotations as values, so they are not types, and the file does not import them from __future__

import functools
from dataclasses import dataclass, fields

import warp as wp

from warp_tiles.array_products.kernels import forward_kernel, types
from warp_tiles.gemm.problem import DType

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
        return "\n".join([f"using T = wp::{self.dtype};", *lines, _SOLVE])


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


# The algorithm of Cholesky and Banachiewicz, row by row. All loops over a matrix are unrolled.
_SOLVE = """
    constexpr int TRIANGLE = N * (N + 1) / 2;
    constexpr int PITCH = (TRIANGLE + N * COLUMNS) | 1;
    constexpr T SMALLEST = sizeof(T) == 4 ? 1.17549435e-38 : 2.2250738585072014e-308;  // that is normal
#if defined(__CUDA_ARCH__)
    constexpr int MATRICES = THREADS;
    __shared__ T slab[MATRICES * PITCH];
    const int own = threadIdx.x;
#define UNROLLED _Pragma("unroll")
    const auto read_again = [] {  // else the compiler keeps in registers what it stored in shared memory
        if constexpr (!IN_REGISTERS)
            asm volatile("" ::: "memory");
    };
#else
    constexpr int MATRICES = 1;
    T slab[PITCH];
    const int own = 0;
#define UNROLLED
    const auto read_again = [] {};
#endif
    const long long first = z - own;
    const int matrices = batch - first < MATRICES ? static_cast<int>(batch - first) : MATRICES;

    // calls act(element, matrix, i, j) for the elements of all matrices of the block, as they lie in memory
    const auto visit = [&](const auto& array, const int columns, const auto& act) {
        const bool by_rows = array.strides[1] >= array.strides[2];
        const int elements = N * columns;
#pragma unroll 4
        for (int e = own; e < matrices * elements; e += MATRICES) {
            const int matrix = e / elements, place = e % elements;
            const int i = by_rows ? place / columns : place % N, j = by_rows ? place % columns : place / N;
            T* at = reinterpret_cast<T*>(array.data) + (first * elements + e);
            if constexpr (!DENSE) {
                const long long far = array.strides[0], down = array.strides[1], along = array.strides[2];
                char* const start = reinterpret_cast<char*>(array.data);
                at = reinterpret_cast<T*>(start + (first + matrix) * far + i * down + j * along);
            }
            act(*at, matrix, i, j);
        }
    };
    const auto copy = [](T& to, const T& from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        // https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
        const unsigned place = __cvta_generic_to_shared(&to);
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(&from), "n"(sizeof(T)) : "memory");
#else
        to = from;
#endif
    };
    visit(A, N, [&](const T& from, int matrix, int i, int j) {
        if (j <= i)
            copy(slab[matrix * PITCH + i * (i + 1) / 2 + j], from);
    });
    if constexpr (COLUMNS > 0)
        visit(B, COLUMNS, [&](const T& from, int matrix, int i, int j) {
            copy(slab[matrix * PITCH + TRIANGLE + i * COLUMNS + j], from);
        });
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    __syncthreads();
#endif

    int failed = 0;
    if (own < matrices) {
        T* const matrix = slab + own * PITCH;
        T registers[TRIANGLE];
        T* const l = IN_REGISTERS ? registers : matrix;
        T inverse[N];  // of the diagonal of L
UNROLLED
        for (int i = 0; i < N; ++i) {
            T row[N];
UNROLLED
            for (int j = 0; j <= i; ++j)
                row[j] = matrix[i * (i + 1) / 2 + j];
            if (FACTORS) {
UNROLLED
                for (int j = 0; j < i; ++j) {
UNROLLED
                    for (int k = 0; k < j; ++k)
                        row[j] -= row[k] * l[j * (j + 1) / 2 + k];
                    row[j] *= inverse[j];
                }
                T pivot = row[i];
UNROLLED
                for (int k = 0; k < i; ++k)
                    pivot -= row[k] * row[k];
                if (!(pivot >= SMALLEST) && failed == 0)
                    failed = i + 1;
#if defined(__CUDA_ARCH__)
                inverse[i] = rsqrt(pivot);
#else
                inverse[i] = T(1) / sqrt(pivot);
#endif
                const T root = pivot * inverse[i];
                row[i] = root + T(0.5) * inverse[i] * (pivot - root * root);
            } else {
                inverse[i] = T(1) / row[i];
            }
UNROLLED
            for (int j = 0; j <= i; ++j) {
                l[i * (i + 1) / 2 + j] = row[j];
                if (STORES && IN_REGISTERS)
                    matrix[i * (i + 1) / 2 + j] = row[j];
            }
            read_again();
        }
#pragma unroll 1
        for (int column = 0; column < COLUMNS; ++column) {
            T x[N];
            T* const right_side = matrix + TRIANGLE + column;
UNROLLED
            for (int i = 0; i < N; ++i) {
                x[i] = right_side[i * COLUMNS];
                if (FORWARD) {
UNROLLED
                    for (int k = 0; k < i; ++k)
                        x[i] -= l[i * (i + 1) / 2 + k] * x[k];
                    x[i] *= inverse[i];
                    read_again();
                }
            }
UNROLLED
            for (int i = N - 1; i >= 0; --i) {
UNROLLED
                for (int k = N - 1; k > i; --k)
                    x[i] -= l[k * (k + 1) / 2 + i] * x[k];
                x[i] *= inverse[i];
                right_side[i * COLUMNS] = x[i];
                read_again();
            }
        }
    }

#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
    if constexpr (STORES)
        visit(L, N, [&](T& to, int matrix, int i, int j) {
            to = j <= i ? slab[matrix * PITCH + i * (i + 1) / 2 + j] : T(0);
        });
    if constexpr (COLUMNS > 0)
        visit(X, COLUMNS, [&](T& to, int matrix, int i, int j) {
            to = slab[matrix * PITCH + TRIANGLE + i * COLUMNS + j];
        });
    return failed;
"""


@functools.cache
def thread_kernel(key: ThreadKernel):
    """A kernel of ``batch, A, L, B, X, Info``, whose lower triangles of A and L count, with any strides.

    The launch has a thread for each matrix, and on a GPU as many more as fill its last block.
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
