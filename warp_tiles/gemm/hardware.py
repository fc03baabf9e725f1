"""What each architecture of NVIDIA GPUs has, and the resource model of a block.

The model has registers, shared memory, and how many blocks a multiprocessor runs at a time. It serves every engine and
architecture. All functions are pure.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from warp_tiles.errors import PlanError

MIN_ARCH = 75  # the oldest supported compute capability
TENSOR_CORES_ARCH = 80  # mma of bf16, tf32 and fp64; mma of fp16 is older
WGMMA_ARCH = 90
BLACKWELL_ARCH = 100
WIDE_DOUBLES_ARCH = 90  # mma.m16n8k8 of fp64

TEXTURE_WORKAROUND_ARCH = 90  # the oldest for which NVRTC 12.8 and 12.9 miscompile texture sampling

ASYNC_COPIES_ARCH = 80  # cp.async, which fills stages

LANES = 32  # threads per warp
BLOCK_THREADS = 1024  # maximum per block, also on the CPU

BANKS = 32  # of shared memory
BANK_BYTES = 4
BANK_LINE_BYTES = BANKS * BANK_BYTES  # bytes of one wavefront


def has_wgmma(arch: int) -> bool:
    """True if the architecture has wgmma, in its target with the suffix ``a`` alone. Newer ones lack it."""
    return arch == WGMMA_ARCH


@dataclass(frozen=True)
class Multiprocessor:
    """What a multiprocessor of an architecture has for all its blocks.

    Attributes:
        threads, blocks: Largest numbers that are resident at a time.
        reserved_bytes: Shared memory of each block that the system takes.
        registers: Those of 32 bits for all threads.
        thread_registers: Registers that a thread may have.
        block_threads: Threads that a block may have.
    """

    threads: int
    blocks: int
    shared_bytes: int
    reserved_bytes: int = 1024
    registers: int = 65_536
    thread_registers: int = 255
    block_threads: int = BLOCK_THREADS

    @property
    def block_shared_bytes(self) -> int:
        """Shared memory that one block may have, static and dynamic together."""
        return self.shared_bytes - self.reserved_bytes


# From "Compute Capabilities" of the CUDA Programming Guide,
# https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html, and cuda::arch_traits of
# CCCL. tests/gemm/test_resources.py compares threads, blocks and registers with those of ptxas.
MULTIPROCESSORS = {
    75: Multiprocessor(1024, 16, 64 * 1024, reserved_bytes=0),
    80: Multiprocessor(2048, 32, 164 * 1024),
    86: Multiprocessor(1536, 16, 100 * 1024),
    87: Multiprocessor(1536, 16, 164 * 1024),
    88: Multiprocessor(1536, 16, 100 * 1024),  # from CCCL and ptxas 13.4 alone: that of sm_86
    89: Multiprocessor(1536, 24, 100 * 1024),
    90: Multiprocessor(2048, 32, 228 * 1024),
    100: Multiprocessor(2048, 32, 228 * 1024),
    103: Multiprocessor(2048, 32, 228 * 1024),
    # Threads and blocks are from ptxas 13.4. The shared memory is that of sm_100: larger blocks (CUDA 13.4,
    # cudaDevAttrOversizedSharedMemoryPerBlock) need an attribute that Warp's launches do not set.
    107: Multiprocessor(1024, 16, 228 * 1024),
    110: Multiprocessor(1536, 24, 228 * 1024),
    120: Multiprocessor(1536, 24, 100 * 1024),
    121: Multiprocessor(1536, 24, 100 * 1024),
}


_ARCH = re.compile(r"(?:sm_)?(?:([1-9][0-9]{1,2})|([1-9][0-9]?)\.([0-9]))[af]?")


def parse_arch(value: object) -> int:
    """The number of a compute capability: 90, or as text 90, sm_90, 90a, 9.0 or 9.0a. Raises a PlanError for others."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _ARCH.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise PlanError(f"arch is {value!r}", remedy="give a compute capability such as 90, sm_90, 90a or 9.0")
    return int(match[1] or match[2] + match[3])


_RENAMED = {101: 110}  # in CUDA 13


def multiprocessor(arch: int) -> Multiprocessor:
    """The multiprocessor of an architecture. Raises a PlanError if the table has no entry for it."""
    if (entry := MULTIPROCESSORS.get(_RENAMED.get(arch, arch))) is None:
        known = ", ".join(f"sm_{known}" for known in MULTIPROCESSORS)
        raise PlanError(
            f"sm_{arch} has no entry in MULTIPROCESSORS of warp_tiles/gemm/hardware.py, which has {known}",
            remedy="choose one of these with --arch, or install a warp_tiles that knows the architecture",
        )
    return entry


# ---- the resource model

_HEADER_BYTES = 1024  # static shared memory of Warp's headers, at most, apart from four bytes for each thread
_OTHER_REGISTERS = 56  # of a thread in a loop with stages, at least: addresses, descriptors and the loop itself
REGISTER_STEP = 8  # registers of a thread are allocated in steps of eight
# With fewer registers, ptxas 12.9 refuses mma.m16n8k8 of fp64: it reads and writes 26 at once, which must be aligned.
WIDE_DOUBLE_REGISTERS = 64


