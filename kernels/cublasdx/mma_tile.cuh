// SPDX-License-Identifier: Apache-2.0
//
// Index arithmetic of a tiled MMA: the elements of a matrix that each thread holds.
//
// An element's position is the sum of a thread part, known at run time, and a
// fragment part, known at compile time. So an address is one base per thread
// plus an immediate offset.

#pragma once

namespace wt {

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

constexpr int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }

// One dimension of the problem, split into atoms, units (warps, or threads for
// scalar FMA) and repetitions. Groups of Interleave repetitions are adjacent in
// memory, so that one vector access covers a group.
template <int Extent, int Atom, int Units, int Interleave = 1, bool AtomInnermost = false>
struct Axis {
    enum : int {
        extent = Extent,
        units = Units,
        interleave = Interleave,
        repetitions = ceil_div(Extent, Atom * Units),
        padded = repetitions * Atom * Units,
    };
    enum : bool { exact = padded == Extent, atom_innermost = AtomInnermost };

    // This is linear in (atom, unit), so the thread part and the fragment part add up.
    static constexpr unsigned coordinate(unsigned atom, unsigned unit, unsigned repetition) {
        const unsigned tile = repetition / Interleave * (Atom * Units * Interleave);
        const unsigned slot = repetition % Interleave;
        return AtomInnermost ? tile + (unit * Interleave + slot) * Atom + atom
                             : tile + (unit * Atom + atom) * Interleave + slot;
    }

    // The compiler decides this for elements that are inside for every thread, or outside for every thread.
    static constexpr bool in_bounds(unsigned fragment_part, unsigned thread_part, unsigned last_thread_part) {
        return exact || fragment_part + last_thread_part < Extent
            || (fragment_part < Extent && fragment_part + thread_part < Extent);
    }
};

struct Element {
    int value;   // within the atom
    int row;     // repetition along the rows
    int column;  // repetition along the columns
};

// The elements of a matrix that an MMA atom, repeated along two axes, assigns to a thread.
// Layout maps (lane, value) to the column-major position within the atom.
template <class Layout, class T, int Values, int AtomRows, class Rows, class Columns,
          bool RowsContiguous, int LeadingDimension, int AlignmentBytes, int SliceColumns>
struct FragmentMap {
    using Contiguous = cute::conditional_t<RowsContiguous, Rows, Columns>;

    enum : int {
        values = Values,
        slice_columns = SliceColumns,  // column repetitions in one fragment
        size = Rows::repetitions * SliceColumns * Values,
        registers = Values * int(sizeof(T)) / 4,  // 32-bit registers per atom
        per_register = sizeof(T) < 4 ? 4 / int(sizeof(T)) : 1,
    };

    static constexpr unsigned atom_row(unsigned lane, unsigned value) { return unsigned(Layout{}(lane, value)) % AtomRows; }
    static constexpr unsigned atom_column(unsigned lane, unsigned value) { return unsigned(Layout{}(lane, value)) / AtomRows; }

    static constexpr unsigned row(Element e) { return Rows::coordinate(atom_row(0, e.value), 0, e.row); }
    static constexpr unsigned column(Element e) { return Columns::coordinate(atom_column(0, e.value), 0, e.column); }

    static constexpr unsigned address(unsigned row, unsigned column) {
        return RowsContiguous ? row + column * LeadingDimension : row * LeadingDimension + column;
    }
    static constexpr unsigned offset(Element e) { return address(row(e), column(e)); }

    // The largest thread part of a row. A bounds check that holds for it holds for all threads.
    static constexpr unsigned last_thread_row() {
        unsigned last = 0;
        for (unsigned lane = 0; lane < 32; ++lane) {
            last = atom_row(lane, 0) > last ? atom_row(lane, 0) : last;
        }
        return Rows::coordinate(last, Rows::units - 1, 0);
    }
    static constexpr unsigned last_thread_column() {
        unsigned last = 0;
        for (unsigned lane = 0; lane < 32; ++lane) {
            last = atom_column(lane, 0) > last ? atom_column(lane, 0) : last;
        }
        return Columns::coordinate(last, Columns::units - 1, 0);
    }

    // Returns an element's position in the fragment array.
    static constexpr int index(Element e) {
        return (e.row * SliceColumns + e.column % SliceColumns) * Values + e.value;
    }

    // Returns the i-th element, in an order that visits neighbours in memory one after another.
    static constexpr Element element(int i, int first_column) {
        const int run = (RowsContiguous ? int(Rows::repetitions) : SliceColumns) * Values;
        const int outer = i / run;
        const int inner = i % run;
        const int interleave = Contiguous::atom_innermost ? 1 : int(Contiguous::interleave);
        const int value = inner / interleave % Values;
        const int repetition = inner / (interleave * Values) * interleave + inner % interleave;
        return RowsContiguous ? Element{value, repetition, first_column + outer}
                              : Element{value, outer, first_column + repetition};
    }

    // Returns the elements per vector access: the most that alignment and layout allow.
    static constexpr int vector_width() {
        for (int width = 16 / int(sizeof(T)); width > 1; width /= 2) {
            if (vectorizable(width)) {
                return width;
            }
        }
        return 1;
    }

    // Returns true if each register holds the 8 x 16-byte block that ldmatrix fills.
    static constexpr bool has_matrix_blocks() {
        if (sizeof(T) > 4 || registers == 0) {
            return false;
        }
        for (int lane = 0; lane < 32; ++lane) {
            if (atom_row(lane, 0) != lane / 4 || atom_column(lane, 0) != lane % 4 * per_register) {
                return false;
            }
        }
        return true;
    }

    static constexpr Element matrix_block(int i, int first_column) {
        const int block = i / registers;
        return {i % registers * per_register, block % int(Rows::repetitions), first_column + block / int(Rows::repetitions)};
    }

    // Returns the blocks per ldmatrix or stmatrix. Lane groups must reach them by two fixed strides.
    static constexpr int matrix_blocks() {
        const int total = size / per_register;
        for (int count = 4; count > 1; count /= 2) {
            bool regular = total % count == 0;
            for (int i = 0; regular && i < total; ++i) {
                const int base = offset(matrix_block(i / count * count, 0));
                regular = offset(matrix_block(i, 0)) - base == matrix_stride(i % count);
            }
            if (regular) {
                return count;
            }
        }
        return 1;
    }

    // Returns the offset of a block from the first block of its group.
    static constexpr int matrix_stride(int block) {
        return (block & 1 ? offset(matrix_block(1, 0)) - offset(matrix_block(0, 0)) : 0) +
               (block & 2 ? offset(matrix_block(2, 0)) - offset(matrix_block(0, 0)) : 0);
    }

private:
    static constexpr bool vectorizable(int width) {
        const int run = (RowsContiguous ? int(Rows::repetitions) : SliceColumns) * Values;
        if (width * int(sizeof(T)) > AlignmentBytes || LeadingDimension % width || run % width || !Contiguous::exact) {
            return false;
        }
        for (int lane = 0; lane < 32; ++lane) {
            const int position = RowsContiguous ? atom_row(lane, 0) : atom_column(lane, 0);
            if (Contiguous::coordinate(position, 0, 0) % width) {
                return false;
            }
        }
        if (Contiguous::units > 1 && Contiguous::coordinate(0, 1, 0) % width) {
            return false;
        }
        for (int i = 0; i < run; ++i) {
            const int first = offset(element(i / width * width, 0));
            if (first % width || offset(element(i, 0)) != first + i % width) {
                return false;
            }
        }
        return true;
    }
};

}  // namespace wt
