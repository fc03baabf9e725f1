"""Launches that Warp records once, forward and adjoint, and that are replayed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import warp as wp

import warp_tiles._warp.launch as warp_launch
from warp_tiles._warp.intercept import is_planning
from warp_tiles.errors import RecordingError


@dataclass(frozen=True)
class RecordingTarget:
    """The launch that a tuned kernel has decided on. ``dim`` is without the threads of a block if ``tiled``."""

    kernel: wp.Kernel
    dim: int | Sequence[int]
    block_dim: int | None = None
    tiled: bool = False


class RecordedLaunch:
    """A recorded launch of ``kernel`` and, if ``has_adjoint``, of its adjoint. ``names`` are those of its arguments.

    A replay raises RecordingError if an array now has another shape, or the kernel other arguments or no adjoint.
    """

    def __init__(self, kernel: wp.Kernel, values: list[Any], inputs: int, **launch: Any) -> None:
        self.kernel, self.names = kernel, warp_launch.argument_names(kernel)
        self._values, self._inputs, self._launch = values, inputs, launch
        self._shapes: dict[str, tuple[int, ...] | None] = {}
        self._record(None)

    def forward(self) -> None:
        """Launch the kernel. An open ``wp.Tape`` records it as it records ``wp.launch``."""
        self._follow()
        if self._forward is None:
            return
        self._forward.run()
        tape, launch = warp_launch.runtime().tape, self._forward.launch
        if tape is None or is_planning():
            return
        dim = self._launch["dim"] + (launch.block_dim,) * self._launch["tiled"]
        arguments = self._values[: self._inputs], self._values[self._inputs :]
        tape.record_launch(launch.kernel, dim, self._launch["max_blocks"], *arguments, launch.device, launch.block_dim)
        if wp.config.verify_autograd_array_access:
            tape._check_kernel_array_access(launch.kernel, self._values)

    def adjoint(self) -> None:
        """Launch the kernel's adjoint, which adds to gradients as ``wp.launch(adjoint=True)`` does."""
        self._follow()
        if not self.has_adjoint:
            remedy = "turn the kernel's or its module's option enable_backward on, or run forward() alone"
            raise RecordingError(f"kernel {self.kernel.key} has no adjoint: enable_backward is off", remedy=remedy)
        if self._adjoint is not None:
            self._adjoint.run()

    def set(self, name: str, value: Any) -> None:
        """Change an argument, which brings its own gradient. Its arrays, also in a struct, keep their shapes.

        Raises:
            RecordingError: There is no such argument, or the type, dtype or shape differs. Nothing has changed.
        """
        if name not in self.names:
            valid = f"valid ones are {', '.join(self.names)}"
            raise RecordingError(f"kernel {self.kernel.key} has no argument {name!r}", remedy=valid)
        self._follow()
        index = self.names.index(name)
        self._values[index] = value = self._fitting(index, value)
        for replay in (self._forward, self._adjoint):
            if replay is not None:
                replay.set(index, value)
        self._watch()

    def _follow(self) -> None:
        """Record again if the kernel, its module, or the gradient or layout of an array has changed."""
        is_current = self._definition.is_current()
        for array, structure, shape, strides in self._watched:
            if array.ctype is not structure or array.shape is not shape or array.strides is not strides:
                array.ctype = None  # Warp makes a new one; by itself it ignores other strides
                is_current = False
        if not is_current:
            self._record(self._definition)

    def _record(self, known: warp_launch.Definition | None) -> None:
        self.kernel = self.kernel if known is None else known.newest()
        names = warp_launch.argument_names(self.kernel)
        if names != self.names or len(names) != len(self._values):
            what = f"kernel {self.kernel.key} takes {', '.join(names)}, and {len(self._values)} arguments were given"
            raise RecordingError(what, remedy="give each of them, or record an edited kernel again")
        self._concrete = kernel = warp_launch.overload_for(self.kernel, self._values)
        self._values = [self._fitting(index, value) for index, value in enumerate(self._values)]
        self.has_adjoint = warp_launch.has_adjoint(kernel)
        forward = adjoint = block_dim = None
        if 0 not in self._launch["dim"]:
            forward = warp_launch.pack_launch(kernel, self._values, **self._launch)
            block_dim = forward.launch.block_dim
            if self.has_adjoint:
                gradients = [warp_launch.own_gradient(value) for value in self._values]
                adjoint = warp_launch.pack_launch(kernel, self._values, gradients, **self._launch)
        self._definition = warp_launch.Definition(self.kernel, block_dim, None if known is None else known.is_named)
        self._forward, self._adjoint = forward, adjoint
        self._watch()

    def _fitting(self, index: int, value: Any) -> Any:
        """Returns a snapshot of an argument if it fits."""
        warp_launch.pack(self._concrete, index, value, self._launch["device"])
        arrays = warp_launch.arrays_in(self._concrete.adj.args[index], value)
        shapes = {name: getattr(array, "shape", None) for name, array in arrays}
        for name, shape in shapes.items():
            if (expected := self._shapes.get(name)) not in (None, shape):  # any shape may replace None
                what = f"argument '{name}' has shape {shape}, and was recorded with {expected}"
                raise RecordingError(what, remedy="give an array of the recorded shape, or record again")
        self._shapes.update(shapes)
        return warp_launch.snapshot(value)

    def _watch(self) -> None:
        """Note the layout of each array, and its C structure, which changes with its gradient."""
        pairs = zip(self._concrete.adj.args, self._values)
        arrays = [array for argument, value in pairs for _, array in warp_launch.arrays_in(argument, value)]
        self._watched = [(a, a.ctype, a.shape, a.strides) for a in arrays if isinstance(a, wp.array)]


