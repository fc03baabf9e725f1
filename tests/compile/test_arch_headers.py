"""Instructions of tensor copies, of every rank: NVRTC compiles and assembles them."""

import pytest

from warp_tiles.compile.compiler import open_nvrtc
from warp_tiles.compile.find import find_toolchain
from warp_tiles.compile.sources import kernels_folder

# Each function is called twice, because labels of two copies of its instructions must differ.
TENSOR_COPIES = """
#include "arch/tensor_copy.cuh"

struct alignas(64) TensorMap {
    unsigned long long words[16];
};

extern "C" __global__ void copies(const __grid_constant__ TensorMap map, const void* other, int* out)
{
    using namespace wt::arch;
    __shared__ alignas(1024) char tiles[8 * 1024];
    __shared__ alignas(8) unsigned long long mbarriers[2];
    const unsigned to = __cvta_generic_to_shared(tiles), first = __cvta_generic_to_shared(mbarriers);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i)
            mbarrier_initialize(first + 8 * i, 1);
        fence_initialized_mbarriers();
        prefetch_tensor_map(&map);
        prefetch_tensor_map(other);
    }
    __syncthreads();
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 0) {
            mbarrier_arrive_and_expect(first, 4096);
            mbarrier_arrive_and_expect(first + 8, 4096);
            copy_tensor(to, &map, first, i, 1);
            copy_tensor(to + 1024, other, first, i, 1, 2);
            copy_tensor(to + 2048, other, first + 8, i, 1, 2, 3);
            copy_tensor(to + 3072, other, first + 8, i, 1, 2, 3, 4);
        }
        mbarrier_wait(first, i);
        mbarrier_wait(first + 8, i);
        out[threadIdx.x + i] = tiles[threadIdx.x];
        __syncthreads();
    }
    if (threadIdx.x < 2)
        mbarrier_invalidate(first + 8 * threadIdx.x);
}
"""


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a"])
def test_tensor_copies_are_assembled(arch: str) -> None:
    nvrtc = open_nvrtc(str(find_toolchain().nvrtc))
    flags = (f"-arch={arch}", "--std=c++17", f"--include-path={kernels_folder()}")
    assert nvrtc.compile(TENSOR_COPIES, "copies.cu", flags, "CUBIN").payload[:4] == b"\x7fELF"
