"""Compiles one fp16 GEMM for sm_90 with Triton, as a peer of ``compile_time.py``. No GPU is needed.

    TRITON_CACHE_DIR=EMPTY python benchmarks/triton_gemm.py

Prints the seconds of the first ``triton.compile`` of this process, which has imported Triton, the bytes of the cubin
and Triton's version, as JSON. The kernel is that of ``measure.KERNEL`` with blocks of 128 x 128 x 64 and 8 warps.
"""

import json
import time

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit  # type: ignore[untyped-decorator]
def gemm(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, c_ptr, k, a_stride, b_stride, c_stride, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """C = A B for row-major arrays whose sizes are multiples of the block's."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    steps = tl.arange(0, K)
    a = a_ptr + rows[:, None] * a_stride + steps[None, :]
    b = b_ptr + steps[:, None] * b_stride + columns[None, :]
    total = tl.zeros((M, N), dtype=tl.float32)
    for _ in range(0, k, K):
        total = tl.dot(tl.load(a), tl.load(b), total)
        a += K
        b += K * b_stride
    tl.store(c_ptr + rows[:, None] * c_stride + columns[None, :], total)


def main() -> None:
    types = ["*fp16", "*fp16", "*fp32", "i32", "i32", "i32", "i32", "constexpr", "constexpr", "constexpr"]
    signature = dict(zip(gemm.arg_names, types))
    vectors = {(index,): [["tt.divisibility", 16]] for index, kind in enumerate(types) if kind != "constexpr"}
    source = ASTSource(gemm, signature, constexprs={"M": 128, "N": 128, "K": 64}, attrs=vectors)
    start = time.perf_counter()
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "num_stages": 3})
    seconds = round(time.perf_counter() - start, 3)
    print(json.dumps({"seconds": seconds, "cubin_bytes": len(built.asm["cubin"]), "version": triton.__version__}))


if __name__ == "__main__":
    main()
