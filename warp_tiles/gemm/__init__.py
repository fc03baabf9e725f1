"""The question, which GEMM, and the answer, which function computes it."""
