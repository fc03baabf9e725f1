"""The launches of a search: kernels on copies of their arguments, on one or several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import warp as wp

from warp_tiles._warp.launch import check_arguments
from warp_tiles._warp.searches import without_tape
from warp_tiles.errors import RecordingError, ToolchainError, TuningError
from warp_tiles.tuning.arguments import namespace
from warp_tiles.tuning.candidate import KernelCandidate, Reference, Workspace
from warp_tiles.tuning.environment import alike
from warp_tiles.tuning.factory import TunedLaunch
from warp_tiles.tuning.measure import Clock, Effort, clock_for, describe_error
from warp_tiles.tuning.record import Config
from warp_tiles.tuning.search import SearchDevice
from warp_tiles.util.signals import raise_if_signalled

Dim = Callable[[Config, SimpleNamespace], int | Sequence[int]]


@dataclass(frozen=True)
class Measurement:
    """Options for launching and measuring candidates; see :func:`warp_tiles.autotune`.

    Attributes:
        reference: ``first``, a function of the arguments, or None.
        is_scaled: True if ``atol`` is a share of the largest element of an array.
        effort: Amount of measurement; None for the default.
        devices: Further GPUs that share the work; GPUs unlike the launch's own are left out.
    """

    tiled: bool = False
    reference: Any = None
    rtol: float = 1e-2
    atol: float = 1e-3
    flush_l2: bool = False
    jobs: int = 0
    effort: Effort | None = None
    devices: tuple[Any, ...] = ()
    is_scaled: bool = False

    def key_values(self) -> dict[str, Any]:
        """Options that differ from the defaults and affect timings or failures."""
        found: dict[str, Any] = {"measure.tiled": True} if self.tiled else {}
        if self.flush_l2:
            found["measure.flush_l2"] = True
        if self.reference is not None:
            kind = "first" if self.reference == "first" else "function"
            found["measure.reference"] = f"{kind}, rtol {self.rtol:g}, atol {self.atol:g}"
        return found


@dataclass(frozen=True)
class KernelLaunches:
    """The launches of a search. No array of the user changes.

    Attributes:
        function: The user's function, for messages.
        names: Names of the kernels' arguments.
        launch_of: Returns the launch of a configuration.
        written: Names of arrays that launches write; None if they are not known.
        dim: Launch dimensions, from a configuration and the arguments.
        device: Warp's device; those of ``measurement`` that are like it share the work.
        options: Options of :class:`Workspace`.
        first: With ``reference="first"``, the first of these configurations that works gives the expected results.
    """

    function: Callable[..., Any]
    names: Sequence[str]
    launch_of: Callable[[Config], TunedLaunch]
    values: Sequence[Any]
    written: frozenset[str] | None
    dim: Dim
    measurement: Measurement
    device: Any
    first: Sequence[Config]
    options: dict[str, bool]

    @contextlib.contextmanager
    def devices(self, configs: Sequence[Config]) -> Iterator[list[SearchDevice]]:
        """Enter a block with the devices of a search for configurations.

        Raises:
            TuningError: The kernels do not accept an argument, the reference does not fit, or an argument cannot be
                copied.
            ToolchainError: A device has not enough memory to measure.
        """
        self._require_arguments(configs)
        with without_tape():
            spaces = [
                Workspace(self.names, self.values, self.written, each, **self.options)
                for each in _devices(self.device, self.measurement.devices)
            ]
            reference = self._reference(spaces[0])
            yield [
                SearchDevice(
                    partial(self._built, space, reference),
                    _ready_clock(space.device, self.measurement.flush_l2),
                    str(space.device.alias),
                    partial(is_usable, space.device),
                )
                for space in spaces
            ]

    def _built(self, space: Workspace, reference: Reference | None, config: Config) -> KernelCandidate:
        launch, dim = self.launch_of(config), self.dim(config, namespace(space.names, space.pristine))
        return KernelCandidate(launch, dim, self.measurement.tiled, space, reference).build()

    def _results(self, space: Workspace, config: Config) -> dict[str, Any]:
        return self._built(space, None, config).results()

    def _reference(self, space: Workspace) -> Reference | None:
        options = self.measurement
        if options.reference is None:
            return None
        if options.reference == "first":
            sources = [partial(self._results, space, config) for config in self.first]
        else:
            found = space.expected(options.reference(namespace(space.names, space.pristine)))
            sources = [partial(dict, found)]
        return Reference(sources, options.rtol, options.atol, options.is_scaled)

    def _require_arguments(self, configs: Sequence[Config]) -> None:
        """Raise if no kernel accepts the arguments. A search would record a failure of every configuration.

        Raises:
            TuningError: The error of the first kernel.
        """
        refused: RecordingError | None = None
        for config in configs:
            with contextlib.suppress(TuningError):  # the search records why
                kernel = self.launch_of(config).kernel
                try:
                    check_arguments(kernel, self.values, self.device)
                except RecordingError as error:
                    refused = refused or error
                else:
                    return
        if refused is not None:
            raise TuningError(
                f"{self.function.__qualname__}: {refused.message}",
                remedy=f"its arguments are {', '.join(self.names)}",
            ) from refused


def _ready_clock(device: Any, flush_l2: bool) -> Clock:
    """The clock of a device with its memory, so that no candidate is blamed for the lack of it.

    Raises:
        ToolchainError: The device has not enough memory.
    """
    try:
        return clock_for(device, flush_l2=flush_l2)
    except Exception as error:  # of any class: no candidate caused it
        raise_if_signalled(error)
        raise ToolchainError(
            f"nothing can be measured on the GPU {device.alias}: {describe_error(error)}",
            remedy="free its memory, or name other GPUs with `warp-tiles tune --devices` or CUDA_VISIBLE_DEVICES",
        ) from error


def is_usable(device: Any) -> bool:
    """True if a device still computes. A kernel that reads wrong addresses breaks a GPU for the whole process."""
    try:
        return bool(wp.ones(1, dtype=wp.int32, device=device).numpy()[0] == 1)
    except Exception as error:  # of any class; the candidate's own error is reported
        raise_if_signalled(error)
        return False


def _devices(device: Any, others: Sequence[Any]) -> list[Any]:
    """The launch's own device and those of the others that are like it."""
    wp.synchronize_device(device)
    try:
        found = [wp.get_device(other) for other in others]
    except (RuntimeError, ValueError) as error:
        raise TuningError(
            f"devices is {list(others)!r}: {error}", remedy=f"there are {', '.join(map(str, wp.get_devices()))}"
        ) from error
    return [device, *alike(device, found)]
