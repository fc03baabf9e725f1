"""Hypothesis strategies for GEMM problems of every kind that Warp requests."""

from hypothesis import strategies as st

from tests.emulator.gemm import operand
from warp_tiles.gemm.problem import DTYPE_BYTES, DType, GemmProblem, Operand, Precision

dtypes: st.SearchStrategy[DType] = st.sampled_from(["float16", "bfloat16", "float32", "float64"])
sizes = st.one_of(st.integers(1, 70), st.sampled_from([8, 16, 24, 32, 48, 64]), st.sampled_from([80, 96, 127, 130]))


@st.composite
def operands(draw: st.DrawFn, rows: int, columns: int, dtype: DType) -> Operand:
    """An operand with any arrangement, padding and alignment that its leading dimension allows."""
    size = DTYPE_BYTES[dtype]
    row_major = draw(st.booleans())
    dense = columns if row_major else rows
    leading_dimension = draw(
        st.sampled_from([dense, dense, dense + 1, dense + 5, -(-dense // 8) * 8, dense // 32 * 32 + 40])
    )
    widest = next(power for power in (16, 8, 4, 2) if leading_dimension * size % power == 0)
    alignment = draw(st.sampled_from([size, widest, max(size, widest // 2)]))
    return operand(dtype, row_major, leading_dimension, alignment)


@st.composite
def problems(draw: st.DrawFn) -> GemmProblem:
    """Products of all dtypes. Dtypes that tensor cores multiply are more frequent."""
    a, b = draw(st.one_of(st.tuples(dtypes, dtypes), dtypes.map(lambda dtype: (dtype, dtype))))
    c = draw(st.one_of(dtypes, st.sampled_from([a, b, "float32", "float16"])))
    m, n, k = draw(sizes), draw(sizes), draw(sizes)
    threads = 32 * draw(st.sampled_from([1, 2, 2, 3, 4, 4, 8, 11, 16, 32]))
    arch = draw(st.sampled_from([90, 80, 75, 86, 120]))
    precision: Precision = "tf32" if draw(st.booleans()) else "default"
    return GemmProblem(
        m, n, k,
        draw(operands(m, k, a)), draw(operands(k, n, b)), draw(operands(m, n, c)),
        precision, threads, arch,
    )  # fmt: skip
