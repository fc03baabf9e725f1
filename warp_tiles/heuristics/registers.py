"""Registers of the threads of a module whose products come from this project's templates. The functions are pure."""

from __future__ import annotations

from warp_tiles.gemm.hardware import LANES, REGISTERS, THREAD_REGISTERS

LARGE_SUMS = 64  # of a thread: with more, its registers would not suffice for two blocks of 256 threads
LARGE_SUMS_ALONG_K = 63  # the same for fma with vectors along K, which take more registers than the sums


def max_registers(threads: int, blocks: int = 1) -> int | None:
    """Registers per thread with which ``blocks`` blocks of ``threads`` fit a multiprocessor; None for no limit.

    A multiprocessor has 65,536 registers and a thread at most 255. Registers are allocated to warps in groups
    of four, one for each quarter of the multiprocessor. Warp sets no limit, so its kernels with large blocks can
    fail to launch. A kernel's own launch bounds take precedence.
    """
    warps = -(-threads // 128) * 4 * blocks
    available = REGISTERS // (LANES * warps) // 8 * 8
    return available if available < THREAD_REGISTERS else None


def resident_blocks(threads: int, own_templates: bool) -> int:
    """Resident blocks per multiprocessor: two with own templates and 129 to 256 threads, to hide latency; else one."""
    return 2 if own_templates and 128 < threads <= 256 else 1


def needs_one_block(sums: int, operands: int = 0) -> bool:
    """True if a thread of a loop with stages needs more registers than two blocks of 256 threads have.

    Args:
        sums: Registers of a thread that hold sums.
        operands: Registers of a thread that hold operands of ``fma``.
    """
    return sums > (LARGE_SUMS_ALONG_K if operands > sums else LARGE_SUMS)


def loop_register_limit(threads: int, sums: int, operands: int = 0) -> int:
    """Registers that a thread has, at most, in a module with one loop with stages.

    Args:
        threads: Threads per block.
        sums, operands: Those of :func:`needs_one_block`.
    """
    blocks = 1 if needs_one_block(sums, operands) else resident_blocks(threads, own_templates=True)
    return max_registers(threads, blocks) or THREAD_REGISTERS
