"""The configuration of solver variants, and the limits of the templates in ``kernels/solver``."""

from __future__ import annotations

from warp_tiles.gemm.hardware import (
    BLOCK_THREADS,
    LANES,
    MIN_ARCH,
    REGISTERS,
    STATIC_SHARED_BYTES,
    THREAD_REGISTERS,
)
from warp_tiles.gemm.problem import DTYPE_BYTES
from warp_tiles.gemm.resources import resident_blocks
from warp_tiles.solver.variant import FORWARD_OF, OPERANDS, RIGHT_SIDES, SolverConfig, SolverVariant

MAX_ROWS = 256  # a larger triangle exceeds shared memory
LANE_BYTES = 128  # of a column that one lane holds in registers, at most, if several lanes share it

# These were fitted to benchmarks/solvers.py on one H200.
FEW_COLUMNS = 8
FEW_THREADS = 128
LEAST_REGISTERS = 40  # besides those of a factor
LEAST_ADJOINT_REGISTERS = 56
LEAST_REGISTERS_OF_FEW_THREADS = 56  # also with 8-byte elements
REGISTERS_BESIDE_INDEXED = 32  # of an indexed load or store


def reason_unsupported(variant: SolverVariant) -> str:
    """The reason why the templates do not serve a variant; empty if they do."""
    if variant.arch < MIN_ARCH:
        return f"arch={variant.arch}: sm_{MIN_ARCH} is the oldest"
    if variant.threads % LANES or variant.threads > BLOCK_THREADS:
        return f"threads={variant.threads}: the block has to consist of whole warps: change block_dim"
    if variant.n > MAX_ROWS:
        return f"n={variant.n}: shared memory does not hold a triangle of so many rows: use a smaller matrix"
    if variant.scratch_bytes > STATIC_SHARED_BYTES:
        needs = f"n={variant.n}: its scratch memory has {variant.scratch_bytes} of at most {STATIC_SHARED_BYTES} bytes"
        return f"{needs}: use a smaller matrix"
    return ""


def _shared_elements(variant: SolverVariant) -> int:
    """Elements in shared memory of a block: its tiles and, for an adjoint, their gradients and the scratch memory."""
    forward = FORWARD_OF.get(variant.function, variant.function)
    tiles = sum(variant.n * (variant.columns if name in RIGHT_SIDES else variant.n) for name in OPERANDS[forward])
    return tiles if forward == variant.function else 2 * tiles + variant.scratch_elements


def register_limit(variant: SolverVariant) -> int:
    """Registers of a thread with which as many blocks are resident as shared memory has room for.

    A solver waits for its own results most of the time, so another resident block gains more than registers do.
    """
    size = DTYPE_BYTES[variant.dtype]
    blocks = resident_blocks(variant.arch, variant.threads, shared_bytes=size * _shared_elements(variant))
    threads = max(1, blocks) * variant.threads
    words = min(variant.n, LANES) * size // 4  # a lane holds so many words of a factor, at most
    least = LEAST_ADJOINT_REGISTERS if variant.function in FORWARD_OF else LEAST_REGISTERS
    least += words // 2 // 8 * 8
    if size == 8 or variant.threads < FEW_THREADS:
        least = max(least, LEAST_REGISTERS_OF_FEW_THREADS)
    return max(least, min(THREAD_REGISTERS, REGISTERS // threads // 8 * 8))


def registers_of_indexed(elements: int) -> int:
    """Registers of a thread with which an indexed load or store spills little, in a kernel that calls solvers.

    Each element takes a register for its index and for its value, and two for its address. With fewer registers, the
    factorization of MuJoCo Warp's dense blocks (27 rows, 23 elements for each thread) spilled 544 bytes.

    Args:
        elements: Elements for each thread; 0 for a kernel without such operations.
    """
    return min(THREAD_REGISTERS, -(-(REGISTERS_BESIDE_INDEXED + 4 * elements) // 8) * 8) if elements else 0


def choose(variant: SolverVariant) -> SolverConfig:
    """As many lanes for a column as one warp has for all columns, and as many as its rows need registers.

    A thread that has a column alone needs the fewest instructions, so several lanes pay only where columns are few.
    """
    if variant.function == "cholesky":
        return SolverConfig()
    if variant.columns > FEW_COLUMNS:
        return SolverConfig()
    lanes = 1
    while lanes < LANES and lanes < variant.n and 2 * lanes * variant.columns <= LANES:
        lanes *= 2
    rows = LANE_BYTES // DTYPE_BYTES[variant.dtype]
    while 1 < lanes < LANES and lanes * rows < variant.n:
        lanes *= 2
    return SolverConfig(lanes)
