"""The question: which GEMM a kernel needs. The answer: how it is computed."""
