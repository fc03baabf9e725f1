"""Launches that are packed once, and repeated with other arrays of the same shape and strides."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import warp

from warp_tiles._warp import launch as warp_launch
from warp_tiles._warp.definition import Definition


class PreparedLaunch:
    """A launch whose arrays are views of memory that each call names. It keeps no array alive. Thread-safe.

    Args:
        kernel: The kernel, whose scalars come before its arrays. Its adjoint is never launched.
        scalars: Its scalars. The last ones may change.
        arrays: Dtype, shape and strides of each array, or None for an array without memory.
        dim: Launch dimensions, without the threads of a block if ``tiled``.
        block_dim: Threads per block.
        tiled: True to launch as ``wp.launch_tiled`` does.
        device: The device.
        max_blocks: Blocks at most, which go on with other tiles; 0 for no limit.

    Raises:
        Exception: Any error of ``wp.launch`` when the module does not build.
    """

    def __init__(
        self,
        kernel: Any,
        scalars: Sequence[float],
        arrays: Sequence[tuple[Any, tuple[int, ...], tuple[int, ...]] | None],
        dim: Sequence[int],
        block_dim: int,
        *,
        tiled: bool,
        device: Any,
        max_blocks: int = 0,
    ) -> None:
        self._arrays = tuple(arrays)
        self._device = device
        self._runtime = warp_launch.runtime()
        values = [*scalars, *self._views([0] * len(self._arrays))]
        replay = warp_launch.record(
            kernel,
            values,
            None,
            dim=dim,
            block_dim=block_dim,
            tiled=tiled,
            max_blocks=max_blocks,
            device=device,
            stream=None,
        )
        self._launch = launch = replay.launch
        self._replay = replay if device.is_cuda else warp_launch.Replay(launch, None)
        self._definition = Definition(kernel, kernel.module, launch.block_dim)
        packed = launch.params if isinstance(launch.params, list) else []  # while a script is planned, there are none
        self._scalars, self._structures = packed[1 : 1 + len(scalars)], packed[1 + len(scalars) :]
        self._values: tuple[Sequence[int | None], tuple[float, ...]] | None = None  # that are packed
        self._lock = threading.Lock()

    def is_current(self) -> bool:
        """True if the module is unmodified since this launch was packed."""
        return self._definition.is_current()

    def run(self, pointers: Sequence[int | None], *scalars: float) -> None:
        """Launches the kernel on the device's current stream.

        Args:
            pointers: The memory of each array. Trailing arrays without memory may be left out.
            scalars: New values of the last scalars.
        """
        values = (tuple(pointers), scalars)
        with self._lock:
            if values != self._values:
                self._pack(*values)
                self._values = values
            if self._runtime._apic_capture is not None:  # such a capture looks the arrays up by their objects
                count = len(self._launch.fwd_args) - len(self._arrays)
                self._launch.fwd_args = [*self._launch.fwd_args[:count], *self._views(pointers)]
            self._replay.run()

    def _pack(self, pointers: Sequence[int | None], scalars: Sequence[float]) -> None:
        for structure, pointer in zip(self._structures, pointers):
            structure.data = pointer or 0
        for packed, value in zip(self._scalars[len(self._scalars) - len(scalars) :], scalars):
            packed.value = value

    def _views(self, pointers: Sequence[int | None]) -> list[Any]:
        return [
            None
            if layout is None
            else warp.array(
                ptr=pointer or None, dtype=layout[0], shape=layout[1], strides=layout[2], device=self._device
            )
            for layout, pointer in itertools.zip_longest(self._arrays, pointers)
        ]
