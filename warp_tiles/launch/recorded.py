"""Launches that are packed once, forward and adjoint, and replayed."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex

import warp_tiles._warp.launch as warp_launch
from warp_tiles.errors import RecordingError
from warp_tiles.gemm.hardware import BLOCK_THREADS

if TYPE_CHECKING:
    import warp as wp

MAX_DIMENSIONS = 4  # of a Warp launch; a tiled launch needs one of them for the threads of a block
MAX_BLOCKS = 2**31 - 1  # Warp passes an int


@dataclass(frozen=True)
class RecordingTarget:
    """The launch that a tuned kernel, or another :class:`Recordable`, has decided on.

    Attributes:
        kernel: Warp's kernel.
        dim: Launch dimensions, without the threads of a block if ``tiled``.
        block_dim: Threads per block; None for Warp's default.
        tiled: True to launch as ``wp.launch_tiled`` does.
    """

    kernel: wp.Kernel
    dim: int | Sequence[int]
    block_dim: int | None = None
    tiled: bool = False


@dataclass(frozen=True)
class _LaunchConfig:
    """The parts of a launch that do not change with its arguments."""

    dim: tuple[int, ...]
    block_dim: int | None
    tiled: bool
    max_blocks: int
    device: Any
    stream: Any


class _Packed:
    """A snapshot of arguments and gradients, and the launches that hold them.

    Args:
        kernel: The kernel as the user passed it, generic or not.
        gradients: A gradient for each argument; None for the array's own.
    """

    def __init__(self, kernel: Any, config: _LaunchConfig, values: Sequence[Any], gradients: Sequence[Any]) -> None:
        self.kernel = kernel
        self.config = config
        self.values = list(values)  # as the user passed them, which keeps arrays alive
        self.gradients = list(gradients)
        self.is_on_tape = False
        self._definition: Any = None
        self._forward: Any = None
        self._adjoint: Any = None
        self._kept = self.values
        self._record()

    def _record(self) -> None:
        config = self.config
        self._concrete = kernel = warp_launch.overload_for(self.kernel, self._kept)
        self._kept, self.gradients = (
            [warp_launch.snapshot(kernel, index, value) for index, value in enumerate(values)]
            for values in (self._kept, self.gradients)
        )
        self.has_adjoint = warp_launch.has_adjoint(kernel)
        self._shapes = [self._shapes_of(index, value) for index, value in enumerate(self._kept)]
        adjoints = list(map(self._gradient, range(len(self._kept)), self.gradients)) if self.has_adjoint else None
        forward = adjoint = block_dim = None
        if math.prod(config.dim):
            forward = warp_launch.pack_launch(kernel, self._kept, **vars(config))
            block_dim = forward.launch.block_dim
            if adjoints is not None:
                adjoint = warp_launch.pack_launch(kernel, self._kept, adjoints, **vars(config))
        was_named = self._definition.is_named if self._definition is not None else None
        self._definition = warp_launch.Definition(self.kernel, block_dim, was_named)
        self._watched = tuple(warp_launch.array_structures(self._kept))
        self._forward, self._adjoint = forward, adjoint

    def _shapes_of(self, index: int, value: Any, *, adjoint: bool = False) -> dict[str, tuple[int, ...] | None]:
        """Check an argument, or a gradient of it. Returns the shapes of its arrays."""
        structure = warp_launch.pack(self._concrete, index, value, self.config.device, adjoint=adjoint)
        return warp_launch.array_shapes(self._concrete, index, value, structure)

    def _gradient(self, index: int, given: Any) -> Any:
        """Returns the gradient of an argument: its own, or the given one, which is checked."""
        if given is None:
            return warp_launch.own_gradient(self._kept[index])
        found = self._shapes_of(index, given, adjoint=True)
        present = {name: shape for name, shape in found.items() if shape is not None}  # a struct may lack some
        self._require_shapes(index, {**self._shapes[index], **present}, "the gradient of ")
        return given

    def _require_shapes(self, index: int, found: Mapping[str, tuple[int, ...] | None], what: str = "") -> None:
        for name, expected in self._shapes[index].items():
            if expected not in (None, found[name]):  # any shape may replace None
                raise RecordingError(
                    f"{what}argument '{name}' has shape {found[name]}, and was recorded with {expected}",
                    remedy="give an array of the recorded shape, or record again",
                )

    def _follow(self) -> None:
        """Record the launch again if its module or kernel has changed."""
        if not self._definition.is_current():
            self.kernel = self._definition.newest()
            self._record()

    def forward(self) -> None:
        self._follow()
        if self._forward is not None:
            self._forward.run()

    def adjoint(self) -> None:
        self._follow()
        for array, structure in self._watched:
            if array.ctype is not structure:
                self._record()
                break
        if self._adjoint is not None:
            self._adjoint.run()
        else:
            self.require_adjoint()

    def require_adjoint(self) -> None:
        """Raise if the kernel has no adjoint."""
        if not self.has_adjoint:
            raise RecordingError(
                f"kernel {self.kernel.key} has no adjoint: enable_backward is off for it",
                remedy="turn the kernel's or its module's option enable_backward on, or run forward() alone",
            )

    def set(self, index: int, value: Any) -> None:
        """Change an argument. Its gradient is then its own."""
        self._follow()
        shapes = self._shapes_of(index, value)
        self._require_shapes(index, shapes)
        self.values[index] = value
        self._kept[index] = kept = warp_launch.snapshot(self._concrete, index, value)
        self.gradients[index] = None
        self._shapes[index] = shapes
        for replay in (self._forward, self._adjoint):
            if replay is not None:
                replay.set(index, kept, adjoint=False)
        self._watched = tuple(warp_launch.array_structures(self._kept))
        if self.has_adjoint:
            self.set_gradient(index, None)

    def set_gradient(self, index: int, value: Any) -> None:
        """Change the gradient of an argument; None takes its own."""
        self._follow()
        self.require_adjoint()
        given = warp_launch.snapshot(self._concrete, index, value)
        gradient = self._gradient(index, given)
        self.gradients[index] = given
        if self._adjoint is not None:
            self._adjoint.set(index, gradient, adjoint=True)

    def copy(self) -> _Packed:
        """Returns an independent copy."""
        other = copy.copy(self)
        other.is_on_tape = False
        for name in ("values", "gradients", "_kept", "_shapes"):
            setattr(other, name, list(getattr(self, name)))
        for name in ("_forward", "_adjoint"):
            replay = getattr(self, name)
            setattr(other, name, None if replay is None else replay.copy())
        return other

    def record_on_tape(self, tape: Any, inputs: int) -> None:
        """Let a tape's backward pass run the adjoint with the present arguments."""
        config = self.config
        warp_launch.check_array_access(tape, self._concrete, self._kept)
        if not self.has_adjoint:  # the tape warns of it
            split = self._kept[:inputs], self._kept[inputs:]
            threads = config.block_dim or 0
            tape.record_launch(self._concrete, config.dim, config.max_blocks, *split, config.device, threads)
            return
        self.is_on_tape = True
        gradients = tape.gradients

        def backward() -> None:
            self.adjoint()
            gradients.update(self.gradients_by_array())

        gradients.update(self.gradients_by_array())
        tape.record_func(backward, [])

    def gradients_by_array(self) -> dict[Any, Any]:
        """The gradients of arrays and structs that have one, in the form of ``wp.Tape.gradients``."""
        found: dict[Any, Any] = {}
        for value, kept, given in zip(self.values, self._kept, self.gradients):
            own = warp_launch.own_gradient(kept, found)
            gradient = own if given is None else given
            if gradient is not None and warp_launch.can_have_gradient(value):
                found[value] = gradient
        return found


