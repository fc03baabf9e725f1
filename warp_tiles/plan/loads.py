"""Modules that a program loaded, as a later run of it finds them again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class LoadedModule:
    """A Warp module with the device and the block size that it was loaded for.

    Attributes:
        name: Name of the module.
        kernels: Names of its kernels, sorted.
        block_dim: Threads per block.
        device: Alias of the device, e.g. ``cuda:0``.
    """

    name: str
    kernels: tuple[str, ...]
    block_dim: int
    device: str
