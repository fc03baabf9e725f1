"""A hypothesis strategy for GEMM problems of every kind that Warp requests."""

from typing import Any, get_args

from hypothesis import strategies as st

from warp_tiles.gemm.problem import DTYPE_BYTES, Arrangement, DType, GemmProblem, Operand


@st.composite
def gemm_problems(draw: Any, largest: int = 96) -> GemmProblem:
    """Any sizes, dtypes, arrangements, gaps between lines, alignments, block sizes and architectures."""
    sizes = st.one_of(st.sampled_from([8, 16, 32, 64]), st.integers(1, largest))
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    operands = []
    for rows, cols in ((m, k), (k, n), (m, n)):
        dtype: DType = draw(st.sampled_from(get_args(DType)))
        arrangement: Arrangement = draw(st.sampled_from(get_args(Arrangement)))
        dense = cols if arrangement == "row_major" else rows
        leading = dense + draw(st.sampled_from([0, 0, 1, 8]))
        size = DTYPE_BYTES[dtype]
        whole = leading * size % 16 == 0
        operands.append(Operand(dtype, arrangement, leading, 16 if whole and draw(st.booleans()) else size))
    a, b, c = operands
    both_float = a.dtype == b.dtype == "float32"
    precision = "tf32" if both_float and draw(st.booleans()) else "default"
    threads, arch = draw(st.sampled_from([32, 64, 128, 256, 512])), draw(st.sampled_from([75, 80, 86, 90]))
    return GemmProblem(m, n, k, a, b, c, precision, threads, arch)
