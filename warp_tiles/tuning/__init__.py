"""Tuning: measured configurations of kernels and of GEMM variants, kept as records."""
