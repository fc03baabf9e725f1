// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous products of a warpgroup. A warp computes its 16 of the 64 rows. The operands are read when the product is
// issued and must be unchanged when it completes. Until then the sums of a lane hold a pattern that must stay.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions

#pragma once

#include <deque>
#include <map>
#include <vector>

#include "machine/collectives.h"

namespace wt::emulator {

class AsyncProducts {
public:
    // Reads two or four bytes of shared memory. peek() does not count as an access.
    struct Reader {
        virtual ~Reader() = default;
        virtual unsigned read(unsigned address, int bytes) = 0;
        virtual unsigned peek(unsigned address, int bytes) const = 0;
    };

    // `warp` is the index of the warp in its warpgroup. These throw Fault.
    void issue(int warp, const WarpOperands& lanes, Reader& reader);
    void commit();

    // wgmma.fence: each group of products must begin with one.
    void fence() { fenced_ = true; }
    void wait(int pending, const Reader& reader);

    bool empty() const { return open_.empty() && groups_.empty(); }

private:
    struct Element {
        unsigned address, bits;
        int bytes;
    };
    struct Register {
        const unsigned* at;
        unsigned bits;
    };
    struct Product {
        std::vector<Element> elements;
        std::vector<Register> registers;
        std::vector<float> a, b;  // 16 x depth and depth x n
        std::array<float*, warp_lanes> sums;
        int n, depth;
    };
    using Group = std::vector<Product>;

    float element(Product& product, unsigned address, AsyncType type, Reader& reader);
    float element(Product& product, const WarpOperands& lanes, int row, int k);
    void complete(const Product& product, const Reader& reader);
    bool is_in_flight(const float* sums) const;

    bool fenced_ = false;  // since the last group
    Group open_;
    std::deque<Group> groups_;
    std::map<float*, std::vector<float>> shadows_;  // the sums of each lane while a product is in flight
};

}  // namespace wt::emulator
