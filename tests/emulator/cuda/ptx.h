// SPDX-License-Identifier: Apache-2.0
//
// The PTX instructions of modules and of Warp's headers. ../native.py replaces asm statements by calls of these functions.
// A function has the name of the mnemonic and the operands in the order of the instruction.

#pragma once

namespace wt_ptx {

// ---- kernels/arch/copy.cuh

inline void mad_wide_s32(char*& sum, int x, int y, char* z) { sum = z + (long long)(x) * y; }

inline void mov_b32(int& same, int x) { same = x; }

inline void add_rn_f32(float& sum, float x, float y) { sum = x + y; }

inline void cp_async_cg_shared_global(unsigned to, const void* from, int bytes)
{
    wt::emulator::start_copy(to, from, bytes, bytes);
}

inline void cp_async_ca_shared_global(unsigned to, const void* from, int bytes, unsigned valid_bytes)
{
    wt::emulator::start_copy(to, from, bytes, int(valid_bytes));
}

inline void cp_async_cg_shared_global(unsigned to, const void* from, int bytes, unsigned valid_bytes)
{
    wt::emulator::start_copy(to, from, bytes, int(valid_bytes));
}

inline void cp_async_commit_group() { wt::emulator::commit_copies(); }
inline void cp_async_wait_group(int pending) { wt::emulator::wait_for_copies(pending); }
inline void cp_async_wait_all() { wt::emulator::wait_for_copies(); }

inline void red_relaxed_gpu_global_add_v4_f32(void* to, float a, float b, float c, float d)
{
    wt::emulator::vector_add_f32(to, a, b, c, d);
}

inline void red_relaxed_gpu_global_add_noftz_v4_f16x2(void* to, unsigned a, unsigned b, unsigned c, unsigned d)
{
    wt::emulator::vector_add_f16x2(to, a, b, c, d);
}

inline void red_relaxed_gpu_global_add_noftz_v4_bf16x2(void* to, unsigned a, unsigned b, unsigned c, unsigned d)
{
    wt::emulator::vector_add_bf16x2(to, a, b, c, d);
}

// ---- kernels/arch/tensor_copy.cuh

inline void mbarrier_init_shared_cta_b64(unsigned mbarrier, unsigned arrivals)
{
    wt::emulator::start_mbarrier(mbarrier, arrivals);
}
inline void mbarrier_inval_shared_cta_b64(unsigned mbarrier) { wt::emulator::end_mbarrier(mbarrier); }
inline void fence_mbarrier_init_release_cluster() { wt::emulator::fence_mbarriers(); }
inline void mbarrier_arrive_expect_tx_shared_cta_b64(unsigned mbarrier, unsigned bytes)
{
    wt::emulator::arrive_and_expect(mbarrier, bytes);
}
inline void mbarrier_arrive_shared_cta_b64(unsigned mbarrier) { wt::emulator::arrive_and_expect(mbarrier, 0); }
inline void mbarrier_try_wait_parity_shared_cta_b64(unsigned mbarrier, unsigned parity)
{
    wt::emulator::wait_for_phase(mbarrier, parity);
}
inline void prefetch_tensormap(const void* map) { wt::emulator::check_tensor_map(map); }

#define WT_COPY_TENSOR(NAME, RANK)                                                                                     \
    template <class... Numbers> inline void NAME(unsigned to, const void* map, Numbers... start_and_mbarrier)          \
    {                                                                                                                  \
        static_assert(sizeof...(Numbers) == RANK + 1, "as many coordinates as dimensions, and an mbarrier");           \
        const int numbers[] = {int(start_and_mbarrier)...};                                                            \
        wt::emulator::start_tensor_copy(to, map, unsigned(numbers[RANK]), numbers, RANK);                              \
    }
WT_COPY_TENSOR(cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes, 2)
WT_COPY_TENSOR(cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes, 3)
WT_COPY_TENSOR(cp_async_bulk_tensor_4d_shared_cluster_global_mbarrier_complete_tx_bytes, 4)
WT_COPY_TENSOR(cp_async_bulk_tensor_5d_shared_cluster_global_mbarrier_complete_tx_bytes, 5)
#undef WT_COPY_TENSOR

// ---- kernels/arch/cluster.cuh

inline void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    unsigned to, const void* map, int x, int y, int z, unsigned mbarrier, unsigned blocks)
{
    const int start[] = {x, y, z};
    wt::emulator::start_tensor_copy_to_blocks(to, map, mbarrier, start, 3, blocks);
}
inline void mapa_shared_cluster_u32(unsigned& found, unsigned address, unsigned block)
{
    found = wt::emulator::address_of_block(address, block);
}
inline void mbarrier_arrive_shared_cluster_b64(unsigned mbarrier) { wt::emulator::arrive_at_block(mbarrier); }
inline void barrier_cluster_arrive_release() { wt::emulator::arrive_at_cluster(); }
inline void barrier_cluster_wait_acquire() { wt::emulator::wait_for_cluster(); }

