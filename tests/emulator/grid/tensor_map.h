// SPDX-License-Identifier: Apache-2.0
//
// The emulator's tensor maps. A GPU's have another encoding, of the same size. ../tensor_maps.py makes them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

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
