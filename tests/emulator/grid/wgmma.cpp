// SPDX-License-Identifier: Apache-2.0

#include "grid/wgmma.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "machine/fault.h"

namespace wt::emulator {

namespace {

constexpr int rows = 16;  // of a warp's part of A
constexpr std::uint32_t in_flight = 0x7fc0beef;  // a NaN

float pattern() { return float_of_bits(in_flight); }

bool holds_pattern(const float* sums, std::size_t count)
{
    for (std::size_t i = 0; i < count; ++i)
        if (bits_of_float(sums[i]) != in_flight) return false;
    return true;
}

// A matrix descriptor. "Strides" and "Canonical layouts" of the PTX ISA.
struct Descriptor {
    unsigned start, leading, stride, width;

    explicit Descriptor(unsigned long long bits)
        : start(unsigned(bits & 0x3fff) << 4)
        , leading(unsigned(bits >> 16 & 0x3fff) << 4)
        , stride(unsigned(bits >> 32 & 0x3fff) << 4)
        , width(bits >> 62 == 1 ? 128 : bits >> 62 == 2 ? 64 : 32)
    {
        if (bits >> 62 == 0) throw Fault{"wgmma without a swizzling mode is not emulated"};
    }

    // The address of an element: x counts rows of A or columns of B.
    unsigned address(unsigned x, unsigned k, unsigned bytes, bool mn_major) const
    {
        const unsigned per_row = width / bytes;
        const unsigned linear = mn_major
            ? start + x / per_row * leading + k / 8 * stride + k % 8 * width + x % per_row * bytes
            : start + x / 8 * stride + x % 8 * width + bytes * k;
        return linear ^ (linear >> 7 & (width / 16 - 1)) << 4;
    }
};

int size_of(AsyncType type) { return type == AsyncType::tf32 ? 4 : 2; }

float value_of(unsigned bits, AsyncType type)
{
    if (type == AsyncType::f16) return float_of_f16(static_cast<unsigned short>(bits));
    return float_of_bits(type == AsyncType::bf16 ? bits << 16 : bits & ~0x1fffu);
}

}  // namespace

float AsyncProducts::element(Product& product, unsigned address, AsyncType type, Reader& reader)
{
    const unsigned vector = address / vector_bytes;
    if (!read_[vector]) {
        read_.set(vector);
        Vector held{vector * vector_bytes, {}};
        reader.read(held.address);
        std::memcpy(held.bytes.data(), reader.bytes(held.address), vector_bytes);
        product.vectors.push_back(held);
    }
    unsigned bits = 0;
    std::memcpy(&bits, reader.bytes(address), std::size_t(size_of(type)));
    return value_of(bits, type);
}

// An element of A in registers, whose layout is that of mma.m16n8k8 with tf32, or of m16n8k16.
float AsyncProducts::element(Product& product, const WarpOperands& lanes, int row, int k, AsyncType type)
{
    const int per_register = 4 / size_of(type), word = k / per_register;
    const int lane = row % 8 * 4 + word % 4, index = row / 8 + word / 4 * 2;
    const unsigned* const at = static_cast<const unsigned*>(lanes[std::size_t(lane)]->b) + index;
    product.registers.push_back({at, *at});
    return value_of(type == AsyncType::tf32 ? *at : *at >> 16 * (k % per_register) & 0xffff, type);
}

void AsyncProducts::issue(int warp, const WarpOperands& lanes, Reader& reader)
{
    const AsyncProduct& asked = *static_cast<const AsyncProduct*>(lanes[0]->a);
    for (const Operands* lane : lanes)
        if (std::memcmp(lane->a, &asked, sizeof asked) != 0) throw Fault{"the lanes of a warp have different wgmma operands"};
    if (!fenced_) throw Fault{"a group of wgmma begins without wgmma.fence"};
    const unsigned bytes = unsigned(size_of(asked.type));
    Product product;
    product.n = asked.n;
    product.depth = int(32 / bytes);
    for (int row = 0; row < rows; ++row)
        for (int k = 0; k < product.depth; ++k) {
            if (asked.a_is_in_registers) {
                product.a.push_back(element(product, lanes, row, k, asked.type));
                continue;
            }
            const unsigned at = Descriptor(asked.a).address(unsigned(rows * warp + row), unsigned(k), bytes, asked.a_is_mn_major);
            product.a.push_back(element(product, at, asked.type, reader));
        }
    const Descriptor b(asked.b);
    for (int k = 0; k < product.depth; ++k)
        for (int column = 0; column < asked.n; ++column)
            product.b.push_back(
                element(product, b.address(unsigned(column), unsigned(k), bytes, asked.b_is_mn_major), asked.type, reader));
    for (const Vector& vector : product.vectors) read_.reset(vector.address / vector_bytes);
    const std::size_t count = std::size_t(asked.n) / 2;
    for (int lane = 0; lane < warp_lanes; ++lane) {
        float* const sums = static_cast<float*>(lanes[lane]->result);
        product.sums[std::size_t(lane)] = sums;
        if (shadows_.count(sums)) {
            if (!holds_pattern(sums, count)) throw Fault{"the sums of a wgmma changed before it was complete"};
            continue;
        }
        shadows_[sums] = std::vector<float>(sums, sums + count);
        for (std::size_t i = 0; i < count; ++i) sums[i] = pattern();
    }
    open_.push_back(std::move(product));
}

void AsyncProducts::commit()
{
    groups_.push_back(std::move(open_));
    open_.clear();
    fenced_ = false;
}

void AsyncProducts::wait(int pending, Reader& reader)
{
    while (int(groups_.size()) > pending) {
        const Group group = std::move(groups_.front());
        groups_.pop_front();
        for (const Product& product : group) complete(product, reader);
        for (const Product& product : group)
            for (float* sums : product.sums) {
                const auto found = shadows_.find(sums);
                if (found == shadows_.end() || is_in_flight(sums)) continue;
                if (!holds_pattern(sums, found->second.size()))
                    throw Fault{"the sums of a wgmma changed before it was complete"};
                std::memcpy(sums, found->second.data(), found->second.size() * sizeof(float));
                shadows_.erase(found);
            }
    }
}

bool AsyncProducts::is_in_flight(const float* sums) const
{
    for (const Group& group : groups_)
        for (const Product& product : group)
            for (const float* other : product.sums)
                if (other == sums) return true;
    return false;
}

// The sum of an instruction is rounded once, as in machine/mma.cpp.
void AsyncProducts::complete(const Product& product, Reader& reader)
{
    for (const Vector& vector : product.vectors) {
        if (std::memcmp(reader.bytes(vector.address), vector.bytes.data(), vector_bytes) != 0)
            throw Fault{"an operand of a wgmma was overwritten before it was complete, at address "
                        + std::to_string(vector.address)};
        reader.read(vector.address);
    }
    for (const Register& held : product.registers)
        if (*held.at != held.bits) throw Fault{"a register of a wgmma's A changed before it was complete"};
    for (int lane = 0; lane < warp_lanes; ++lane) {
        std::vector<float>& sums = shadows_.at(product.sums[std::size_t(lane)]);
        for (int i = 0; i < product.n / 2; ++i) {
            const int row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            double sum = double(sums[std::size_t(i)]);
            for (int k = 0; k < product.depth; ++k)
                sum += double(product.a[std::size_t(row * product.depth + k)]) * double(product.b[std::size_t(k * product.n + column)]);
            sums[std::size_t(i)] = float(sum);
        }
    }
}

}  // namespace wt::emulator
