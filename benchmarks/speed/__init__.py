"""Modules that ``gemm.py`` and ``numerics.py`` share: cells, builds, loading and timing."""