class RecordedLaunch:
    """A recorded launch of a kernel and of its adjoint. :func:`record` makes it.

    Inside ``with tape:`` (a ``wp.Tape``), :meth:`forward` is recorded on the tape. The tape's backward pass replays the
    adjoint with the arguments of that moment. A recording keeps its arrays, its module and its stream alive. Its
    arguments must not change while another thread replays it.
    """

    def __init__(self, packed: _Packed, names: Sequence[str], inputs: int, runtime: Any) -> None:
        self._packed = packed
        self._names = tuple(names)
        self._inputs = inputs
        self._runtime = runtime

    @property
    def kernel(self) -> wp.Kernel:
        """Warp's kernel."""
        return self._packed.kernel

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arguments, inputs first."""
        return self._names

    @property
    def has_adjoint(self) -> bool:
        """True if the kernel has an adjoint. Without one, :meth:`adjoint` raises an error."""
        return bool(self._packed.has_adjoint)

    def __repr__(self) -> str:
        config = self._packed.config
        return f"RecordedLaunch({self.kernel.key}({', '.join(self._names)}), dim={config.dim}, device={config.device})"

    def forward(self) -> None:
        """Launch the kernel.

        Raises:
            RecordingError: The kernel was redefined with other arguments.
        """
        packed = self._packed
        packed.forward()
        if self._runtime.tape is not None:
            packed.record_on_tape(self._runtime.tape, self._inputs)

    def adjoint(self) -> None:
        """Launch the kernel's adjoint, which adds to gradients as ``wp.launch(adjoint=True)`` does.

        Raises:
            RecordingError: The kernel has no adjoint, or was redefined with other arguments.
        """
        self._packed.adjoint()

    def set(self, name: str | SupportsIndex, value: Any, *, adjoint: bool = False) -> None:
        """Change an argument, or the gradient of one.

        Args:
            name: Name of the argument, or its position, inputs first.
            value: A value that ``wp.launch`` accepts. An array, also one in a struct, must have the recorded shape. A
                new argument brings its own gradient. As a gradient, None stands for the array's own.
            adjoint: Change the gradient of the argument instead.

        Raises:
            RecordingError: There is no such argument, or the value has another type, dtype, shape or device. Nothing
                has changed.
        """
        index = self._index(name)
        if self._packed.is_on_tape:  # the tape's backward pass needs the old arguments
            self._packed = self._packed.copy()
        if adjoint:
            self._packed.set_gradient(index, value)
        else:
            self._packed.set(index, value)

    def _index(self, name: str | SupportsIndex) -> int:
        if isinstance(name, str) and name in self._names:
            return self._names.index(name)
        position = _whole_number(name)
        if position is not None and 0 <= position < len(self._names):
            return position
        raise RecordingError(
            f"kernel {self.kernel.key} has no argument {name!r}",
            remedy=f"valid ones are {', '.join(self._names)}, or 0 to {len(self._names) - 1}",
        )


class Recordable(Protocol):
    """An object that can be recorded like a kernel."""

    def recording_target(self, args: Sequence[Any], device: wp.DeviceLike, outputs: int) -> RecordingTarget:
        """The launch for some arguments, of which the last ``outputs`` are outputs."""


def record(
    kernel: wp.Kernel | Recordable,
    dim: int | Sequence[int] | None = None,
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    adj_inputs: Sequence[Any] | None = None,
    adj_outputs: Sequence[Any] | None = None,
    *,
    device: wp.DeviceLike = None,
    stream: wp.Stream | None = None,
    block_dim: int | None = None,
    max_blocks: int = 0,
    tiled: bool = False,
) -> RecordedLaunch:
    """Record a launch and the launch of its adjoint. Nothing is launched yet.

    Args:
        kernel: A Warp kernel, generic or not, or a tuned kernel.
        dim: Launch dimensions. A tuned kernel decides them itself. A dimension of 0 launches nothing.
        inputs: Arguments, as in ``wp.launch``.
        outputs: The arguments that follow.
        adj_inputs: A gradient for each of ``inputs``. None, for all or for one, stands for the array's own ``.grad``.
            An array without ``.grad`` gets no gradient, as on a ``wp.Tape``.
        adj_outputs: A gradient for each of ``outputs``, by the same rules.
        device: Device of the launch; None takes the stream's, or Warp's default device.
        stream: A CUDA stream for every replay; None takes the one that is current at a replay.
        block_dim: Threads per block, 1 to 1024; None for Warp's default.
        max_blocks: Largest number of blocks; 0 for no limit.
        tiled: As ``wp.launch_tiled``, add a last dimension of ``block_dim`` threads to ``dim``.

    Raises:
        RecordingError: Arguments or gradients are missing, surplus or do not fit the kernel, or a launch cannot have
            these dimensions, block, stream or device.
        UnsupportedWarpError: The installed Warp lacks a part that recordings rely on.
        Exception: Any error of ``wp.launch`` when the module does not build.
    """
    runtime = warp_launch.runtime()
    device = warp_launch.device_of(device, stream)
    given, results = _listed("inputs", inputs), _listed("outputs", outputs)
    values = [*given, *results]
    if hasattr(kernel, "recording_target"):
        if dim is not None or block_dim is not None or tiled:
            raise RecordingError(
                "a tuned kernel was given launch dimensions", remedy="leave dim, block_dim and tiled to it"
            )
        target = kernel.recording_target(values, device, len(results))
        kernel, dim, block_dim, tiled = target.kernel, target.dim, target.block_dim, target.tiled
    if not warp_launch.is_kernel(kernel):
        raise RecordingError(f"{kernel!r} is not a kernel", remedy="give what @wp.kernel makes, or a tuned kernel")
    if tiled and block_dim is None:
        raise RecordingError(
            f"kernel {kernel.key} is launched in tiles without block_dim", remedy="give the threads per block"
        )
    names = warp_launch.argument_names(kernel)
    if len(values) != len(names):
        raise RecordingError(
            f"kernel {kernel.key} takes {len(names)} arguments, and {len(values)} were given",
            remedy=f"give {', '.join(names)}",
        )
    gradients = [
        *_gradients(kernel, "adj_inputs", adj_inputs, names[: len(given)]),
        *_gradients(kernel, "adj_outputs", adj_outputs, names[len(given) :]),
    ]
    config = _LaunchConfig(
        _dimensions(dim, tiled=tiled),
        None if block_dim is None else _whole("block_dim", block_dim, 1, BLOCK_THREADS),
        tiled,
        _whole("max_blocks", max_blocks, 0, MAX_BLOCKS),
        device,
        stream,
    )
    packed = _Packed(kernel, config, values, gradients)
    if any(gradient is not None for gradient in gradients):
        packed.require_adjoint()
    return RecordedLaunch(packed, names, len(given), runtime)


# ---- checks of the arguments


def _listed(name: str, given: Any) -> list[Any]:
    """Returns arguments or gradients as a list.

    Raises:
        RecordingError: A single value was given.
    """
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)) or hasattr(given, "shape"):
        raise RecordingError(f"{name} is {given!r:.300}", remedy=f"give a list, {name}=[...]")
    return list(given)


def _gradients(kernel: Any, name: str, given: Any, names: Sequence[str]) -> list[Any]:
    """Returns a gradient for each argument; None stands for the argument's own.

    Raises:
        RecordingError: Gradients are missing or surplus.
    """
    if given is None:
        return [None] * len(names)
    found = _listed(name, given)
    if len(found) != len(names):
        raise RecordingError(
            f"{name} of kernel {kernel.key} has {len(found)} gradients for {len(names)} arguments",
            remedy=f"give one for each of {', '.join(names) or 'none'}, None for the array's own",
        )
    return found


def _dimensions(dim: Any, *, tiled: bool) -> tuple[int, ...]:
    """Returns the launch dimensions as a tuple.

    Raises:
        RecordingError: There are none or too many, or one is not a whole number or is negative.
    """
    largest = MAX_DIMENSIONS - tiled
    try:
        sizes = tuple(operator.index(size) for size in (dim if isinstance(dim, Iterable) else (dim,)))
    except TypeError:
        sizes = ()
    if min(sizes, default=-1) < 0 or len(sizes) > largest:
        raise RecordingError(
            f"dim is {dim!r}", remedy=f"give 1 to {largest} whole numbers of threads that are not negative"
        )
    return sizes


def _whole_number(value: Any) -> int | None:
    """Returns a whole number of any type, also of NumPy; None for other values, booleans included."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _whole(name: str, value: Any, least: int, most: int) -> int:
    found = _whole_number(value)
    if found is None or not least <= found <= most:
        raise RecordingError(f"{name} is {value!r}", remedy=f"give a whole number from {least} to {most}")
    return found