// ---- kernels/arch/tensor_store.cuh

inline void cp_async_bulk_tensor_3d_global_shared_cta_bulk_group(const void* map, int x, int y, int z, unsigned from)
{
    const int start[] = {x, y, z};
    wt::emulator::start_tensor_store(map, start, 3, from);
}
inline void cp_async_bulk_commit_group() { wt::emulator::commit_tensor_stores(); }
inline void cp_async_bulk_wait_group_read(int pending) { wt::emulator::wait_for_tensor_stores(pending); }
inline void setmaxnreg_dec_sync_aligned_u32(int count) { wt::emulator::set_registers(count, false); }
inline void setmaxnreg_inc_sync_aligned_u32(int count) { wt::emulator::set_registers(count, true); }
inline void bar_sync(int number, int threads) { wt::emulator::named_barrier(number, threads); }

// ---- warp_tiles/array_products/kernels.py

inline void prefetch_global_L2(const void* address)
{
    if (!wt::emulator::is_global(address)) wt::emulator::fail("a prefetch outside of all arrays", __FILE__, __LINE__);
}

// ---- kernels/cublasdx/block_gemm.cuh

// Row `row` of the i-th matrix, whose address lane 8 * i + row passes.
inline char* wt_matrix_row(unsigned address, int i, int row)
{
    unsigned found;
    wt::emulator::shuffle(0xffffffffu, &found, &address, int(sizeof(found)), 8 * i + row);
    if (found % 16) wt::emulator::fail("a row of a matrix is not aligned to 16 bytes", __FILE__, __LINE__);
    return static_cast<char*>(wt::emulator::shared_pointer(found));
}

// A lane's word of the i-th matrix: elements (g, 2q) and (g, 2q + 1), or of the transpose (2q, g) and (2q + 1, g)
template <bool TRANSPOSED> inline void wt_load_matrix(unsigned& to, unsigned address, int i)
{
    const int g = int(threadIdx.x) % 32 / 4, q = int(threadIdx.x) % 4;
    if (TRANSPOSED) {
        const char *const first = wt_matrix_row(address, i, 2 * q), *const second = wt_matrix_row(address, i, 2 * q + 1);
        to = reinterpret_cast<const unsigned short*>(first)[g]
            | unsigned(reinterpret_cast<const unsigned short*>(second)[g]) << 16;
    } else {
        to = reinterpret_cast<const unsigned*>(wt_matrix_row(address, i, g))[q];
    }
}

template <bool TRANSPOSED> inline void wt_store_matrix(unsigned from, unsigned address, int i)
{
#if __CUDA_ARCH__ < 900
    wt::emulator::fail("stmatrix needs sm_90", __FILE__, __LINE__);
#endif
    const int g = int(threadIdx.x) % 32 / 4, q = int(threadIdx.x) % 4;
    if (TRANSPOSED) {
        char *const first = wt_matrix_row(address, i, 2 * q), *const second = wt_matrix_row(address, i, 2 * q + 1);
        reinterpret_cast<unsigned short*>(first)[g] = (unsigned short)(from);
        reinterpret_cast<unsigned short*>(second)[g] = (unsigned short)(from >> 16);
    } else {
        reinterpret_cast<unsigned*>(wt_matrix_row(address, i, g))[q] = from;
    }
}

#define WT_LDMATRIX(NAME, TRANSPOSED)                                                                                  \
    template <class... Operands> inline void NAME(Operands&&... words_and_address)                                     \
    {                                                                                                                  \
        unsigned* const words[] = {const_cast<unsigned*>(&words_and_address)...};                                      \
        constexpr int count = int(sizeof...(Operands)) - 1;                                                            \
        for (int i = 0; i < count; ++i) wt_load_matrix<TRANSPOSED>(*words[i], *words[count], i);                       \
    }
