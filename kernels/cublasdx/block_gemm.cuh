// SPDX-License-Identifier: Apache-2.0
//
// C = alpha * A * B + beta * C on shared-memory tiles. All threads of a block call it.

#pragma once

#include "mma_tile.cuh"

namespace wt {

template <int Bytes> struct Word;
template <> struct Word<2> { using type = unsigned short; };
template <> struct Word<4> { using type = unsigned int; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<16> { using type = uint4; };

template <class Map, class Rows, class Columns, bool Transposed>
__device__ __forceinline__ unsigned matrix_origin(unsigned lane, unsigned row_unit, unsigned column_unit)
{
    constexpr int blocks = Map::matrix_blocks();
    const unsigned line = lane & 7;
    unsigned offset = Map::address(Rows::coordinate(Transposed ? 0 : line, row_unit, 0),
                              Columns::coordinate(Transposed ? line : 0, column_unit, 0));
    if constexpr (blocks > 1) {
        offset += (lane >> 3 & 1) * Map::matrix_stride(1);
    }
    if constexpr (blocks > 2) {
        offset += (lane >> 4 & 1) * Map::matrix_stride(2);
    }
    return offset;
}

template <int Count, bool Transposed>
__device__ __forceinline__ void load_matrix(unsigned (&r)[Count], unsigned address)
{
    if constexpr (Count == 4 && Transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
    } else if constexpr (Count == 4) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
    } else if constexpr (Count == 2 && Transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1]) : "r"(address));
    } else if constexpr (Count == 2) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1]) : "r"(address));
    } else if constexpr (Transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(address));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(address));
    }
}

template <int Count, bool Transposed>
__device__ __forceinline__ void store_matrix(const unsigned (&r)[Count], unsigned address)
{
    if constexpr (Count == 4 && Transposed) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%4], {%0, %1, %2, %3};"
                     :: "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(address) : "memory");
    } else if constexpr (Count == 4) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%4], {%0, %1, %2, %3};"
                     :: "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(address) : "memory");
    } else if constexpr (Count == 2 && Transposed) {
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%2], {%0, %1};"
                     :: "r"(r[0]), "r"(r[1]), "r"(address) : "memory");
    } else if constexpr (Count == 2) {
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%2], {%0, %1};"
                     :: "r"(r[0]), "r"(r[1]), "r"(address) : "memory");
    } else if constexpr (Transposed) {
        asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%1], {%0};" :: "r"(r[0]), "r"(address) : "memory");
    } else {
        asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%1], {%0};" :: "r"(r[0]), "r"(address) : "memory");
    }
}

// The type and the number of registers of one operand of an MMA operation.
template <class Array> struct Registers;
template <class R, int Count> struct Registers<R[Count]> {
    using type = R;
    using sequence = cute::make_int_sequence<Count>;
};

// Copies fragments of one matrix between shared memory and registers.
template <class T, class Map, class Rows, class Columns, bool RowsContiguous, bool MatrixLoad, bool MatrixStore>
struct FragmentCopy {
    static constexpr int width = Map::vector_width();
    using Vector = typename Word<width * int(sizeof(T))>::type;

    T* thread_base;      // address of this thread's elements
    unsigned line_base;  // shared-window address of this lane's ldmatrix line
    unsigned thread_row;
    unsigned thread_column;

    __device__ __forceinline__ FragmentCopy(T* matrix, unsigned lane, unsigned row_unit, unsigned column_unit)
    {
        thread_row = Rows::coordinate(Map::atom_row(lane, 0), row_unit, 0);
        thread_column = Columns::coordinate(Map::atom_column(lane, 0), column_unit, 0);
        thread_base = matrix + Map::address(thread_row, thread_column);
        if constexpr (MatrixLoad || MatrixStore) {
            line_base = unsigned(__cvta_generic_to_shared(matrix))
                      + sizeof(T) * matrix_origin<Map, Rows, Columns, RowsContiguous>(lane, row_unit, column_unit);
        }
    }

    __device__ __forceinline__ bool in_bounds(Element e) const
    {
        return Rows::in_bounds(Map::row(e), thread_row, Map::last_thread_row())
            && Columns::in_bounds(Map::column(e), thread_column, Map::last_thread_column());
    }

    __device__ __forceinline__ void load(T* fragment, int first_column) const
    {
        if constexpr (MatrixLoad) {
            constexpr int count = Map::matrix_blocks();
            unsigned* registers = reinterpret_cast<unsigned*>(fragment);
#pragma unroll
            for (int i = 0; i < Map::size / Map::per_register; i += count) {
                unsigned r[count];
                load_matrix<count, RowsContiguous>(
                    r, line_base + sizeof(T) * Map::offset(Map::matrix_block(i, first_column)));
#pragma unroll
                for (int j = 0; j < count; ++j) {
                    registers[Map::index(Map::matrix_block(i + j, first_column)) / Map::per_register] = r[j];
                }
            }
        } else {
#pragma unroll
            for (int i = 0; i < Map::size; i += width) {
                const Element first = Map::element(i, first_column);
                Vector v = {};
                if (in_bounds(first)) {
                    v = *reinterpret_cast<const Vector*>(thread_base + Map::offset(first));
                }
#pragma unroll
                for (int j = 0; j < width; ++j) {
                    fragment[Map::index(Map::element(i + j, first_column))] = reinterpret_cast<const T*>(&v)[j];
                }
            }
        }
    }

