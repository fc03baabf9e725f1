// SPDX-License-Identifier: Apache-2.0
//
// A matrix in shared memory, in blocks, lines and single elements.

#pragma once

#include "arch/lane.cuh"
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

// Reads ROWS x COLUMNS elements from (row, column) on, in lines. `row` and `column` are multiples of the vector's length.
template <int ROWS, int COLUMNS, class M, class T>
WT_DEVICE void read_patch(T (&to)[ROWS][COLUMNS], M m, int row, int column)
{
    if constexpr (M::rows_are_lines) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            read<M::width(COLUMNS)>(to[r], m.address(row + r, column));
    } else {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            T line[ROWS];
            read<M::width(ROWS)>(line, m.address(row, column + c));
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                to[r][c] = line[r];
        }
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

// ---- lines of one lane each

// True if lines begin at the same banks and have a multiple of eight vectors. Lanes that read such lines in the same order
// would wait for each other, so each begins with another vector: slot s of a lane gets vector s ^ turn, until exchange() puts
// it in its place.
template <class M, int COUNT>
constexpr bool lines_collide = M::line_stride * int(sizeof(typename M::Element)) % 128 == 0 &&
                               M::width(COUNT) * int(sizeof(typename M::Element)) == 16 && COUNT / M::width(COUNT) % 8 == 0;

template <int WIDTH, int COUNT, class T>
WT_DEVICE void exchange(T (&x)[COUNT], int turn)
{
#pragma unroll
    for (int bit = 1; bit < 8; bit *= 2) {
        const bool swaps = turn & bit;
#pragma unroll
        for (int at = 0; at < COUNT; ++at) {
            if (at / WIDTH & bit)
                continue;
            const T first = x[at], second = x[at + bit * WIDTH];
            x[at] = swaps ? second : first;
            x[at + bit * WIDTH] = swaps ? first : second;
        }
    }
}

// Reads COUNT neighbours of a line, from its element `first` on. Neighbouring lanes have neighbouring lines.
template <int COUNT, class M, class T>
WT_DEVICE void read_line(T (&to)[COUNT], M m, int line, int first)
{
    constexpr int width = M::width(COUNT);
    const T* const from = m.line(line) + first;
    if constexpr (lines_collide<M, COUNT>) {
        const int turn = arch::thread_index() % 8;
#pragma unroll
        for (int slot = 0; slot < COUNT / width; ++slot) {
            const auto vector = arch::load<width>(from + (slot ^ turn) * width);
#pragma unroll
            for (int e = 0; e < width; ++e)
                to[slot * width + e] = vector.at[e];
        }
        exchange<width>(to, turn);
    } else {
        read<width>(to, from);
    }
}

template <int COUNT, class M, class T>
WT_DEVICE void write_line(M m, int line, int first, const T (&from)[COUNT])
{
    constexpr int width = M::width(COUNT);
    T* const to = m.line(line) + first;
    if constexpr (lines_collide<M, COUNT>) {
        const int turn = arch::thread_index() % 8;
        T x[COUNT];
#pragma unroll
        for (int at = 0; at < COUNT; ++at)
            x[at] = from[at];
        exchange<width>(x, turn);
#pragma unroll
        for (int slot = 0; slot < COUNT / width; ++slot) {
            Vector<T, width> vector;
#pragma unroll
            for (int e = 0; e < width; ++e)
                vector.at[e] = x[slot * width + e];
            arch::store(to + (slot ^ turn) * width, vector);
        }
    } else {
        write<width>(to, from);
    }
}

// ---- columns of one lane each, which are lines or cross them

// Reads COUNT elements of a column, from row `first` on.
template <int COUNT, class M, class T>
WT_DEVICE void read_column(T (&to)[COUNT], M m, int first, int column)
{
    if constexpr (M::rows_are_lines) {
#pragma unroll
        for (int row = 0; row < COUNT; ++row)
            to[row] = m.get(first + row, column);
    } else {
        read_line(to, m, column, first);
    }
}

template <int COUNT, class M, class T>
WT_DEVICE void write_column(M m, int first, int column, const T (&from)[COUNT])
{
    if constexpr (M::rows_are_lines) {
#pragma unroll
        for (int row = 0; row < COUNT; ++row)
            m.set(first + row, column, from[row]);
    } else {
        write_line(m, column, first, from);
    }
}

}  // namespace wt::solver
