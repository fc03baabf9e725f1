// SPDX-License-Identifier: Apache-2.0
//
// The emulator's tensor maps. A GPU's have another encoding, of the same size. ../tensor_maps.py makes them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "machine/fault.h"

namespace wt::emulator {

struct TensorMap {
    static constexpr std::uint64_t valid = 0x70616d726f736e74;  // "tnsormap"
    static constexpr int alignment = 64;

    std::uint64_t mark;        // `valid`
    std::uint64_t address;     // of element 0
    std::uint64_t strides[4];  // bytes between elements along dimension 1 and up; elements along dimension 0 are contiguous
    std::uint64_t sizes[5];    // of the tensor, in elements
    std::uint16_t box[5];      // elements that a copy moves
    std::uint8_t rank, element_bytes;
    std::uint8_t swizzle;  // bytes of a row whose vectors are permuted: 32, 64, 128, or 0 for none
    std::uint8_t unused[27];

    // Reads a map whose bytes the caller may read.
    static TensorMap at(const void* address)
    {
        if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) throw Fault{"the tensor map is not aligned to 64 bytes"};
        TensorMap map;
        std::memcpy(&map, address, sizeof map);
        if (map.mark != valid) throw Fault{"the address is not that of a tensor map"};
        return map;
    }

    int row_bytes() const { return box[0] * element_bytes; }
    int rows() const
    {
        int product = 1;
        for (int i = 1; i < rank; ++i) product *= box[i];
        return product;
    }
    int bytes() const { return row_bytes() * rows(); }

    // Contiguous elements of a row of a box that lie inside of the tensor
    struct Piece {
        char* at;
        int bytes;
        unsigned offset;  // in the box
    };

    // The pieces of a box that begins at `start`, coordinates with the innermost first.
    std::vector<Piece> pieces(const int* start) const
    {
        std::vector<Piece> found;
        const long long first = start[0] < 0 ? 0 : start[0], past = (long long)(start[0]) + box[0], size = (long long)(sizes[0]);
        const long long end = past < size ? past : size;
        for (int row = 0; row < rows(); ++row) {
            bool inside = first < end;
            std::uint64_t line = address;
            for (int i = 1, rest = row; i < rank; rest /= box[i], ++i) {
                const long long index = (long long)(start[i]) + rest % box[i];
                inside = inside && index >= 0 && std::uint64_t(index) < sizes[i];
                line += std::uint64_t(index) * strides[i - 1];
            }
            if (!inside) continue;
            found.push_back({reinterpret_cast<char*>(line) + first * element_bytes, int(end - first) * element_bytes,
                             unsigned(row * row_bytes() + int(first - start[0]) * element_bytes)});
        }
        return found;
    }

    // Where the byte at an offset in the box lies, if the box begins at address `to`. Vectors of 16 bytes are permuted by the
    // address, not by the offset.
    unsigned place(unsigned to, unsigned offset) const
    {
        const unsigned linear = to + offset;
        return swizzle == 0 ? linear : linear ^ (linear >> 7 & (swizzle / 16 - 1u)) << 4;
    }
};
static_assert(sizeof(TensorMap) == 128);

}  // namespace wt::emulator
