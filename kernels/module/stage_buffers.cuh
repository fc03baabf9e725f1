// SPDX-License-Identifier: Apache-2.0
//
// The stages of a loop's pipeline. A stage has a buffer for each tile that an iteration loads. The stage buffers are swizzled
// as wgmma and ldmatrix need it, so their elements are not where Warp's tiles have them.
#pragma once

#include "arch/memory.cuh"
#include "arch/wgmma.cuh"
#include "module/loads.cuh"

namespace wt_module {

// The layout of a tile in a stage buffer. Its rows are cut into panels of at most 128 bytes. Panels lie one after another. The
// 16-byte vectors of a panel's row are permuted by XOR with bits 7 and up of the row's offset: the swizzling modes of
// https://docs.nvidia.com/cuda/parallel-thread-execution/#tensor-swizzling-modes
template <int ROWS, int ROW_BYTES> struct BufferLayout {
    static constexpr int WIDTH = ROW_BYTES % 128 == 0 ? 128 : ROW_BYTES % 64 == 0 ? 64 : 32;  // bytes of a panel's row
    static constexpr int VECTORS = WIDTH / VECTOR_BYTES;                                        // of a panel's row
    static constexpr int PANEL_BYTES = ROWS * WIDTH;

    static_assert(ROW_BYTES % 32 == 0 && ROWS % 8 == 0, "a buffer has whole swizzle patterns");

    // Returns the offset of a vector, in bytes.
    static inline __device__ unsigned offset(unsigned row, unsigned vector)
    {
        const unsigned swizzled = (vector % VECTORS) ^ (row * WIDTH / 128 % VECTORS);
        return vector / VECTORS * PANEL_BYTES + row * WIDTH + swizzled * VECTOR_BYTES;
    }

    // Returns the address of the vector that lies `step` vectors after the one at an address, in the same row. Their indices
    // in a panel must have no bit in common, so that their sum is their XOR.
    static inline __device__ unsigned after(unsigned address, unsigned step)
    {
        return (address ^ step % VECTORS * VECTOR_BYTES) + step / VECTORS * PANEL_BYTES;
    }
};

// The layout of an fp32 stage buffer repeats after so many elements along K. A stage buffer that is contiguous along K has panels
// of so many.
inline __device__ constexpr int buffer_period(int k) { return k % 32 == 0 ? 32 : k % 16 == 0 ? 16 : 8; }

constexpr int STAGE_ALIGNMENT = 1024;  // bytes; the swizzling pattern repeats after so many

// The bytes of the shortest async copies of elements.
template <typename T> constexpr int shortest_copy() { return sizeof(T) < 4 ? 4 : static_cast<int>(sizeof(T)); }

// Returns the bytes of the async copies that can load a tile: 16, or fewer if its rows begin at multiples of them. 0 if none can,
// because its rows begin elsewhere or their elements have gaps.
template <typename T, typename Global> inline __device__ int copy_alignment(const Global& source)
{
    constexpr int SIZE = static_cast<int>(sizeof(T)), WORD = shortest_copy<T>();
    const auto& strides = source.data.strides;
    if (!__isGlobal(source.data.data) || strides[1] != SIZE || source.offset[0] < 0 || source.offset[1] < 0)
        return 0;
    const unsigned all = unsigned(reinterpret_cast<uint64_t>(source.data.data)) | unsigned(strides[0]) | unsigned(source.offset[1]) * SIZE;
    return all % VECTOR_BYTES == 0 ? VECTOR_BYTES : all % 8 == 0 ? 8 : all % WORD == 0 ? WORD : 0;
}

// The index of a thread among THREADS that load a tile together: the block, or a warpgroup of it.
template <int THREADS> inline __device__ int loading_thread()
{
    return static_cast<int>(THREADS == WP_TILE_BLOCK_DIM ? threadIdx.x : threadIdx.x % THREADS);
}

// Loads a tile into a stage buffer by async copies of BYTES, with zeros outside the array. All copies must be aligned.
template <typename Layout, typename T, typename Shape, int BYTES, int THREADS, typename Global>
inline __device__ void copy_clipped(unsigned buffer, const Global& source)
{
    constexpr int SIZE = static_cast<int>(sizeof(T)), ROWS = Shape::dim(0), PER_ROW = Shape::dim(1) * SIZE / BYTES;
    constexpr int ALONG = PER_ROW < THREADS ? PER_ROW : THREADS, PASS_ROWS = THREADS / ALONG;
    // The rows of a thread differ by constants. If the first one and these have no bit in common, so do its addresses, but for an XOR.
    // Loops with small tiles of fp64 would lose resident blocks by the registers of all these addresses.
    constexpr bool SMALL = SIZE == 8 && ROWS * Shape::dim(1) < 1024;
    constexpr bool CONSTANT = !SMALL && (PASS_ROWS & (PASS_ROWS - 1)) == 0 && ROWS % PASS_ROWS == 0 && ROWS / PASS_ROWS <= 16;
    constexpr int PASSES = (ROWS + PASS_ROWS - 1) / PASS_ROWS, UNROLLED = CONSTANT ? PASSES : 2;
    const int64_t stride = source.data.strides[0];
    const int y = source.offset[0], x = source.offset[1], thread = wt::arch::opaque(loading_thread<THREADS>());
    const int rows = min(source.data.shape[0] - y, ROWS), row_bytes = max(0, min(source.data.shape[1] - x, Shape::dim(1))) * SIZE;
    const char* const tile = reinterpret_cast<const char*>(source.data.data) + int64_t(x) * SIZE + stride * y;
    if (thread >= PASS_ROWS * ALONG)
        return;
    const int first = thread / ALONG;
#pragma unroll 1
    for (int column = thread % ALONG; column < PER_ROW; column += ALONG) {
        const int at = column * BYTES;
        const unsigned inside = max(0, min(row_bytes - at, BYTES));
        const unsigned start = buffer + Layout::offset(first, at / VECTOR_BYTES) + at % VECTOR_BYTES;
        const char* from = tile + stride * first + at;
#pragma unroll UNROLLED
        for (int pass = 0; pass < PASSES; ++pass) {
            const int row = pass * PASS_ROWS;
            if (ROWS % PASS_ROWS != 0 && first + row >= ROWS)
                break;
            const unsigned to = CONSTANT ? (start ^ row * Layout::WIDTH / 128 % Layout::VECTORS * VECTOR_BYTES) + row * Layout::WIDTH
                                         : buffer + Layout::offset(first + row, at / VECTOR_BYTES) + at % VECTOR_BYTES;
            const unsigned valid = row < rows - first ? inside : 0;
            if constexpr (BYTES == VECTOR_BYTES)
                wt::arch::copy_async_16(to, from, valid);
            else
                wt::arch::copy_async<BYTES>(to, from, valid);
            from += stride * PASS_ROWS;
        }
    }
}

// Loads a tile of an array into a stage buffer, with zeros outside the array: the general case. WITHOUT_VECTORS: other code loads
// most tiles that async copies of 16 bytes can load.
template <typename Layout, typename T, typename Shape, bool WITHOUT_VECTORS, int THREADS, typename Global>
inline __device__ void load_buffer(unsigned buffer, const Global& source)
{
    constexpr int PER_VECTOR = VECTOR_BYTES / static_cast<int>(sizeof(T)), PER_ROW = Shape::dim(1) / PER_VECTOR, VECTORS = Shape::dim(0) * PER_ROW;
    const int alignment = copy_alignment<T>(source);
    if (!WITHOUT_VECTORS && alignment == VECTOR_BYTES) {
        copy_clipped<Layout, T, Shape, VECTOR_BYTES, THREADS>(buffer, source);
    } else if (alignment >= 8) {
        copy_clipped<Layout, T, Shape, 8, THREADS>(buffer, source);
    } else if (sizeof(T) < 8 && alignment) {
        copy_clipped<Layout, T, Shape, shortest_copy<T>(), THREADS>(buffer, source);
    } else {
        const int stride = wt::arch::opaque(source.data.strides[1]);  // otherwise multiples of it take registers from the loop
#pragma unroll 1
        for (int i = wt::arch::opaque(loading_thread<THREADS>()); i < VECTORS; i += THREADS) {
            const int row = i / PER_ROW, column = i % PER_ROW * PER_VECTOR;
            const char* const first = reinterpret_cast<const char*>(source.data.data) + source.byte_offset_from_coord(wp::tile_coord(row, column));
            int inside = PER_VECTOR;  // elements before these are loaded
            if (Global::bounds_check)
                inside = source.offset[0] + row < source.data.shape[0] ? source.data.shape[1] - source.offset[1] - column : 0;
            wt::Vector<T, PER_VECTOR> values;
#pragma unroll
            for (int e = 0; e < PER_VECTOR; ++e)
                values.at[e] = e < inside ? *reinterpret_cast<const T*>(first + int64_t(stride) * e) : T {};
            const unsigned to = buffer + Layout::offset(row, i % PER_ROW);
            wt::arch::store(static_cast<T*>(__cvta_shared_to_generic(to)), values);
        }
#if __CUDA_ARCH__ >= 900
        wt::arch::fence_for_wgmma();  // async copies need none, as in CUTLASS's MainloopSm90CpAsyncGmma
#endif
    }
}

// Returns a value that is the same in all lanes, so that the compiler knows that it is. It does not compute the value again in
// a loop either, as it would even if registers were free.
template <typename T> inline __device__ T uniform(T value)
{
#ifdef __CUDACC_DEBUG__  // nvJitLink rejects some modules with debug information if they have shuffles here
    return value;
#else
    return __shfl_sync(0xffffffffu, value, 0);
#endif
}

// Loads the tiles of one array into stage buffers. begin() computes all values that are constant in the loop, because tensor
// cores wait for the instructions between two products.
template <typename Tile, int THREADS> struct ThreadsLoader {
    using T = typename Tile::Type;
    using Shape = typename Tile::Layout::Shape;
    static constexpr int ROWS = Shape::dim(0), PER_ROW = Shape::dim(1) * static_cast<int>(sizeof(T)) / VECTOR_BYTES;
    static constexpr int PER_VECTOR = VECTOR_BYTES / static_cast<int>(sizeof(T));
    using Layout = BufferLayout<ROWS, PER_ROW * VECTOR_BYTES>;

    // The threads load PASS_ROWS rows in a pass. The swizzling pattern repeats after eight rows, so after PERIOD passes a
    // thread's offsets in the stage buffer differ by constants.
    static constexpr bool WHOLE_PASSES = THREADS % PER_ROW == 0 && ROWS % (THREADS / PER_ROW) == 0;
    static constexpr int PASS_ROWS = WHOLE_PASSES ? THREADS / PER_ROW : 1, PASSES = ROWS / PASS_ROWS;
    static constexpr int PERIOD = PASS_ROWS % 8 == 0 ? 1 : PASS_ROWS % 4 == 0 ? 2 : PASS_ROWS % 2 == 0 ? 4 : 8;

    static constexpr int PERIOD_BYTES = PERIOD * PASS_ROWS * Layout::WIDTH;  // of a stage buffer

    // Each pass adds pass_bytes, which has 32 bits, to the address of the pass before. Without the opaque copy the compiler
    // multiplies the stride for each pass, which takes longer. Loops of fp64 multiply, because they are short of registers.
    static constexpr bool ADDS_PASS_BYTES = sizeof(T) < 8;
    static constexpr unsigned LARGEST_STRIDE = 0x7fffffffu / PASS_ROWS;  // a negative stride is larger, and takes the general case

    const char* thread_start;  // the thread's vector of the tile at the array's start
    int stride;                // bytes between rows
    bool vectors;              // true if async copies of vectors can read the array
    int rows, columns;         // offsets below these are inside such an array; else zeros
    unsigned to[PERIOD];       // the thread's offsets in a stage buffer

    char* data;          // of the array, which the tile that copy_pass() or load_requested() loads has
    int y, x;            // offsets of this tile
    unsigned buffer;     // to which it is loaded
    const char* vector;  // that copy_pass() copies next

    template <typename Array> inline __device__ void begin(const Array& array)
    {
        const char* const first = reinterpret_cast<const char*>(array.data);
        stride = array.strides[0];
        vectors = WHOLE_PASSES && __isGlobal(first) && array.strides[1] == sizeof(T) && stride % VECTOR_BYTES == 0
            && reinterpret_cast<uint64_t>(first) % VECTOR_BYTES == 0 && unsigned(stride) <= LARGEST_STRIDE;
        rows = uniform(vectors ? max(array.shape[0] - ROWS + 1, 0) : 0);
        columns = uniform(vectors ? max(array.shape[1] - Shape::dim(1) + 1, 0) : 0);
        const int row = loading_thread<THREADS>() / PER_ROW, vector = loading_thread<THREADS>() % PER_ROW;
        thread_start = first + int64_t(stride) * row + vector * VECTOR_BYTES;
        if constexpr (WHOLE_PASSES) {
#pragma unroll
            for (int i = 0; i < PERIOD; ++i)  // opaque, so that the compiler does not compute them again in each iteration
                to[i] = wt::arch::opaque(static_cast<int>(Layout::offset(row + i * PASS_ROWS, vector)));
        }
    }

    template <typename Global> inline __device__ void load(unsigned buffer, const Global& source) const
    {
        const int y = source.offset[0], x = source.offset[1];
        if (WHOLE_PASSES && unsigned(y) < unsigned(rows) && unsigned(x) < unsigned(columns) && x % PER_VECTOR == 0)
            copy<false>(buffer, y, x, ROWS, Shape::dim(1));
        else if (vectors && (y | x) >= 0 && x % PER_VECTOR == 0)
            copy<true>(buffer, y, x, wt::arch::opaque(source.data.shape[0] - y), wt::arch::opaque(source.data.shape[1] - x));
        else
            load_buffer<Layout, T, Shape, WHOLE_PASSES, THREADS>(buffer, source);
    }

    // Remembers a tile. Returns true if copy_pass() can load it: it lies inside the array. Else load_requested() loads it.
    template <typename Global> inline __device__ bool request(unsigned to_buffer, const Global& source)
    {
        data = reinterpret_cast<char*>(source.data.data);
        y = source.offset[0], x = source.offset[1], buffer = to_buffer;
        return WHOLE_PASSES & (unsigned(y) < unsigned(rows)) & (unsigned(x) < unsigned(columns)) & (x % PER_VECTOR == 0);
    }

    template <typename Array> inline __device__ void load_requested(Array& array) const
    {
        load(buffer, wp::tile_global_t<T, Shape>(array, wp::tile_coord(y, x)));
    }

    // Issues the copies of a pass, if `requested`. All passes are called in order.
    inline __device__ void copy_pass(int requested, int pass)
    {
        if (pass == 0) {
            int thread = loading_thread<THREADS>();
            if constexpr (sizeof(T) == 8)
                thread = wt::arch::opaque(thread);  // otherwise parts of the address take registers from the loop
            const int row = thread / PER_ROW, first = thread % PER_ROW;
            vector = wt::arch::mad_wide(stride, y + row, data + unsigned(x * static_cast<int>(sizeof(T)) + first * VECTOR_BYTES));
        }
        wt::arch::copy_async_16_if(requested, buffer + to[pass % PERIOD] + pass / PERIOD * PERIOD_BYTES, vector);
        vector += ADDS_PASS_BYTES ? int64_t(wt::arch::opaque(stride * PASS_ROWS)) : int64_t(stride) * PASS_ROWS;
    }

private:
    // Copies the tile at row y and column x of the array. CLIPPED: only `inside_rows` and `inside_columns` of it lie in the
    // array.
    template <bool CLIPPED> inline __device__ void copy(unsigned buffer, int y, int x, int inside_rows, int inside_columns) const
    {
        const char* vector = thread_start + int64_t(stride) * y + unsigned(x) * unsigned(sizeof(T));
        const unsigned pass_bytes = ADDS_PASS_BYTES ? wt::arch::opaque(stride * PASS_ROWS) : 0;
        if constexpr (CLIPPED) {
            const int thread = wt::arch::opaque(loading_thread<THREADS>()), elements = inside_columns - thread % PER_ROW * PER_VECTOR;
            if (elements > 0 && elements < PER_VECTOR) {
                copy_cut(buffer, vector, thread, inside_rows, elements * static_cast<int>(sizeof(T)));
                return;
            }
            inside_rows = elements > 0 ? inside_rows - thread / PER_ROW : 0;  // from the thread's first row on
        }
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const unsigned address = buffer + to[pass % PERIOD] + pass / PERIOD * PERIOD_BYTES;
            if constexpr (CLIPPED)
                wt::arch::copy_async_16(address, vector, pass * PASS_ROWS < inside_rows ? VECTOR_BYTES : 0);
            else
                wt::arch::copy_async_16(address, vector);
            vector += ADDS_PASS_BYTES ? int64_t(pass_bytes) : int64_t(stride) * PASS_ROWS;
        }
    }

