"""The configuration of solver variants, and the limits of the templates in ``kernels/solver``."""

from __future__ import annotations

from warp_tiles.gemm.dtypes import DTYPE_BYTES
from warp_tiles.gemm.hardware import (
    BLOCK_THREADS,
    LANES,
    MIN_ARCH,
    REGISTERS,
    RESIDENT_BLOCKS,
    RESIDENT_THREADS,
    SHARED_BYTES,
    THREAD_REGISTERS,
)
from warp_tiles.solver.config import SolverConfig
from warp_tiles.solver.variant import SolverVariant

LANE_BYTES = 128  # of a column that one lane holds in registers, at most
MAX_ROWS = 256
FEW_COLUMNS = 8
FEW_THREADS = 128
RESERVED_SHARED_BYTES = 1024  # of each block, by the driver
STATIC_SHARED_BYTES = 48 * 1024  # of a kernel, at most


def obstacle(variant: SolverVariant) -> str:
    """The reason why the templates do not serve a variant; empty if they do."""
    if variant.arch < MIN_ARCH:
        return f"arch={variant.arch}: sm_{MIN_ARCH} is the oldest"
    if variant.threads % LANES or variant.threads > BLOCK_THREADS:
        return f"threads={variant.threads}: the block has to consist of whole warps"
    if variant.n > MAX_ROWS:
        return f"n={variant.n}: a lane cannot hold its rows of a column in registers"
    if variant.scratch_bytes > STATIC_SHARED_BYTES:
        return f"n={variant.n}: its scratch memory of {variant.scratch_bytes} bytes exceeds {STATIC_SHARED_BYTES}"
    return ""


def registers(variant: SolverVariant) -> int:
    """Registers of a thread with which as many blocks are resident as shared memory has room for.

    A solver waits for its own results most of the time, so another resident block gains more than registers do.
    """
    size = DTYPE_BYTES[variant.dtype]
    adjoint = variant.function.endswith("adjoint")
    tiles = variant.n * variant.n * (2 if "cholesky" in variant.function and "solve" not in variant.function else 1)
    tiles += variant.n * variant.columns * (2 if "solve" in variant.function else 0)
    used = size * (2 * tiles + variant.scratch_elements if adjoint else tiles) + RESERVED_SHARED_BYTES
    blocks = min(RESIDENT_BLOCKS, max(1, SHARED_BYTES // used))
    threads = min(RESIDENT_THREADS, blocks * variant.threads)
    words = min(variant.n, LANES) * size // 4  # a lane holds so many words of a factor, at most
    least = 40 + words // 2 // 8 * 8 + 16 * adjoint
    if size == 8 or variant.threads < FEW_THREADS:
        least = max(least, 56)
    return max(least, min(THREAD_REGISTERS, REGISTERS // threads // 8 * 8))


def choose(variant: SolverVariant) -> SolverConfig:
    """As many lanes for a column as one warp has for all columns, and as many as its rows need registers.

    A thread that has a column alone needs the fewest instructions, so several lanes pay only where columns are few.
    """
    if variant.function == "cholesky":
        return SolverConfig()
    columns = variant.n if variant.function == "cholesky_adjoint" else variant.columns
    if columns > FEW_COLUMNS:
        return SolverConfig()
    lanes = 1
    while lanes < LANES and lanes < variant.n and 2 * lanes * columns <= LANES:
        lanes *= 2
    rows = LANE_BYTES // DTYPE_BYTES[variant.dtype]
    while 1 < lanes < LANES and lanes * rows < variant.n:
        lanes *= 2
    return SolverConfig(lanes)
