"""Tuning: measured configurations of kernels and of GEMM problems, kept as records."""
