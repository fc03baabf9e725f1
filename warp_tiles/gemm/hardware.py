"""Constants of NVIDIA GPUs, and the resource model of a block.

The model has registers, shared memory, and how many blocks a multiprocessor runs at a time. It serves every engine and
architecture. All functions are pure.

Source: "Compute Capabilities" of the CUDA C++ Programming Guide,
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities, and the PTX ISA for instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_ARCH = 75  # the oldest supported compute capability
TENSOR_CORES_ARCH = 80  # mma of bf16, tf32 and fp64; mma of fp16 is older
TF32_MIN_ARCH = TENSOR_CORES_ARCH
WGMMA_ARCH = 90
BLACKWELL_ARCH = 100
WIDE_DOUBLES_ARCH = 90  # mma.m16n8k8 of fp64

TEXTURE_WORKAROUND_ARCH = 90  # the oldest for which NVRTC 12.8 and 12.9 miscompile texture sampling

ASYNC_COPIES_ARCH = 80  # cp.async, which fills stages
DEEP_STEP_ARCHS = (80, 90, 100, 103)  # with enough shared memory for several blocks of matmul whose steps are deep

LANES = 32  # threads per warp
BLOCK_THREADS = 1024  # maximum per block
REGISTERS = 65_536  # per multiprocessor, 32 bits each
THREAD_REGISTERS = 255  # maximum per thread

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
        block_shared_bytes: Shared memory that one block may have, static and dynamic together.
    """

    threads: int = 2048
    blocks: int = 32
    shared_bytes: int = 228 * 1024
    block_shared_bytes: int = 227 * 1024


_MULTIPROCESSORS = {
    75: Multiprocessor(1024, 16, 64 * 1024, 64 * 1024),
    80: Multiprocessor(2048, 32, 164 * 1024, 163 * 1024),
    86: Multiprocessor(1536, 16, 100 * 1024, 99 * 1024),
    87: Multiprocessor(1536, 16, 164 * 1024, 163 * 1024),
    89: Multiprocessor(1536, 24, 100 * 1024, 99 * 1024),
    110: Multiprocessor(1536, 24),
    120: Multiprocessor(1536, 24, 100 * 1024, 99 * 1024),
    121: Multiprocessor(1536, 24, 100 * 1024, 99 * 1024),
}


def multiprocessor(arch: int) -> Multiprocessor:
    """The multiprocessor of an architecture; that of sm_90 and sm_100 for those without an entry."""
    return _MULTIPROCESSORS.get(arch, Multiprocessor())


# ---- the resource model

_HEADER_BYTES = 1024  # static shared memory of Warp's headers, at most, apart from four bytes for each thread
_OTHER_REGISTERS = 56  # of a thread in a loop with stages: addresses, descriptors and the loop itself
REGISTER_STEP = 8  # registers of a thread are allocated in steps of eight
# With fewer registers, ptxas 12.9 refuses mma.m16n8k8 of fp64: it reads and writes 26 at once, which must be aligned.
WIDE_DOUBLE_REGISTERS = 64


def static_shared_bytes(threads: int) -> int:
    """Static shared memory of a kernel of Warp with tiles, at most, in bytes."""
    return _HEADER_BYTES + 4 * threads


def shared_limit(arch: int, threads: int) -> int:
    """Dynamic shared memory that a block may have, in bytes."""
    return multiprocessor(arch).block_shared_bytes - static_shared_bytes(threads)


def resident_blocks(arch: int, threads: int, *, shared_bytes: int, registers: float = 0) -> int:
    """Blocks that a multiprocessor runs at a time; 0 if it cannot run one.

    Args:
        shared_bytes: Its dynamic shared memory.
        registers: Registers of a thread; 0 if they do not limit.
    """
    limits = multiprocessor(arch)
    reserved = limits.shared_bytes - limits.block_shared_bytes  # of each block, for the system
    taken = shared_bytes + static_shared_bytes(threads) + reserved
    found = min(limits.shared_bytes // taken, limits.threads // threads, limits.blocks)
    if registers:
        found = min(found, int(REGISTERS / (min(THREAD_REGISTERS, registers) * threads)))
    return found if shared_bytes <= shared_limit(arch, threads) else 0


def max_registers(threads: int, blocks: int = 1) -> int | None:
    """Registers of a thread with which ``blocks`` blocks of ``threads`` fit a multiprocessor; None for no limit.

    A multiprocessor has 65,536 registers and a thread at most 255. Registers are allocated to warps in groups
    of four, one for each quarter of the multiprocessor. Warp sets no limit, so its kernels with large blocks can
    fail to launch. A kernel's own launch bounds take precedence.
    """
    warps = -(-threads // 128) * 4 * blocks
    available = REGISTERS // (LANES * warps) // REGISTER_STEP * REGISTER_STEP
    return available if available < THREAD_REGISTERS else None


def accumulator_registers(threads: int) -> int:
    """Registers of a thread that a loop with stages has for its accumulators, if one block is resident."""
    return min(THREAD_REGISTERS, REGISTERS // threads) - _OTHER_REGISTERS


def loop_registers(accumulators: int, operands: int) -> int:
    """Registers of a thread that a loop with stages needs to keep its accumulators and operands in registers."""
    return -(-(accumulators + operands + _OTHER_REGISTERS) // REGISTER_STEP) * REGISTER_STEP


def least_registers(instruction: str, arch: int, *, in_double: bool) -> int:
    """Registers of a thread below which the assembler refuses an ``mma.sync`` or ``fma``; 0 if no limit is below."""
    return WIDE_DOUBLE_REGISTERS if instruction == "mma_m16n8k8" and in_double and arch >= WIDE_DOUBLES_ARCH else 0


LARGE_ACCUMULATORS = 64  # of a thread: with more, its registers would not suffice for two blocks of 256 threads
LARGE_ACCUMULATORS_ALONG_K = 63  # for fma with vectors along K, which take more registers than the accumulators


def limit_of_blocks(threads: int, *, large_loop: bool = False, own_templates: bool = True) -> tuple[int | None, int]:
    """The register limit of a module by its blocks, None for no limit; and the resident blocks that it leaves room for.

    Two with own templates and 129 to 256 threads, to hide latency, if no loop needs more registers; else one.
    """
    blocks = 2 if own_templates and 128 < threads <= 256 and not large_loop else 1
    return max_registers(threads, blocks), blocks


def is_large(accumulators: int, operands: int, *, along_k: bool = False) -> bool:
    """True if the accumulators of a loop leave no registers for a second block of 256 threads."""
    along_k = along_k or operands > accumulators
    return accumulators > (LARGE_ACCUMULATORS_ALONG_K if along_k else LARGE_ACCUMULATORS)
