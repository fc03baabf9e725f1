"""The benchmark kernel of a GEMM variant: its source, inputs and expected results.

A, B and C are in dynamic shared memory, with the variant's leading dimensions and with exactly the alignment that it
promises. Every block copies them there and multiplies them repeatedly. As many blocks run as fit, so a configuration
benefits if it needs fewer registers.

All functions are pure and need no GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from warp_tiles.codegen.loops import LoopSums
from warp_tiles.compile.compiler import CompileRequest, LinkRequest
from warp_tiles.gemm.dtypes import DTYPE_BYTES, DTYPES, DType
from warp_tiles.gemm.problem import GemmProblem, Operand
from warp_tiles.heuristics.resources import max_registers, wanted_blocks

KERNEL = "wt_benchmark"  # each product reads and writes C
LOOP_KERNEL = "wt_benchmark_loop"  # the sums stay in registers, as in a loop over K
_SEED = 20_240_229
_VECTOR_BYTES = 16
_SHARES = 48  # products of a launch are a multiple, so that most numbers of blocks per multiprocessor divide them
_MAX_PRODUCTS = 4800
_LAUNCH_WORK = 2e8  # fp16 operations of one H200 multiprocessor in about 150 us
_OVERHEAD_WORK = 20_000  # fixed overhead of each product, in the same unit
_RELATIVE_COST: dict[DType, int] = {"float16": 1, "bfloat16": 1, "float32": 3, "float64": 8}
_STORAGE: dict[DType, tuple[str, str]] = {  # C++ type of an element and the literal of 1; no header is needed
    "float16": ("unsigned short", "0x3C00"),
    "bfloat16": ("unsigned short", "0x3F80"),
    "float32": ("float", "1.0f"),
    "float64": ("double", "1.0"),
}
_CTYPES = {info.warp_type: info.kernel_type for info in DTYPES.values()}
_TF32_TRUNCATION = 2.0**-10

Matrix = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Layout:
    """Offsets of A, B and C in shared memory, in bytes.

    Attributes:
        offsets: Offsets of A, B and C.
        size_bytes: Total size of the three.
    """

    offsets: tuple[int, int, int]
    size_bytes: int


def layout(variant: GemmProblem) -> Layout:
    """Place A, B and C one after the other, each with exactly the alignment that it promises."""
    offsets, end = [], 0
    for operand, shape in zip((variant.a, variant.b, variant.c), _shapes(variant)):
        start = end + operand.alignment % _VECTOR_BYTES
        offsets.append(start)
        end = _rounded_up(start + _extent(operand, shape) * DTYPE_BYTES[operand.dtype], _VECTOR_BYTES)
    a, b, c = offsets
    return Layout((a, b, c), end)


def products_per_launch(variant: GemmProblem) -> int:
    """Number of products of each multiprocessor in one launch, which then takes some hundred microseconds."""
    relative_cost = max(_RELATIVE_COST[operand.dtype] for operand in (variant.a, variant.b, variant.c))
    work = relative_cost * (2 * variant.m * variant.n * variant.k + _OVERHEAD_WORK)
    return min(_MAX_PRODUCTS, _rounded_up(max(1, int(_LAUNCH_WORK / work)), _SHARES))


def text(variant: GemmProblem, symbol: str, sums: LoopSums | None) -> str:
    """Returns the source of the kernels, one for each form of product that the candidate has.

    Args:
        variant: The GEMM variant.
        symbol: The function that multiplies.
        sums: Functions that keep sums in registers; None if there are none.
    """
    one = f"{symbol}(&alpha, a, b, &beta, c);"
    functions = [f"{symbol}(void* alpha, void* a, void* b, void* beta, void* c)"]
    kernels = [_kernel(variant, KERNEL, "", one, "")]
    if sums is not None:
        functions += [f"{sums.symbol}_add(void* sums, void* a, void* b)", f"{sums.symbol}_finish(void* sums, void* c)"]
        kind = _CTYPES[sums.ctype]
        before = f"{kind} sums[{sums.count}];\n    for (int i = 0; i < {sums.count}; ++i) sums[i] = 0;"
        add, finish = f"{sums.symbol}_add(sums, a, b);", f"{sums.symbol}_finish(sums, c);\n    __syncthreads();"
        kernels.append(_kernel(variant, LOOP_KERNEL, before, add, finish))
    declarations = (f'extern "C" __device__ void {function};' for function in functions)
    return "\n".join([*declarations, *kernels])


def _kernel(variant: GemmProblem, name: str, before: str, product: str, after: str) -> str:
    found = layout(variant)
    element, one = _STORAGE[variant.c.dtype]
    a, b, c = found.offsets
    copy = f"for (int i = threadIdx.x; i < {found.size_bytes // _VECTOR_BYTES}; i += {variant.threads})"
    return f"""
