"""Kernels on a device, called as those on the emulator are, so that the tests of both share their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import warp as wp

import warp_tiles
from tests.emulator.generated import Argument
from tests.emulator.memory import Values
from tests.integration.helpers import load


class DeviceKernels:
    """The kernels of a text.

    Args:
        text: See :func:`tests.integration.helpers.load`.
        device: Name of the device.
        threads: Threads per block.
        names: Names of kernels in the module by other names.
        options: Options of the Warp module.
        settings: Settings other than the defaults.
    """

    def __init__(
        self, text: str, device: str, threads: int = 64, *, names: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.module = load(text, block_dim=threads, **(options or {}))
        self._device, self._names, self._settings = device, names or {}, settings
        self._threads = 1 if device == "cpu" else threads

    def run(
        self, name: str, dim: Sequence[int], arguments: Sequence[Argument],
        gradients: Sequence[Values | None] | None = None,
    ) -> dict[str, Values]:  # fmt: skip
        """See :class:`tests.emulator.generated.Runs`. bfloat16 arrays hold bits."""
        kernel = getattr(self.module, self._names.get(name, name))
        inputs = {arg.label: self._given(arg, value) for arg, value in zip(kernel.adj.args, arguments)}
        adjoint = {arg.label: self._given(arg, value) for arg, value in zip(kernel.adj.args, gradients or ())}
        for label, gradient in adjoint.items():
            if isinstance(gradient, wp.array):  # through a view of an array, Warp passes no other gradient
                inputs[label].grad = gradient
        options = {"adj_inputs": list(adjoint.values()), "adj_outputs": [], "adjoint": True} if adjoint else {}
        with warp_tiles.enabled(), warp_tiles.override(**self._settings):
            wp.launch(
                kernel, dim=(*dim, self._threads), inputs=list(inputs.values()), block_dim=self._threads,
                device=self._device, **options,
            )  # fmt: skip
        arrays = inputs | {f"adj_{label}": array for label, array in adjoint.items()}
        return {label: _values(array) for label, array in arrays.items() if isinstance(array, wp.array)}

    def _given(self, arg: Any, value: Argument | None) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        dtype = arg.type.dtype
        if dtype is wp.bfloat16:
            value = (value.astype(np.uint32) << 16).view(np.float32)
        return wp.array(value, dtype=dtype, device=self._device)


def _values(array: Any) -> Values:
    raw = array if array.dtype is not wp.bfloat16 else wp.array(
        ptr=array.ptr, dtype=wp.uint16, shape=array.shape, device=array.device
    )  # fmt: skip
    values: Values = raw.numpy()
    return values