def record(
    kernel: wp.Kernel | object,
    dim: int | Sequence[int] | None = None,
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    *,
    device: wp.DeviceLike = None,
    stream: wp.Stream | None = None,
    block_dim: int | None = None,
    max_blocks: int = 0,
    tiled: bool = False,
) -> RecordedLaunch:
    """Record a launch and the launch of its adjoint. Nothing is launched yet. Options are those of ``wp.launch``.

    Args:
        kernel: A Warp kernel, generic or not, or a tuned kernel, which decides ``dim``, ``block_dim`` and ``tiled``.
        stream: A CUDA stream for every replay; None takes the one that is current at a replay.
        tiled: As ``wp.launch_tiled``, add a last dimension of ``block_dim`` threads to ``dim``.

    Raises:
        RecordingError: Arguments are missing, surplus or do not fit the kernel.
        UnsupportedWarpError: The installed Warp lacks a part that recordings rely on.
        Exception: Any error of ``wp.launch``, e.g. for a module that does not build.
    """
    warp_launch.runtime()
    device, values = wp.get_device(device) if stream is None else stream.device, [*inputs, *outputs]
    if hasattr(kernel, "recording_target"):
        if dim is not None or block_dim is not None or tiled:
            remedy = "leave dim, block_dim and tiled to it"
            raise RecordingError("a tuned kernel was given launch dimensions", remedy=remedy)
        target = kernel.recording_target(values, device, len(outputs))
        kernel, dim, block_dim, tiled = target.kernel, target.dim, target.block_dim, target.tiled
    if dim is None or not warp_launch.is_kernel(kernel):
        remedy = "give what @wp.kernel makes, and launch dimensions; or a tuned kernel"
        raise RecordingError(f"the kernel is {kernel!r}, and dim is {dim}", remedy=remedy)
    sizes = tuple(dim) if isinstance(dim, Iterable) else (dim,)
    launch = {"dim": sizes, "block_dim": block_dim, "tiled": tiled, "max_blocks": max_blocks}
    return RecordedLaunch(kernel, values, len(inputs), device=device, stream=stream, **launch)
