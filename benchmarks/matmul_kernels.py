"""The epilogue of benchmarks/matmul.py."""

# mypy: ignore-errors
# Warp reads annotations as values, so they are not types

import warp as wp


@wp.func
def gelu(x: wp.float32):
    return 0.5 * x * (1.0 + wp.erf(x * 0.70710678))
