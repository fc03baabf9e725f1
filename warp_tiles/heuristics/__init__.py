"""Which tile configuration a GEMM gets: limits, accesses, costs and the choice. Pure functions."""
