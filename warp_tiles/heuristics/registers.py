"""Registers of the threads of a module whose products come from this project's templates. The functions are pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

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


class LoopRegisters(Protocol):
    """What a loop with stages needs.

    Attributes:
        sums: Registers of a thread that hold sums.
        operands: Registers of a thread that hold operands of ``fma``.
        reverse_instructions: The instructions of its reverse pass. ``fma`` reads vectors along K there.
    """

    @property
    def sums(self) -> int: ...
    @property
    def operands(self) -> int: ...
    @property
    def reverse_instructions(self) -> Collection[str]: ...


def resident_blocks(threads: int, own_templates: bool, loops: Iterable[LoopRegisters] = ()) -> int:
    """Resident blocks per multiprocessor that a module's register limit leaves room for.

    Two with own templates and 129 to 256 threads, to hide latency, if no loop needs more registers; else one.
    """
    return 2 if own_templates and 128 < threads <= 256 and not any(map(_needs_one_block, loops)) else 1


def _needs_one_block(loop: LoopRegisters) -> bool:
    along_k = loop.operands > loop.sums or "fma" in loop.reverse_instructions
    return loop.sums > (LARGE_SUMS_ALONG_K if along_k else LARGE_SUMS)
