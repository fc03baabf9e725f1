// Factors a matrix and solves with it, in one thread: the body of the native function of solve_kernels.thread_kernel(),
// behind its constants. The algorithm is that of Cholesky and Banachiewicz, row by row. All loops over a matrix are unrolled.
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