WT_LDMATRIX(ldmatrix_sync_aligned_m8n8_x1_shared_b16, false)
WT_LDMATRIX(ldmatrix_sync_aligned_m8n8_x2_shared_b16, false)
WT_LDMATRIX(ldmatrix_sync_aligned_m8n8_x4_shared_b16, false)
WT_LDMATRIX(ldmatrix_sync_aligned_m8n8_x1_trans_shared_b16, true)
WT_LDMATRIX(ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16, true)
WT_LDMATRIX(ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16, true)
#undef WT_LDMATRIX

#define WT_STMATRIX(NAME, TRANSPOSED)                                                                                  \
    template <class... Words> inline void NAME(unsigned address, Words... words)                                       \
    {                                                                                                                  \
        int i = 0;                                                                                                     \
        (wt_store_matrix<TRANSPOSED>(words, address, i++), ...);                                                       \
    }
WT_STMATRIX(stmatrix_sync_aligned_m8n8_x1_shared_b16, false)
WT_STMATRIX(stmatrix_sync_aligned_m8n8_x2_shared_b16, false)
WT_STMATRIX(stmatrix_sync_aligned_m8n8_x4_shared_b16, false)
WT_STMATRIX(stmatrix_sync_aligned_m8n8_x1_trans_shared_b16, true)
WT_STMATRIX(stmatrix_sync_aligned_m8n8_x2_trans_shared_b16, true)
WT_STMATRIX(stmatrix_sync_aligned_m8n8_x4_trans_shared_b16, true)
#undef WT_STMATRIX

// ---- native/builtin.h

inline void cvt_rn_f16_f32(unsigned short& to, float x) { to = wt::emulator::f16_of(double(x)); }
inline void cvt_f32_f16(float& to, unsigned short x) { to = wt::emulator::float_of_f16(x); }
inline void cvt_rn_bf16_f32(unsigned short& to, float x) { to = wt::emulator::bf16_of(double(x)); }
#define WT_BFLOAT16(NAME, OPERATOR)                                                                                    \
    inline void NAME(unsigned short& to, unsigned short x, unsigned short y)                                           \
    {                                                                                                                  \
        const double a = wt::emulator::float_of_bits(unsigned(x) << 16);                                               \
        const double b = wt::emulator::float_of_bits(unsigned(y) << 16);                                               \
        to = wt::emulator::bf16_of(a OPERATOR b);                                                                      \
    }
WT_BFLOAT16(add_bf16, +)
WT_BFLOAT16(sub_bf16, -)
WT_BFLOAT16(mul_bf16, *)
#undef WT_BFLOAT16

inline void rcp_approx_f32(float& to, float x) { to = 1.0f / x; }
inline void rcp_approx_ftz_f64(double& to, double x) { to = 1.0 / x; }
inline void div_approx_f32(float& to, float x, float y) { to = x / y; }

__attribute__((no_sanitize("thread"))) inline void
atom_add_noftz_f16(unsigned short& old, void* address, unsigned short x)
{
    wt::emulator::atomic(address, 2);
    unsigned short& sum = *static_cast<unsigned short*>(address);
    old = sum;
    sum = wt::emulator::f16_of(double(wt::emulator::float_of_f16(old)) + double(wt::emulator::float_of_f16(x)));
}

__attribute__((no_sanitize("thread"))) inline void
atom_add_noftz_bf16(unsigned short& old, void* address, unsigned short x)
{
    wt::emulator::atomic(address, 2);
    unsigned short& sum = *static_cast<unsigned short*>(address);
    old = sum;
    const float a = wt::emulator::float_of_bits(unsigned(old) << 16), b = wt::emulator::float_of_bits(unsigned(x) << 16);
    sum = wt::emulator::bf16_of(double(a) + double(b));
}

inline void atom_acq_rel_gpu_global_add_s32(int& old, int* counter, int x)
{
    __threadfence();
    old = atomicAdd(counter, x);
    __threadfence();
}
inline void atom_add_f64(double& old, double* address, double x) { old = atomicAdd(address, x); }

}  // namespace wt_ptx
