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
    // Reads two bytes of shared memory at an address, or checks that it holds them still.
    struct Reader {
        virtual ~Reader() = default;
        virtual unsigned short read(unsigned address) = 0;
        virtual unsigned short peek(unsigned address) const = 0;
    };

    // `warp` is the index of the warp in its warpgroup. These throw Fault.
    void issue(int warp, const WarpOperands& lanes, Reader& reader);
    void commit();
    void wait(int pending, const Reader& reader);

    bool empty() const { return open_.empty() && groups_.empty(); }

private:
    struct Element {
        unsigned address;
        unsigned short bits;
    };
    struct Product {
        std::vector<Element> elements;
        std::vector<float> a, b;  // 16 x 16 and 16 x n
        std::array<float*, warp_lanes> sums;
        int n;
    };
    using Group = std::vector<Product>;

    float element(Product& product, unsigned address, bool is_bf16, Reader& reader);
    void complete(const Product& product, const Reader& reader);
    bool is_in_flight(const float* sums) const;

    Group open_;
    std::deque<Group> groups_;
    std::map<float*, std::vector<float>> shadows_;  // the sums of each lane while a product is in flight
};

}  // namespace wt::emulator
