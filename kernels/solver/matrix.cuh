// SPDX-License-Identifier: Apache-2.0
//
// A matrix in shared memory, in blocks, lines and single elements.

#pragma once

#include "arch/memory.cuh"
#include "arch/types.cuh"

namespace wt::solver {

WT_DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }
WT_DEVICE constexpr int larger(int a, int b) { return a > b ? a : b; }
WT_DEVICE constexpr int power_of_two_in(int x) { return x & -x; }

// Element (i, j) lies at i * RowStride + j * ColumnStride; one of the two strides is 1. Align is the number of bytes to
// which the start of each line is aligned; a line is a row if ColumnStride is 1, else a column.
template <class T, int RowStride, int ColumnStride, int Align>
struct Matrix {
    using Element = T;
    using Transposed = Matrix<T, ColumnStride, RowStride, Align>;

    static_assert(RowStride == 1 || ColumnStride == 1, "The elements of a row or of a column are neighbours");
    static constexpr bool rows_are_lines = ColumnStride == 1;
    static constexpr int line_stride = rows_are_lines ? RowStride : ColumnStride;
    static constexpr int align = Align;

    // The widest vector in a line of so many elements
    static WT_DEVICE constexpr int width(int count)
    {
        return smaller(larger(smaller(Align, 16) / int(sizeof(T)), 1), power_of_two_in(count));
    }

    T* data;

    static WT_DEVICE Matrix at(void* pointer) { return {arch::in_shared<T>(pointer)}; }

    WT_DEVICE T* address(int i, int j) const { return data + i * RowStride + j * ColumnStride; }
    WT_DEVICE T get(int i, int j) const { return arch::load<1>(address(i, j)).at[0]; }
    WT_DEVICE void set(int i, int j, T x) const { arch::store(address(i, j), Vector<T, 1>{{x}}); }

    WT_DEVICE T* line(int index) const { return data + index * line_stride; }
    WT_DEVICE Matrix block(int i, int j) const { return {address(i, j)}; }
    WT_DEVICE Transposed transposed() const { return {data}; }
};

// Reads COUNT neighbours, WIDTH at once.
template <int WIDTH, int COUNT, class T>
WT_DEVICE void read(T (&to)[COUNT], const T* from)
{
    static_assert(COUNT % WIDTH == 0, "Vectors divide the line");
#pragma unroll
    for (int first = 0; first < COUNT; first += WIDTH) {
        const auto vector = arch::load<WIDTH>(from + first);
#pragma unroll
        for (int e = 0; e < WIDTH; ++e)
            to[first + e] = vector.at[e];
    }
}

template <int WIDTH, int COUNT, class T>
WT_DEVICE void write(T* to, const T (&from)[COUNT])
{
    static_assert(COUNT % WIDTH == 0, "Vectors divide the line");
#pragma unroll
    for (int first = 0; first < COUNT; first += WIDTH) {
        Vector<T, WIDTH> vector;
#pragma unroll
        for (int e = 0; e < WIDTH; ++e)
            vector.at[e] = from[first + e];
        arch::store(to + first, vector);
    }
}

}  // namespace wt::solver
