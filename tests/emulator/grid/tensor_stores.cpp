// SPDX-License-Identifier: Apache-2.0

#include "grid/tensor_stores.h"

#include <cstring>
#include <utility>

#include "machine/fault.h"

namespace wt::emulator {

void TensorStores::start_block(char* window, int threads)
{
    window_ = window;
    threads_.assign(std::size_t(threads), {});
}

void TensorStores::store(int thread, const void* map, bool map_is_in_array, unsigned from, const int* start, int rank)
{
    const TensorMap found = copies_.map_of(thread, map, map_is_in_array, rank, from, "tensor store");
    Thread& own = threads_[std::size_t(thread)];
    Store store{from, own.groups, std::vector<char>(std::size_t(found.bytes())), found.pieces(start)};
    shared_.start_tensor_store({thread, "tensor store", found.bytes()}, window_ + from);
    for (unsigned i = 0; i < store.box.size(); ++i) store.box[i] = window_[found.place(from, i)];
    for (const TensorMap::Piece& piece : store.pieces) arrays_.start_copy({thread, "tensor store, store", piece.bytes}, piece.at, 1);
    own.reading.push_back(std::move(store));
}

void TensorStores::wait(int thread, int pending)
{
    Thread& own = threads_[std::size_t(thread)];
    std::vector<Store> left;
    for (Store& store : own.reading) {
        if (store.group >= own.groups - pending) {
            left.push_back(std::move(store));
            continue;
        }
        shared_.end_tensor_store({thread, "tensor store", int(store.box.size())}, window_ + store.from);
        own.arriving.push_back(std::move(store));
    }
    own.reading = std::move(left);
}

void TensorStores::end_block()
{
    for (int thread = 0; thread < int(threads_.size()); ++thread) {
        const Thread& own = threads_[std::size_t(thread)];
        if (!own.reading.empty())
            throw Fault{name_of_thread(thread) + " ends while a tensor store reads " + shared_.describe(window_ + own.reading[0].from)
                        + (own.reading[0].group == own.groups ? ", which no commit follows" : "")};
        for (const Store& store : own.arriving)
            for (const TensorMap::Piece& piece : store.pieces) {
                std::memcpy(piece.at, &store.box[piece.offset], std::size_t(piece.bytes));
                arrays_.end_copy(thread, piece.at, piece.bytes);
            }
    }
}

}  // namespace wt::emulator
