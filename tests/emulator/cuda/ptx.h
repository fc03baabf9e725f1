// SPDX-License-Identifier: Apache-2.0
//
// The PTX instructions of modules and of Warp's headers. ../native.py replaces asm statements by calls of these functions.
// A function has the name of the mnemonic and the operands in the order of the instruction.

#pragma once

namespace wt_ptx {

// ---- kernels/arch/copy.cuh

inline void mad_wide_s32(char*& sum, int x, int y, char* z) { sum = z + (long long)(x) * y; }

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

inline void atom_add_f64(double& old, double* address, double x) { old = atomicAdd(address, x); }

}  // namespace wt_ptx
