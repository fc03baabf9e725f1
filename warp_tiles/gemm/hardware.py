"""Constants of NVIDIA GPUs.

Source: "Compute Capabilities" of the CUDA C++ Programming Guide,
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities, and the PTX ISA for instructions.
"""

from __future__ import annotations

MIN_ARCH = 75  # the oldest supported compute capability
TENSOR_CORES_ARCH = 80  # mma of bf16, tf32 and fp64; mma of fp16 is older
TF32_MIN_ARCH = TENSOR_CORES_ARCH
WIDE_DOUBLES_ARCH = 90  # mma.m16n8k8 of fp64

LANES = 32  # threads per warp
BLOCK_THREADS = 1024  # maximum per block
RESIDENT_THREADS = 2048  # maximum per multiprocessor of sm_80, sm_90 and sm_100; others have fewer
RESIDENT_BLOCKS = 32  # maximum per such multiprocessor
REGISTERS = 65_536  # per multiprocessor, 32 bits each
THREAD_REGISTERS = 255  # maximum per thread

BANKS = 32  # of shared memory
BANK_BYTES = 4
BANK_LINE_BYTES = BANKS * BANK_BYTES  # bytes of one wavefront
SHARED_BYTES = 227 * 1024  # maximum per block of sm_90 and sm_100
STATIC_SHARED_BYTES = 48 * 1024  # maximum of static shared memory per kernel
RESERVED_SHARED_BYTES = 1024  # of each block, for the system

_SHARED_KB = {
    75: (64, 64),
    80: (163, 164),
    87: (163, 164),
    86: (99, 100),
    89: (99, 100),
    120: (99, 100),
    121: (99, 100),
}


def block_shared_bytes(arch: int) -> int:
    """Shared memory that one block may have, in bytes."""
    return _SHARED_KB.get(arch, (227, 228))[0] * 1024


def multiprocessor_shared_bytes(arch: int) -> int:
    """Shared memory of a multiprocessor for all its blocks, in bytes."""
    return _SHARED_KB.get(arch, (227, 228))[1] * 1024