    // Copies a thread's vectors of a tile if the array ends within each, after so many bytes.
    inline __device__ void copy_cut(unsigned buffer, const char* vector, int thread, int inside_rows, int valid_bytes) const
    {
#pragma unroll 1
        for (int row = thread / PER_ROW; row < ROWS; row += PASS_ROWS) {
            wt::arch::copy_async_16(buffer + Layout::offset(row, thread % PER_ROW), vector, row < inside_rows ? valid_bytes : 0);
            vector += int64_t(stride) * PASS_ROWS;
        }
    }
};

template <typename Tile> using BufferLoader = ThreadsLoader<Tile, WP_TILE_BLOCK_DIM>;

// The left side of an assignment that starts a load into a stage buffer: LoadBuffer {loader, stage buffer} << tile = source.
template <typename Loader> struct StageBuffer {
    const Loader& loader;
    unsigned address;

    template <typename Global> inline __device__ void operator=(const Global& source)
    {
        check_alignment<typename Loader::Shape>(source);
        loader.load(address, source);
    }
};

template <typename Loader> struct LoadBuffer {
    const Loader& loader;
    unsigned address;

    template <typename Tile> inline __device__ StageBuffer<Loader> operator<<(Tile&) const { return {loader, address}; }
};

// The same for a tile that the products of this K-iteration load between their instructions, if `requested` stays true.
template <typename Loader> struct RequestedBuffer {
    Loader& loader;
    unsigned address;
    int& requested;

    template <typename Global> inline __device__ void operator=(const Global& source)
    {
        check_alignment<typename Loader::Shape>(source);
        requested &= loader.request(address, source);
    }
};

