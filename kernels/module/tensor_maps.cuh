// SPDX-License-Identifier: Apache-2.0
//
// The tensor maps of a module, in global memory. A kernel of Warp gets addresses and shapes of arrays, and no maps. A block takes about a
// microsecond to make one, which is too long for each. So the first block that reads an array makes a map for later blocks and
// launches. An entry never changes afterwards. It depends on its key alone, and never on the array's contents.
#pragma once

#include "arch/tensor_copy.cuh"
#include "module/loads.cuh"

namespace wt_module {

// The entries where a key can be are a set.
constexpr int MAP_SETS = 64, SET_MAPS = 4, MAP_BYTES = 128;

// What a map depends on: a matrix whose rows are contiguous, and the box of a copy.
struct alignas(VECTOR_BYTES) TensorMapKey {
    const void* start;
    int rows, columns, stride;  // stride: bytes between rows
    int box;                    // number of rows, and in the upper bits the bytes of an element and of a row
    int state;                  // FREE, BUSY or READY, below
    int unused;

    inline __device__ bool operator==(const TensorMapKey& other) const
    {
        return start == other.start && rows == other.rows && columns == other.columns && stride == other.stride && box == other.box;
    }
};

enum { FREE, BUSY, READY };

constexpr int SET_BYTES = SET_MAPS * static_cast<int>(sizeof(TensorMapKey));

struct alignas(MAP_BYTES) TensorMaps {
    char maps[MAP_SETS * SET_MAPS][MAP_BYTES];
    TensorMapKey keys[MAP_SETS * SET_MAPS];
};

static __device__ TensorMaps tensor_maps;

// The box of ROWS rows of ROW_BYTES bytes that a tensor copy moves, with swizzled rows
template <typename Element, int ROWS, int ROW_BYTES> struct TensorBox {
    static_assert(ROWS <= 256 && (ROW_BYTES == 32 || ROW_BYTES == 64 || ROW_BYTES == 128), "a box of a tensor map");

    static constexpr int SIZE = static_cast<int>(sizeof(Element));

    // Returns true if a map can describe a two-dimensional array.
    template <typename Array> static inline __device__ bool has_map(const Array& array)
    {
        const auto start = reinterpret_cast<uint64_t>(array.data);
        const int stride = array.strides[0];
        return __isGlobal(array.data) && start % VECTOR_BYTES == 0 && stride > 0 && stride % VECTOR_BYTES == 0
            && array.strides[1] == SIZE && array.shape[0] > 0 && array.shape[1] > 0;
    }

    template <typename Array> static inline __device__ TensorMapKey key(const Array& array)
    {
        return {array.data, array.shape[0], array.shape[1], array.strides[0], ROWS | SIZE << 16 | ROW_BYTES << 20, READY, 0};
    }

    // Returns the first entry of the set of a key.
    static inline __device__ int set(const TensorMapKey& key)
    {
        const auto start = reinterpret_cast<uint64_t>(key.start);
        const unsigned words = unsigned(start >> 4) ^ unsigned(start >> 36) ^ unsigned(key.stride) ^ unsigned(key.box) ^ unsigned(key.rows) << 8;
        return (words * 2654435761u >> 26) * SET_MAPS;  // multiplicative hashing: the upper 6 bits
    }

    // Starts to copy the keys of the set of an array to shared memory. The block waits for it as for the copies of a tile.
    template <typename Array> static inline __device__ void look_up(const Array& array, unsigned keys)
    {
        const int vector = static_cast<int>(threadIdx.x);
        if (has_map(array) && vector < SET_BYTES / VECTOR_BYTES) {
            const char* const from = reinterpret_cast<const char*>(&tensor_maps.keys[set(key(array))]);
            wt::arch::copy_async_16(keys + vector * VECTOR_BYTES, from + vector * VECTOR_BYTES);
        }
    }

    // Returns the map of an array, or null. `keys` are those that look_up() has copied.
    template <typename Array> static inline __device__ const void* find(const Array& array, unsigned keys)
    {
        if (!has_map(array))
            return nullptr;
        const TensorMapKey wanted = key(array);
        const auto* const found = static_cast<const TensorMapKey*>(__cvta_shared_to_generic(keys));
        const void* map = nullptr;
#pragma unroll
        for (int i = 0; i < SET_MAPS; ++i)
            if (found[i].state == READY && found[i] == wanted)
                map = tensor_maps.maps[set(wanted) + i];
        return map;
    }

    // Makes the map of an array, if its set has room. One thread calls it, after find() has found none.
    template <typename Array> static inline __device__ void make(const Array& array, unsigned keys)
    {
        if (!has_map(array) || static_cast<const TensorMapKey*>(__cvta_shared_to_generic(keys))[SET_MAPS - 1].state != FREE)
            return;
        const TensorMapKey wanted = key(array);
#pragma unroll 1
        for (int entry = set(wanted), end = entry + SET_MAPS; entry < end; ++entry) {
            TensorMapKey& key = tensor_maps.keys[entry];
            const int state = atomicCAS(&key.state, static_cast<int>(FREE), static_cast<int>(BUSY));
            if (state == FREE) {
                char* const map = tensor_maps.maps[entry];
                wt::arch::describe_matrix<SIZE, ROW_BYTES>(
                    map, wanted.start, wanted.columns, wanted.rows, wanted.stride, ROW_BYTES / SIZE, ROWS);
                key.start = wanted.start;
                key.rows = wanted.rows;
                key.columns = wanted.columns;
                key.stride = wanted.stride;
                key.box = wanted.box;
                wt::arch::publish_tensor_map();
                __threadfence();
                atomicExch(&key.state, static_cast<int>(READY));
                return;
            }
            if (state == BUSY || key == wanted)  // another block makes a map, maybe the same one
                return;
        }
    }
};

}  // namespace wt_module
