"""Plans and launches kernels on one GPU as another one would: with its limits, and its number of resident blocks.

A block is padded with shared memory until as many blocks are resident as there. Clocks, caches, bandwidths and the
rates of instructions stay those of the GPU that runs. Loops that multiply several times have the ratio of tensor cores
to everything else that a GPU with slower tensor cores has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from benchmarks.speed import cubin as elf
from warp_tiles.codegen import prelude
from warp_tiles.compile import sources
from warp_tiles.gemm import hardware
from warp_tiles.gemm.hardware import LANES, REGISTER_STEP, Multiprocessor

_QUARTERS = 4  # of a multiprocessor, each with its own registers
_SHARED_STEP = 128  # bytes in which shared memory is allocated, from sm_80 on
_SUFFIX = "_smem_bytes"  # of a kernel's dynamic shared memory in the metadata of a Warp module


@dataclass(frozen=True)
class Resources:
    """What a block of a built kernel takes.

    Attributes:
        registers, stack_bytes: Of a thread.
        static_bytes, dynamic_bytes: Shared memory.
    """

    threads: int
    registers: int
    stack_bytes: int
    static_bytes: int
    dynamic_bytes: int


@contextmanager
def limits_of(arch: int, here: int) -> Iterator[None]:
    """In this process, the architecture ``here`` has the limits of ``arch``: shared memory, threads and blocks.

    Choosers remember answers, so a process must not plan with several limits.
    """
    with patch.dict(hardware.MULTIPROCESSORS, {here: hardware.multiprocessor(arch)}):
        yield


@contextmanager
def multiplying(passes: int) -> Iterator[None]:
    """In this process, loops by mma.sync whose source is generated meanwhile multiply each pair of tiles so often."""
    flatten = sources.flatten
    with patch.object(prelude, "flatten", lambda *given: f"#define WT_PASSES {passes}\n{flatten(*given)}"):
        yield


def resources(cubin: bytes, metadata: Mapping[str, int], threads: int, arch: int) -> dict[str, Resources]:
    """The resources of the kernels of a Warp module, by function."""
    registers, stacks = elf.registers(cubin), elf.stack_bytes(cubin)
    return {
        name: Resources(
            threads, registers[name], stacks.get(name, 0), elf.static_shared_bytes(cubin, name, arch), dynamic
        )
        for name, dynamic in ((key.removesuffix(_SUFFIX), value) for key, value in metadata.items())
    }


def resident_blocks(kernel: Resources, limits: Multiprocessor) -> int:
    """Blocks of a built kernel that a multiprocessor runs at a time.

    :func:`warp_tiles.gemm.hardware.resident_blocks` estimates the same before the build. Here the registers are known,
    so the steps of their allocation count: eight for a thread, within a quarter of the multiprocessor.

    Source: ``cuda_occupancy.h`` of the CUDA toolkit.
    """
    shared = _round_up(kernel.static_bytes + kernel.dynamic_bytes + limits.reserved_bytes, _SHARED_STEP)
    if shared - limits.reserved_bytes > limits.block_shared_bytes:
        return 0
    warps_by_registers = _QUARTERS * (
        limits.registers // _QUARTERS // (LANES * _round_up(kernel.registers, REGISTER_STEP))
    )
    return min(
        limits.shared_bytes // shared,
        limits.threads // kernel.threads,
        limits.blocks,
        warps_by_registers // -(-kernel.threads // LANES),
    )


def padded_bytes(kernel: Resources, limits: Multiprocessor, here: Multiprocessor) -> int:
    """Dynamic shared memory with which ``here`` runs as many blocks as a multiprocessor with ``limits``, in bytes.

    Args:
        here: A multiprocessor with at least those limits.

    Raises:
        ValueError: A block does not fit the limits.
    """
    blocks = resident_blocks(kernel, limits)
    if not blocks:
        raise ValueError(f"no block with {kernel} fits {limits}")
    if resident_blocks(kernel, here) == blocks:
        return kernel.dynamic_bytes
    too_large = here.shared_bytes // (blocks + 1) // _SHARED_STEP * _SHARED_STEP + _SHARED_STEP
    return too_large - here.reserved_bytes - kernel.static_bytes


def padded(metadata: Mapping[str, int], kernels: Mapping[str, Resources], arch: int, here: int) -> dict[str, int]:
    """The metadata of a Warp module whose blocks are padded, so that as many are resident as on ``arch``."""
    limits = [hardware.multiprocessor(one) for one in (arch, here)]
    return {**metadata, **{f"{name}{_SUFFIX}": padded_bytes(kernel, *limits) for name, kernel in kernels.items()}}


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
