"""The choice of a tile configuration for a GEMM: limits, accesses, costs and the choice. All functions are pure."""