template <typename Loader> struct RequestBuffer {
    Loader& loader;
    unsigned address;
    int& requested;

    template <typename Tile> inline __device__ RequestedBuffer<Loader> operator<<(Tile&) const { return {loader, address, requested}; }
};

// Issues the passes from `first` to `last` of the tiles that loaders were asked for, counted through all of them.
template <class Loader, class... More> inline __device__ void issue_copies(int requested, int first, int last, Loader& loader, More&... more)
{
#pragma unroll
    for (int pass = 0; pass < Loader::PASSES; ++pass)
        if (pass >= first && pass < last)
            loader.copy_pass(requested, pass);
    if constexpr (sizeof...(More) > 0)
        issue_copies(requested, first - Loader::PASSES, last - Loader::PASSES, more...);
}

// The same for an array that the loop may change.
template <template <typename> class Loader> struct LoadBufferOnce {
    unsigned address;

    template <typename Tile> struct Destination {
        unsigned address;

        template <typename Global> inline __device__ void operator=(const Global& source)
        {
            Loader<Tile> loader;
            loader.begin(source.data);
            StageBuffer<Loader<Tile>> {loader, address} = source;
        }
    };

    template <typename Tile> inline __device__ Destination<Tile> operator<<(Tile&) const { return {address}; }
};

