// SPDX-License-Identifier: Apache-2.0
//
// The reverse pass of a loop that adds products to C. The gradient G of C is the same in all iterations, so it is copied into
// stage buffers before the loop. An iteration loads the tiles A and B into a stage, and computes the gradients of the iteration
// before:
//
//     gradient of A = G B^T        gradient of B = A^T G
//
// Their accumulators stay in registers. Then they take the place of A and B in the stage, from where they are added to the
// arrays' gradients. The problem of such a product has gradient_is_a: true if G is its left operand, and threads: the first ones
// of the block, which compute it.
#pragma once

#include "arch/convert.cuh"
#include "module/adjoint_loads.cuh"
#include "module/staged_accumulators.cuh"

namespace wt_module {

// The largest value of all threads. `scratch` is shared memory for a word of each warp.
inline __device__ unsigned block_max(unsigned scratch, unsigned value)
{
    auto* const words = static_cast<unsigned*>(__cvta_shared_to_generic(scratch));
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value = max(value, __shfl_xor_sync(0xffffffffu, value, step));
    if (threadIdx.x % 32 == 0)
        words[threadIdx.x / 32] = value;
    WP_TILE_SYNC();
    for (int warp = 0; warp < WP_TILE_BLOCK_DIM / 32; ++warp)
        value = max(value, words[warp]);
    WP_TILE_SYNC();
    return value;
}

// How numbers are split into operands of type T: x * scale = first + rest. The rest of a 16-bit operand keeps as many bits again.
// A power of two brings the largest float16 near 2^15, so that small numbers keep their bits.
template <class T> struct Parts {
    static constexpr int COUNT = 2;
    static constexpr unsigned INFINITE = 0x7f800000u;

    static inline __device__ unsigned magnitude(float x) { return wt::arch::bits_of(x) & 0x7fffffffu; }

    // The exponent of the factor, for the bits of the largest finite magnitude
    static inline __device__ int exponent(unsigned largest)
    {
        const int found = static_cast<int>(largest >> 23) - 127;
        return wt::same<T, wt::f16> ? min(14 - found, 126) : found == 127 ? -1 : 0;
    }

    static inline __device__ T first(float x) { return wt::arch::Convert<T, float>::of(x); }

    static inline __device__ float rest(float x)
    {
        return magnitude(x) < INFINITE ? x - wt::arch::Convert<float, T>::of(first(x)) : 0.0f;
    }
};

// The reverse pass of a loop whose C has M x N elements, with operands of type T.
template <class T, int M, int N, int STAGE_BYTES> struct ReverseLoop {
    using Layout = BufferLayout<M, N * static_cast<int>(sizeof(T))>;
    static constexpr int PART_BYTES = (M * N * static_cast<int>(sizeof(T)) + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
    static constexpr int PARTS = sizeof(T) == 2 ? 2 : 1;
    static constexpr int PER_VECTOR = VECTOR_BYTES / static_cast<int>(sizeof(T)), VECTORS = M * N / PER_VECTOR;
    static constexpr int MOST = (VECTORS + WP_TILE_BLOCK_DIM - 1) / WP_TILE_BLOCK_DIM;  // of a thread

    unsigned gradient;  // address of the first part of G
    unsigned to, from;  // addresses of the stages of this iteration and of the one before
    float unscale;      // what the gradients are multiplied by, because G is scaled
    double alpha;       // what they are multiplied by, too: the factor of the product
    int parts;          // of G that are not zero
    int pending;        // true if an iteration is loaded and not yet multiplied
    int more;           // true if another iteration may follow

    // Copies G, in `memory` or elsewhere, to stage buffers in `memory`. The stages follow them. `factor` is that of the product.
    template <class Sum> inline __device__ void begin(unsigned memory, const Sum* c_gradient, double factor)
    {
        alpha = factor;
        gradient = (memory + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
        to = gradient + PARTS * PART_BYTES;
        from = to + STAGE_BYTES;
        unscale = 1;
        parts = 1;
        pending = false;
        more = true;
        WP_TILE_SYNC();  // other threads may still add to G
        wt::Vector<Sum, PER_VECTOR> values[MOST];
        for_each_own([&](int mine, int vector) {
            constexpr int PIECE = VECTOR_BYTES / static_cast<int>(sizeof(Sum));
#pragma unroll
            for (int i = 0; i < PER_VECTOR; i += PIECE) {
                const auto piece = wt::arch::load<PIECE>(c_gradient + vector * PER_VECTOR + i);
#pragma unroll
                for (int e = 0; e < PIECE; ++e)
                    values[mine].at[i + e] = piece.at[e];
            }
        });
        WP_TILE_SYNC();  // from here on the stage buffers may lie in G's memory
        if constexpr (PARTS == 2)
            scale(values);
        for_each_own([&](int mine, int vector) {
            wt::Vector<T, PER_VECTOR> first;
#pragma unroll
            for (int e = 0; e < PER_VECTOR; ++e)
                first.at[e] = wt::arch::Convert<T, Sum>::of(values[mine].at[e]);
            put(gradient, vector, first);
            if constexpr (PARTS == 2) {
                if (parts == 2) {
#pragma unroll
                    for (int e = 0; e < PER_VECTOR; ++e)
                        first.at[e] = Parts<T>::first(Parts<T>::rest(values[mine].at[e]));
                    put(gradient + PART_BYTES, vector, first);
                }
            }
        });
#if __CUDA_ARCH__ >= 900
        wt::arch::fence_for_wgmma();
#endif
        WP_TILE_SYNC();  // a loop without iterations has no other barrier, and the stage buffers may lie in G's memory
    }

    // Waits for the tiles of the iteration before.
    inline __device__ void wait() const
    {
        if (more)
            wt::arch::wait_for_copy_groups<1>();
        else
            wt::arch::wait_for_copies();
        WP_TILE_SYNC();
    }

    // Multiplies G and another operand.
    template <class Product> __forceinline__ __device__ void multiply(typename Product::Accumulators& accumulators, unsigned other) const
    {
        if (!takes_part<Product>())
            return;
        Product::start(accumulators);
        add<Product>(accumulators, gradient, other);
        if (PARTS == 2 && parts == 2)
            add<Product>(accumulators, gradient + PART_BYTES, other);
    }

    template <class Product> __forceinline__ __device__ void complete(typename Product::Accumulators& accumulators) const
    {
        if (takes_part<Product>())
            Product::complete(accumulators);
    }

    // Writes the accumulators of a product to a stage buffer, in the layout of the tile whose gradient they are.
    template <class Product, class Tile> inline __device__ void replace(const typename Product::Accumulators& accumulators, unsigned buffer) const
    {
        using Target = typename BufferLoader<Tile>::Layout;
        if (!takes_part<Product>())
            return;
        Product::visit(accumulators, [&](int row, int column, auto values) {
            constexpr int COUNT = sizeof(values) / sizeof(values.at[0]), SIZE = static_cast<int>(sizeof(T));
            const unsigned byte = column * SIZE;
            const unsigned at = buffer + Target::offset(row, byte / VECTOR_BYTES) + byte % VECTOR_BYTES;
#pragma unroll
            for (int e = 0; e < COUNT; ++e)
                values.at[e] *= static_cast<typename Product::Sum>(alpha);
            if constexpr (SIZE == 2) {
                static_assert(COUNT == 2, "accumulators of 16-bit operands are visited in pairs");
                const unsigned both = wt::arch::pack_rounded<T>(values.at[0] * unscale, values.at[1] * unscale);
                *static_cast<unsigned*>(__cvta_shared_to_generic(at)) = both;
            } else {
                wt::arch::store(static_cast<T*>(__cvta_shared_to_generic(at)), values);
            }
        });
    }

    inline __device__ void next()
    {
        const unsigned loaded = to;
        to = from;
        from = loaded;
        pending = true;
    }

private:
    template <class Product> static inline __device__ bool takes_part()
    {
        constexpr int THREADS = Product::Problem::threads;
        return THREADS == WP_TILE_BLOCK_DIM || threadIdx.x < THREADS;
    }

    template <class Act> static inline __device__ void for_each_own(const Act& act)
    {
#pragma unroll
        for (int mine = 0; mine < MOST; ++mine) {
            const int vector = mine * WP_TILE_BLOCK_DIM + static_cast<int>(threadIdx.x);
            if (VECTORS % WP_TILE_BLOCK_DIM == 0 || vector < VECTORS)
                act(mine, vector);
        }
    }

    static inline __device__ void put(unsigned buffer, int vector, const wt::Vector<T, PER_VECTOR>& value)
    {
        constexpr int PER_ROW = N / PER_VECTOR;
        const unsigned at = buffer + Layout::offset(vector / PER_ROW, vector % PER_ROW);
        wt::arch::store(static_cast<T*>(__cvta_shared_to_generic(at)), value);
    }

    // Scales the values, and finds out whether all are numbers of type T.
    inline __device__ void scale(wt::Vector<float, PER_VECTOR> (&values)[MOST])
    {
        using P = Parts<T>;
        unsigned largest = 0, has_rest = 0;
        for_each_own([&](int mine, int) {
#pragma unroll
            for (int e = 0; e < PER_VECTOR; ++e) {
                const unsigned found = P::magnitude(values[mine].at[e]);
                largest = found < P::INFINITE ? max(largest, found) : largest;
            }
        });
        const int exponent = P::exponent(block_max(gradient, largest));
        unscale = wt::arch::float_of(static_cast<unsigned>(127 - exponent) << 23);
        const float factor = wt::arch::float_of(static_cast<unsigned>(127 + exponent) << 23);
        for_each_own([&](int mine, int) {
#pragma unroll
            for (int e = 0; e < PER_VECTOR; ++e) {
                values[mine].at[e] *= factor;
                has_rest |= P::rest(values[mine].at[e]) != 0.0f;
            }
        });
        parts = 1 + static_cast<int>(block_max(gradient, has_rest));
    }

    template <class Product>
    static __forceinline__ __device__ void add(typename Product::Accumulators& accumulators, unsigned part, unsigned other)
    {
        if constexpr (Product::Problem::gradient_is_a)
            Product::add(accumulators, part, other);
        else
            Product::add(accumulators, other, part);
    }
};

// A tile's first row and column in its array, in this iteration and in the one before.
struct Places {
    int row, column, last_row, last_column;

    inline __device__ void next()
    {
        last_row = row;
        last_column = column;
    }
};

// The left side of an assignment that starts a load into a stage buffer and keeps its place: LoadPlaced {loader, buffer,
// places} << tile = source.
template <typename Loader> struct PlacedBuffer {
    const Loader& loader;
    unsigned address;
    Places& places;

    template <typename Global> inline __device__ void operator=(const Global& source)
    {
        places.row = source.offset[0];
        places.column = source.offset[1];
        StageBuffer<Loader> {loader, address} = source;
    }
};

template <typename Loader> struct LoadPlaced {
    const Loader& loader;
    unsigned address;
    Places& places;

    template <typename Tile> inline __device__ PlacedBuffer<Loader> operator<<(Tile&) const { return {loader, address, places}; }
};

// Adds the gradient of a tile, which lies in a stage buffer, to the gradient of the array from which the iteration before loaded
// it.
template <typename Tile, typename T>
inline __device__ void add_to_gradient(unsigned buffer, wp::array_t<T>& array, wp::array_t<T>& adj_array, const Places& places)
{
    using Shape = typename Tile::Layout::Shape;
    using Layout = typename BufferLoader<Tile>::Layout;
    constexpr int PER_ROW = BufferLoader<Tile>::PER_ROW, SIZE = static_cast<int>(sizeof(T));
    T* const to = adj_array.data ? adj_array.data : array.grad;
    if (!to)
        return;
    wp::tile_global_t<T, Shape> region(array, wp::tile_coord(places.last_row, places.last_column));
    if constexpr (VectorAdd<T>::EXISTS) {
        char* start;
        if (is_vectorizable<Shape>(to, region, start)) {
            for_each_vector<T, Shape>(array.strides[0], start, [&](unsigned i, char* address) {
                const unsigned from = buffer + Layout::offset(i / PER_ROW, i % PER_ROW);
                VectorAdd<T>::add(address, *static_cast<const uint4*>(__cvta_shared_to_generic(from)));
            });
            return;
        }
    }
    region.data.grad = to;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < Shape::size(); i += WP_TILE_BLOCK_DIM) {
        const int row = i / Shape::dim(1), column = i % Shape::dim(1);
        const unsigned from = buffer + Layout::offset(row, column * SIZE / VECTOR_BYTES) + column * SIZE % VECTOR_BYTES;
        region.atomic_add_grad(wp::tile_coord(row, column), *static_cast<const T*>(__cvta_shared_to_generic(from)));
    }
}

}  // namespace wt_module
