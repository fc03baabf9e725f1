// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous products of a warpgroup. A warp computes its 16 of the 64 rows. The operands are read when the product is
// issued, and again when it completes, and must be unchanged in between. Until then the sums of a lane hold a pattern that must stay.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions

#pragma once

#include <bitset>
#include <deque>
#include <map>
#include <vector>

#include "machine/collectives.h"

namespace wt::emulator {

class AsyncProducts {
public:
    // Shared memory: read() is an access to a vector of operands, and bytes() is none.
    static constexpr unsigned vector_bytes = 16;
    struct Reader {
        virtual ~Reader() = default;
        virtual void read(unsigned vector) = 0;
        virtual const char* bytes(unsigned address) const = 0;
    };

    // `warp` is the index of the warp in its warpgroup. These throw Fault.
    void issue(int warp, const WarpOperands& lanes, Reader& reader);
    void commit();

    // wgmma.fence: each group of products must begin with one.
    void fence() { fenced_ = true; }
    void wait(int pending, Reader& reader);

    bool empty() const { return open_.empty() && groups_.empty(); }

private:
    struct Vector {
        unsigned address;
        std::array<char, vector_bytes> bytes;  // when the product was issued
    };
    struct Register {
        const unsigned* at;
        unsigned bits;
    };
    struct Product {
        std::vector<Vector> vectors;  // that it reads
        std::vector<Register> registers;
        std::vector<float> a, b;  // 16 x depth and depth x n
        std::array<float*, warp_lanes> sums;
        int n, depth;
    };
    using Group = std::vector<Product>;

    float element(Product& product, unsigned address, AsyncType type, Reader& reader);
    float element(Product& product, const WarpOperands& lanes, int row, int k, AsyncType type);
    void complete(const Product& product, Reader& reader);
    bool is_in_flight(const float* sums) const;

    bool fenced_ = false;  // since the last group
    std::bitset<(1 << 18) / vector_bytes> read_;  // the vectors of the product that is being issued
    Group open_;
    std::deque<Group> groups_;
    std::map<float*, std::vector<float>> shadows_;  // the sums of each lane while a product is in flight
};

}  // namespace wt::emulator