    __device__ __forceinline__ void store(const T* fragment) const
    {
        if constexpr (MatrixStore) {
            constexpr int count = Map::matrix_blocks();
            const unsigned* registers = reinterpret_cast<const unsigned*>(fragment);
#pragma unroll
            for (int i = 0; i < Map::size / Map::per_register; i += count) {
                unsigned r[count];
#pragma unroll
                for (int j = 0; j < count; ++j) {
                    r[j] = registers[Map::index(Map::matrix_block(i + j, 0)) / Map::per_register];
                }
                store_matrix<count, RowsContiguous>(r, line_base + sizeof(T) * Map::offset(Map::matrix_block(i, 0)));
            }
        } else {
#pragma unroll
            for (int i = 0; i < Map::size; i += width) {
                const Element first = Map::element(i, 0);
                Vector v;
#pragma unroll
                for (int j = 0; j < width; ++j) {
                    reinterpret_cast<T*>(&v)[j] = fragment[Map::index(Map::element(i + j, 0))];
                }
                if (in_bounds(first)) {
                    *reinterpret_cast<Vector*>(thread_base + Map::offset(first)) = v;
                }
            }
        }
    }
};

template <class Op, class D, class A, class B, int... Di, int... Ai, int... Bi>
__device__ __forceinline__ void
mma(D* d, const A* a, const B* b, cute::int_sequence<Di...>, cute::int_sequence<Ai...>, cute::int_sequence<Bi...>)
{
    Op::fma(d[Di]..., a[Ai]..., b[Bi]..., d[Di]...);
}

// Returns how many steps of the k loop to unroll. Beyond some hundred operations, more steps only make the
// loop slower to link and to fetch. An even number lets the two stages keep their registers.
constexpr int k_unroll(int operations_per_step, int steps, bool exact, int operations)
{
    if (!exact || operations_per_step * steps <= 2 * operations) {
        return steps;
    }
    int unroll = 2;
    while (2 * unroll * operations_per_step <= operations) {
        unroll *= 2;
    }
    return unroll;
}

// Config has the types, the MMA operation and its tiling; see gemm.cuh.
template <class Config>
__device__ __forceinline__ void
block_gemm(typename Config::C alpha, typename Config::A* a, typename Config::B* b, typename Config::C beta,
           typename Config::C* c)
{
    using Op = typename Config::Op;
    using RegistersA = Registers<typename Op::ARegisters>;
    using RegistersB = Registers<typename Op::BRegisters>;
    using RegistersC = Registers<typename Op::DRegisters>;
    using MapA = typename Config::MapA;
    using MapB = typename Config::MapB;
    using MapC = typename Config::MapC;
    constexpr int m_repetitions = Config::M::repetitions;
    constexpr int n_repetitions = Config::N::repetitions;
    constexpr int k_repetitions = Config::K::repetitions;

    const unsigned thread = threadIdx.x;
    if (Config::threads < Config::block_threads && thread >= unsigned(Config::threads)) {
        return;
    }
    const unsigned lane = thread % Config::lanes;
    const unsigned unit = thread / Config::lanes;
    const unsigned m_unit = Config::units_row_major ? unit / Config::N::units : unit % Config::M::units;
    const unsigned n_unit = Config::units_row_major ? unit % Config::N::units : unit / Config::M::units;

    const typename Config::CopyA copy_a(a, lane, m_unit, 0);
    const typename Config::CopyB copy_b(b, lane, n_unit, 0);
    const typename Config::CopyC copy_c(c, lane, m_unit, n_unit);

    alignas(16) typename Config::C accumulator[MapC::size];
#pragma unroll
    for (int i = 0; i < MapC::size; ++i) {
        accumulator[i] = typename Config::C(0.f);
    }

    // There are two stages: the loads of the next k step are issued before the MMAs of this step.
    alignas(16) typename Config::A fragment_a[2][MapA::size];
    alignas(16) typename Config::B fragment_b[2][MapB::size];
    copy_a.load(fragment_a[0], 0);
    copy_b.load(fragment_b[0], 0);
    constexpr int unroll = k_unroll(m_repetitions * n_repetitions, k_repetitions, Config::K::exact,
                                    Config::unrolled_operations);
#pragma unroll unroll
    for (int k = 0; k < k_repetitions; ++k) {
        if (k + 1 < k_repetitions) {
            copy_a.load(fragment_a[(k + 1) % 2], k + 1);
            copy_b.load(fragment_b[(k + 1) % 2], k + 1);
        }
#pragma unroll
        for (int m = 0; m < m_repetitions; ++m) {
#pragma unroll
            for (int j = 0; j < n_repetitions; ++j) {
                // The serpentine order reuses the last B operand.
                const int n = m % 2 ? n_repetitions - 1 - j : j;
                auto d = reinterpret_cast<typename RegistersC::type*>(accumulator + (m * n_repetitions + n) * MapC::values);
                auto x = reinterpret_cast<const typename RegistersA::type*>(fragment_a[k % 2] + m * MapA::values);
                auto y = reinterpret_cast<const typename RegistersB::type*>(fragment_b[k % 2] + n * MapB::values);
                mma<Op>(d, x, y, typename RegistersC::sequence{}, typename RegistersA::sequence{},
                        typename RegistersB::sequence{});
            }
        }
    }

    if (beta == typename Config::C(0.f)) {
#pragma unroll
        for (int i = 0; i < MapC::size; ++i) {
            accumulator[i] = alpha * accumulator[i];
        }
    } else {
        alignas(16) typename Config::C previous[MapC::size];
        copy_c.load(previous, 0);
#pragma unroll
        for (int i = 0; i < MapC::size; ++i) {
            accumulator[i] = alpha * accumulator[i] + beta * previous[i];
        }
    }
    copy_c.store(accumulator);
}

}  // namespace wt