def static_shared_bytes(threads: int) -> int:
    """Static shared memory of a kernel of Warp with tiles, at most, in bytes."""
    return _HEADER_BYTES + 4 * threads


def shared_limit(arch: int, threads: int) -> int:
    return multiprocessor(arch).block_shared_bytes - static_shared_bytes(threads)


def resident_blocks(arch: int, threads: int, *, shared_bytes: int, registers: float = 0) -> int:
    """Blocks that a multiprocessor runs at a time; 0 if it cannot run one.

    Args:
        shared_bytes: Its dynamic shared memory.
        registers: Registers of a thread; 0 if they do not limit.
    """
    limits = multiprocessor(arch)
    taken = shared_bytes + static_shared_bytes(threads) + limits.reserved_bytes
    blocks = min(limits.shared_bytes // taken, limits.threads // threads, limits.blocks)
    if registers:
        blocks = min(blocks, int(limits.registers / (min(limits.thread_registers, registers) * threads)))
    return blocks if shared_bytes <= shared_limit(arch, threads) else 0


def thread_registers(arch: int, threads: int) -> int:
    return min(multiprocessor(arch).thread_registers, multiprocessor(arch).registers // threads)


def max_registers(arch: int, threads: int, blocks: int = 1) -> int | None:
    """Registers of a thread with which ``blocks`` blocks of ``threads`` fit a multiprocessor; None for no limit.

    Registers are allocated to warps in groups of four, one for each quarter of the multiprocessor. Warp sets no limit,
    so its kernels with large blocks can fail to launch. A kernel's own launch bounds take precedence.
    """
    warps = -(-threads // 128) * 4 * blocks
    available = multiprocessor(arch).registers // (LANES * warps) // REGISTER_STEP * REGISTER_STEP
    return available if available < multiprocessor(arch).thread_registers else None


def resident_registers(arch: int, threads: int, blocks: int) -> int:
    """Registers that a thread may have so that ``blocks`` blocks of ``threads`` fit a multiprocessor."""
    return max_registers(arch, threads, blocks) or multiprocessor(arch).thread_registers


def paired_registers(arch: int) -> int:
    """Registers of a thread that leave room for a second block of 256 threads: 128 of 65,536."""
    return multiprocessor(arch).registers // (2 * 256)


def accumulator_registers(arch: int, threads: int) -> int:
    """Registers of a thread that a loop with stages has for its accumulators, if one block is resident."""
    return thread_registers(arch, threads) - _OTHER_REGISTERS


def loop_registers(
    arch: int,
    instruction: str,
    accumulators: int,
    operands: int = 0,
    *,
    through_registers: bool = False,
    reverse: bool = False,
) -> int:
    """Registers of a thread that a loop with stages takes, by estimate.

    Fitted to what ptxas 13.4 takes without a limit (tests/gemm/loop_registers.json). That is up to 40 more, because it
    spends registers that are free.

    Args:
        operands: Registers that hold operands of ``fma``.
        through_registers: True if ``wgmma`` reads an operand from registers.
        reverse: True for the two products of a reverse pass, whose addresses and atomic additions take more.
    """
    if instruction == "fma":
        if arch < 100:
            needed = _OTHER_REGISTERS + accumulators + 0.75 * operands
        else:  # vectors along K, which are more than the accumulators, stay in registers
            needed = 40 + 1.25 * accumulators + operands * (0.75 if operands > accumulators else 0.25)
        needed += 72 * reverse
    elif instruction == "wgmma" and not through_registers:
        needed = _OTHER_REGISTERS + accumulators
    else:  # the fragments of mma grow with the accumulators
        if arch >= 100 and instruction == "mma_m16n8k16":
            needed = 40 + 1.36 * accumulators
        else:
            needed = (56 if arch < 90 else 43) + 1.4 * accumulators
        needed += 32 * (reverse and not 90 <= arch < 100)
    return math.ceil(needed / REGISTER_STEP) * REGISTER_STEP


def least_registers(instruction: str, arch: int, *, in_double: bool) -> int:
    """Registers of a thread below which the assembler refuses an ``mma.sync`` or ``fma``; 0 if no limit is below."""
    return WIDE_DOUBLE_REGISTERS if instruction == "mma_m16n8k8" and in_double and arch >= WIDE_DOUBLES_ARCH else 0


# ---- two resident blocks

_PAIR_REGISTERS = 128  # of a thread, at least; two blocks with fewer are not measured
# of a thread on sm_90, at most, by estimate: two blocks made fp32 loops 1.14 times as fast there (docs/experiments.md)
_SPILLED_REGISTERS = 32


def pair_limit(arch: int, threads: int) -> int | None:
    """The register limit with which two blocks are resident; None if all registers do, or if too few are left."""
    limit = max_registers(arch, threads, 2)
    return limit if limit is not None and limit >= _PAIR_REGISTERS else None


def allows_pair(arch: int, limit: int, registers: int, *, alone: bool) -> bool:
    """True if a loop may have the register limit of two resident blocks.

    Args:
        registers: Those of a thread that it takes, by estimate.
        alone: True if one block is resident even with the limit.
    """
    spilled = _SPILLED_REGISTERS if arch == WGMMA_ARCH and not alone else 0
    return registers <= limit + spilled
