// SPDX-License-Identifier: Apache-2.0
//
// The emulator's tensor maps. A GPU's have another encoding, of the same size. ../tensor_maps.py makes them.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>

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
    std::uint8_t unused;
    std::uint16_t fields;  // a bit for each field that set() has set
    std::uint8_t unused_too[24];

    // Reads a map whose bytes the caller may read.
    static TensorMap at(const void* address)
    {
        if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) throw Fault{"the tensor map is not aligned to 64 bytes"};
        TensorMap map;
        std::memcpy(&map, address, sizeof map);
        if (map.mark != valid) throw Fault{"the address is not that of a tensor map"};
        return map;
    }

    // Sets a field, as tensormap.replace does. A map is valid when all fields of its dimensions have been set.
    void set(const std::string& field, int dimension, std::uint64_t value)
    {
        static const std::string names[] = {"global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride",
                                            "elemtype", "interleave_layout", "swizzle_mode", "fill_mode"};
        static const int bits[] = {0, 1, 2, 4, 6, 7, 9, 10, 11, 12};  // the first one of a field; two dimensions have one each
        const auto number = std::find(std::begin(names), std::end(names), field) - std::begin(names);
        const bool is_allowed[] = {value % 16 == 0, value == 1, value >= 1 && value <= 256, value >= 1,
                                   value >= 16 && value % 16 == 0 && value >> 40 == 0, value == 1, value == 1 || value == 2,
                                   value == 0, value <= 3, value == 0};
        if (dimension < 0 || dimension > (field == "global_stride" ? 0 : 1) || !is_allowed[number])
            throw Fault{"tensormap.replace of " + field + " " + std::to_string(dimension) + " by " + std::to_string(value)};
        if (field == "global_address") address = value;
        if (field == "rank") rank = std::uint8_t(value + 1);
        if (field == "box_dim") box[dimension] = std::uint16_t(value);
        if (field == "global_dim") sizes[dimension] = value;
        if (field == "global_stride") strides[0] = value;
        if (field == "elemtype") element_bytes = std::uint8_t(2 * value);  // .u16 or .u32
        if (field == "swizzle_mode") swizzle = value ? std::uint8_t(16 << value) : std::uint8_t(0);
        fields = std::uint16_t(fields | 1 << (bits[number] + dimension));
        if (fields == (1 << 13) - 1) mark = valid;
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