// The stages of a loop, as a ring. The tiles of a K-iteration are multiplied PREFETCH_DISTANCE K-iterations after they were
// loaded, while the products of IN_FLIGHT earlier ones may be in progress. After the last iteration of the loop, the program jumps
// to the products until none is pending.
template <int STAGES, int IN_FLIGHT, int STAGE_BYTES> struct Ring {
    static constexpr int PREFETCH_DISTANCE = STAGES - 1 - IN_FLIGHT;

    static_assert(PREFETCH_DISTANCE >= 1, "what a barrier waits for is loaded before it");

    unsigned start, to, from;  // addresses of the first stage, of the next load, and of the next products
    int pending;               // number of K-iterations that are loaded and not yet multiplied
    int more;                  // true if another iteration may follow
    int requested;             // true if the products issue the copies of the next K-iteration

    inline __device__ void begin(unsigned memory)
    {
        start = to = from = uniform((memory + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT);
        pending = 0;
        more = true;
        WP_TILE_SYNC();  // the stages lie in memory that other threads may still read
    }

    inline __device__ unsigned next(unsigned stage) const
    {
        return stage == start + (STAGES - 1) * STAGE_BYTES ? start : stage + STAGE_BYTES;
    }

    // Returns true if a K-iteration is to be multiplied now.
    inline __device__ bool due() const { return pending == PREFETCH_DISTANCE || !more; }

    // Waits until the next K-iteration has arrived, and until all threads have multiplied the stage that is loaded meanwhile.
    // GROUPS: of asynchronous products in a K-iteration
    template <int GROUPS> inline __device__ void wait()
    {
        if (more)
            wt::arch::wait_for_copy_groups<PREFETCH_DISTANCE - 1>();
        else
            wt::arch::wait_for_copies();
        if constexpr (GROUPS != 0) {
            constexpr int MOST = 7;  // that the instruction can leave pending
            wt::arch::wgmma_wait<(IN_FLIGHT * GROUPS < MOST ? IN_FLIGHT * GROUPS : MOST)>();
        }
        WP_TILE_SYNC();
    }

    // ---- with products that load between their instructions. Then the block waits at the end of a K-iteration.

    // Returns true if K-iterations are to be multiplied from now on.
    inline __device__ bool is_full() const { return pending == PREFETCH_DISTANCE; }

    // Waits until the next K-iteration has arrived, and until all threads have read the stage that is loaded next.
    inline __device__ void wait_for_next() const
    {
        wt::arch::wait_for_copy_groups<PREFETCH_DISTANCE - 1>();
        WP_TILE_SYNC();
    }

    // After the products of a K-iteration, whose stage is loaded next
    inline __device__ void advance()
    {
        wt::arch::commit_copies();
        wait_for_next();
        to = from;
        from = next(from);
    }

    // After the loads of a K-iteration that were not left to the products. If it is multiplied next, nothing else waits for it.
    inline __device__ void loaded_alone()
    {
        wt::arch::commit_copies();
        if (!is_full()) {
            to = next(to);
            if (++pending == PREFETCH_DISTANCE)
                wait_for_next();
        } else if constexpr (PREFETCH_DISTANCE == 1) {
            wait_for_next();
        }
    }

    // After the loop
    inline __device__ void finish_loads()
    {
        more = requested = false;
        wt::arch::wait_for_copies();
        WP_TILE_SYNC();
    }

    inline __device__ void multiplied()
    {
        from = next(from);
        --pending;
    }

    inline __device__ void loaded()
    {
        to = next(to);
        ++pending;
    }
};

}  // namespace wt_module
