"""Kernels as candidates of a search: on copies of the arguments, on one or several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from warp_tiles.errors import RecordingError, ToolchainError, TuningError
from warp_tiles.tuning.arguments import namespace
from warp_tiles.tuning.candidate import FirstReference, KernelCandidate, Reference, Workspace
from warp_tiles.tuning.environment import alike
from warp_tiles.tuning.maker import Measurement, TunedLaunch
from warp_tiles.tuning.measure import Clock, EventClock, clock_for, describe_error
from warp_tiles.tuning.record import Config
from warp_tiles.tuning.search import SearchDevice


class KernelMaker(Protocol):
    """Makes the kernels of configurations; all of them have the same arguments."""

    @property
    def function(self) -> Callable[..., Any]:
        """The user's function, for messages."""

    def arguments(self) -> tuple[str, ...]:
        """Names of the kernels' arguments."""

    def launch_of(self, config: Config) -> TunedLaunch:
        """Returns the launch of a configuration."""


@dataclass(frozen=True)
class KernelLaunches:
    """The launches of a search. No array of the user changes.

    Attributes:
        maker: Makes the kernels.
        values: Arguments, in order.
        written: Names of arrays that launches write; None if they are not known.
        dim: Launch dimensions, from a configuration and the arguments.
        measurement: Options for launching and measuring candidates.
        writes_only_named: True if launches write no array besides ``written``. If False, other arrays are copied too.
        first: With ``reference="first"``, the first of these configurations that works gives the expected results.
        adjoint: Launch the adjoint kernels, with gradients of their own.
        is_planned: True if the values of the arrays are not those of a run, so that replacing them is worth no warning.
    """

    maker: KernelMaker
    values: Sequence[Any]
    written: frozenset[str] | None
    dim: Callable[[Config, Any], Any]
    measurement: Measurement
    writes_only_named: bool = False
    first: Sequence[Config] = ()
    adjoint: bool = False
    is_planned: bool = False

    @contextlib.contextmanager
    def devices(self, device: Any, configs: Sequence[Config]) -> Iterator[list[SearchDevice]]:
        """Enter a block with the devices of a search: a device of Warp, and those of ``measurement`` that are like it.

        Args:
            device: Warp's device.
            configs: The configurations of the search.

        Raises:
            TuningError: The kernels do not accept an argument, the reference does not fit, or an argument cannot be
                copied.
            ToolchainError: A device has not enough memory to measure.
        """
        from warp_tiles._warp.searches import without_tape

        maker, measurement, names = self.maker, self.measurement, self.maker.arguments()
        _require_arguments(maker, configs, names, self.values, device)
        with without_tape():
            devices = _devices(device, measurement.devices)
            spaces = [
                Workspace(
                    names,
                    self.values,
                    self.written,
                    each,
                    writes_only_named=self.writes_only_named,
                    adjoint=self.adjoint,
                    is_planned=self.is_planned,
                )
                for each in devices
            ]
            arguments = [namespace(names, space.pristine) for space in spaces]

            def built(config: Config, number: int) -> KernelCandidate:
                dim = self.dim(config, arguments[number])
                return KernelCandidate(maker.launch_of(config), dim, measurement.tiled, spaces[number]).build()

            reference = self._reference(spaces[0], lambda config: built(config, 0))

            def search_device(number: int) -> SearchDevice:
                def build(config: Config) -> KernelCandidate:
                    candidate = built(config, number)
                    candidate.reference = reference
                    return candidate

                found = devices[number]
                clock = _ready_clock(found, measurement.flush_l2)
                return SearchDevice(build, clock, str(found.alias), partial(is_usable, found))

            yield [search_device(number) for number in range(len(devices))]

    def _reference(
        self, space: Workspace, built: Callable[[Config], KernelCandidate]
    ) -> Reference | FirstReference | None:
        found = self.measurement
        if found.reference is None:
            return None
        if found.reference == "first":
            candidates = [partial(built, config) for config in self.first]
            return FirstReference(candidates, found.rtol, found.atol, found.is_scaled)
        return Reference.from_function(found.reference, space, found.rtol, found.atol)


def _ready_clock(device: Any, flush_l2: bool) -> Clock:
    """The clock of a device with its memory, so that no candidate is blamed for the lack of it.

    Raises:
        ToolchainError: The device has not enough memory.
    """
    clock = clock_for(device, flush_l2=flush_l2)
    try:
        if isinstance(clock, EventClock):
            clock.reserve()
    except Exception as error:  # of any class: no candidate caused it
        raise ToolchainError(
            f"nothing can be measured on the GPU {device.alias}: {describe_error(error)}",
            remedy="free its memory, or name other GPUs with `warp-tiles tune --devices` or CUDA_VISIBLE_DEVICES",
        ) from error
    return clock


def is_usable(device: Any) -> bool:
    """True if a device still computes. A kernel that reads wrong addresses breaks a GPU for the whole process."""
    import warp as wp

    try:
        return bool(wp.ones(1, dtype=wp.int32, device=device).numpy()[0] == 1)
    except Exception:  # of any class; the candidate's own error is reported
        return False


def _require_arguments(
    maker: KernelMaker, configs: Sequence[Config], names: Sequence[str], values: Sequence[Any], device: Any
) -> None:
    """Raise if no kernel accepts the arguments. A search would record a failure of every configuration.

    Raises:
        TuningError: The error of the first kernel.
    """
    from warp_tiles._warp.launch import check_arguments

    refused: RecordingError | None = None
    for config in configs:
        with contextlib.suppress(TuningError):  # the search records why
            kernel = maker.launch_of(config).kernel
            try:
                check_arguments(kernel, values, device)
            except RecordingError as error:
                refused = refused or error
            else:
                return
    if refused is not None:
        raise TuningError(
            f"{maker.function.__qualname__}: {refused.message}", remedy=f"its arguments are {', '.join(names)}"
        ) from refused


def _devices(device: Any, others: Sequence[Any]) -> list[Any]:
    """Returns the launch's own device and those of the others that are like it."""
    import warp as wp

    wp.synchronize_device(device)
    try:
        found = [wp.get_device(other) for other in others]
    except (RuntimeError, ValueError) as error:
        raise TuningError(
            f"devices is {list(others)!r}: {error}", remedy=f"there are {', '.join(map(str, wp.get_devices()))}"
        ) from error
    return [device, *alike(device, found)]
