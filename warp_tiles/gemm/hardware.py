"""Constants of NVIDIA GPUs.

Source: "Compute Capabilities" of the CUDA C++ Programming Guide,
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities, and the PTX ISA for instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_ARCH = 75  # the oldest supported compute capability
TENSOR_CORES_ARCH = 80  # mma of bf16, tf32 and fp64; mma of fp16 is older
TF32_MIN_ARCH = TENSOR_CORES_ARCH
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
STATIC_SHARED_BYTES = 48 * 1024  # maximum of static shared memory per kernel


def has_wgmma(arch: int) -> bool:
    """True if the architecture has wgmma, in its target with the suffix ``a`` alone. Newer ones lack it."""
    return arch == 90


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