// Each block computes `products` products, the first blocks one more. The first block writes its tiles to result.
extern "C" __global__ void {name}(const uint4* image, uint4* result, int products, int blocks_with_one_more)
{{
    extern __shared__ uint4 memory[];
    {copy} memory[i] = image[i];
    __syncthreads();
    char* tiles = reinterpret_cast<char*>(memory);
    void *a = tiles + {a}, *b = tiles + {b}, *c = tiles + {c};
    {element} alpha = {one}, beta = {one};
    if (blockIdx.x < blocks_with_one_more) ++products;
    {before}
    for (int i = 0; i < products; ++i) {{
        {product}
        __syncthreads();
    }}
    {after}
    if (blockIdx.x == 0) {copy} result[i] = memory[i];
}}
"""


def compile_request(variant: GemmProblem, symbol: str, sums: LoopSums | None) -> CompileRequest:
    """The request to compile the kernels."""
    options: dict[str, Any] = {"arch": f"sm_{variant.arch}", "std": "c++17"}
    return CompileRequest(
        f"{symbol}_benchmark.cu",
        text(variant, symbol, sums),
        tuple(options.items()),
        f"the benchmark of {variant.describe()}",
    )


def link_request(variant: GemmProblem, inputs: Sequence[bytes], own_templates: bool) -> LinkRequest:
    """Returns the request to link the kernels with a candidate's LTO-IR, with the options of modules.

    Args:
        variant: The GEMM variant.
        inputs: LTO-IR.
        own_templates: True if the candidate comes from this package's templates.
    """
    registers = max_registers(variant.threads, wanted_blocks(variant.threads, own_templates))
    return LinkRequest(f"{variant.symbol}_benchmark", tuple(inputs), f"sm_{variant.arch}", "cubin", registers)


# ---- inputs and expected results


@dataclass(frozen=True)
class Expected:
    """The expected C after a number of products, and its tolerance.

    Attributes:
        values: M x N.
        bound: The largest allowed error of each element.
    """

    values: Matrix
    bound: Matrix


@lru_cache(maxsize=8)
def image(variant: GemmProblem) -> Bytes:
    """Returns the initial shared memory: random values, also in gaps, and none of them small."""
    random = np.random.default_rng(_SEED)
    found = layout(variant)
    memory = np.zeros(found.size_bytes, dtype=np.uint8)
    for operand, shape, offset in zip((variant.a, variant.b, variant.c), _shapes(variant), found.offsets):
        count = _extent(operand, shape)
        values = random.uniform(0.125, 1.0, count) * random.choice((-1.0, 1.0), count)
        stored = _encoded(values, operand.dtype)
        memory[offset : offset + stored.nbytes] = stored.view(np.uint8)
    memory.setflags(write=False)
    return memory


def expected(variant: GemmProblem, products: int) -> Expected:
    """Returns C + products * A B in float64, from the values of :func:`image`.

    Source of the bound: Higham, Accuracy and Stability of Numerical Algorithms, section 3.1. The error of a sum of K
    products is at most about K u sum |a| |b|, where u is the unit roundoff of the sum's type.
    """
    a, b, c = (matrix(variant, image(variant), index) for index in range(3))
    magnitude = abs(c) + products * abs(a) @ abs(b)
    tf32 = (
        2 * _TF32_TRUNCATION if "float32" in (variant.a.dtype, variant.b.dtype) and variant.precision == "tf32" else 0
    )
    roundoff = max(DTYPES[variant.c.dtype].roundoff, DTYPES["float64"].roundoff)
    return Expected(c + products * a @ b, (products * (variant.k + 4) * roundoff + tf32) * magnitude)


def problem_with(variant: GemmProblem, result: Bytes, products: int) -> str:
    """Describe the error in shared memory after a number of products; empty if there is none."""
    wanted = expected(variant, products)
    got = matrix(variant, result, 2)
    wrong = ~(abs(got - wanted.values) <= wanted.bound)  # NaN is wrong
    if wrong.any():
        row, col = (int(index) for index in np.argwhere(wrong)[0])
        return (
            f"wrong result: C[{row}, {col}] is {got[row, col]:.8g} instead of {wanted.values[row, col]:.8g}, "
            f"{int(wrong.sum())} of {wrong.size} elements exceed the error bound of the dtype"
        )
    changed = result != image(variant)
    changed[_byte_offsets(variant, 2)] = False
    if changed.any():
        return f"wrote outside C: byte {int(np.argmax(changed))} of shared memory changed"
    return ""


def matrix(variant: GemmProblem, memory: Bytes, index: int) -> Matrix:
    """Values of A, B or C (0, 1, 2) in shared memory."""
    operand = (variant.a, variant.b, variant.c)[index]
    width = DTYPE_BYTES[operand.dtype]
    stored = np.ascontiguousarray(memory[_byte_offsets(variant, index)]).reshape(-1, width)
    return _decoded(stored, operand.dtype).reshape(_shapes(variant)[index])


def _byte_offsets(variant: GemmProblem, index: int) -> npt.NDArray[np.intp]:
    """Returns the byte offsets of an operand's elements, row by row."""
    operand, (rows, cols) = (variant.a, variant.b, variant.c)[index], _shapes(variant)[index]
    row, col = np.indices((rows, cols))
    line, place = (row, col) if operand.arrangement == "row_major" else (col, row)
    width = DTYPE_BYTES[operand.dtype]
    first = layout(variant).offsets[index] + (line * operand.leading_dimension + place) * width
    return np.asarray((first[..., None] + np.arange(width)).reshape(-1), dtype=np.intp)


def _encoded(values: Matrix, dtype: DType) -> npt.NDArray[Any]:
    if dtype != "bfloat16":
        return values.astype(dtype)
    # NumPy has no bfloat16. Values with 8 bits of fraction fit exactly into the upper half of a float32.
    return (np.asarray(np.round(values * 256) / 256, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _decoded(stored: Bytes, dtype: DType) -> Matrix:
    if dtype != "bfloat16":
        return stored.view(dtype).astype(np.float64)
    return (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _shapes(variant: GemmProblem) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    return (variant.m, variant.k), (variant.k, variant.n), (variant.m, variant.n)


def _extent(operand: Operand, shape: tuple[int, int]) -> int:
    """Number of elements from the first to the last, gaps included."""
    lines, length = shape if operand.arrangement == "row_major" else shape[::-1]
    return (lines - 1) * operand.leading_dimension + length


def _rounded_up(value: int, step: int) -> int:
    return -(-value // step) * step
