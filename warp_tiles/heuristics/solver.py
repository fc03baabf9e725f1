"""How a solver variant is computed, and which ones the templates in ``kernels/solver`` serve."""

from __future__ import annotations

from warp_tiles.gemm.dtypes import DTYPE_BYTES
from warp_tiles.gemm.hardware import BLOCK_THREADS, LANES, MIN_ARCH
from warp_tiles.solver.config import SolverConfig
from warp_tiles.solver.variant import SolverVariant

LANE_BYTES = 128  # of a column that one lane holds in registers, at most
MAX_ROWS = 256
STATIC_SHARED_BYTES = 48 * 1024  # of a kernel, at most


def obstacle(variant: SolverVariant) -> str:
    """Why the templates do not serve a variant; empty if they do."""
    if variant.arch < MIN_ARCH:
        return f"arch={variant.arch}: sm_{MIN_ARCH} is the oldest"
    if variant.threads % LANES or variant.threads > BLOCK_THREADS:
        return f"threads={variant.threads}: the block has to consist of whole warps"
    if variant.n > MAX_ROWS:
        return f"n={variant.n}: a lane cannot hold its rows of a column in registers"
    if variant.scratch_bytes > STATIC_SHARED_BYTES:
        return f"n={variant.n}: its scratch memory of {variant.scratch_bytes} bytes exceeds {STATIC_SHARED_BYTES}"
    return ""


def choose(variant: SolverVariant) -> SolverConfig:
    """As many lanes for a column as one warp has for all columns, and as many as its rows need registers.

    A thread that has a column alone needs the fewest instructions, so several lanes pay only where columns are few.
    """
    if variant.function == "cholesky":
        return SolverConfig()
    columns = variant.n if variant.function == "cholesky_adjoint" else variant.columns
    lanes = 1
    while lanes < LANES and lanes < variant.n and 2 * lanes * columns <= LANES:
        lanes *= 2
    rows = LANE_BYTES // DTYPE_BYTES[variant.dtype]
    while 1 < lanes < LANES and lanes * rows < variant.n:
        lanes *= 2
    return SolverConfig(lanes)
