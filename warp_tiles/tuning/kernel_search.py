"""One search for a tuned kernel. Its candidates run on copies of the arguments, on one or several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from warp_tiles.errors import RecordingError, TuningError
from warp_tiles.tuning.arguments import namespace
from warp_tiles.tuning.candidate import FirstReference, KernelCandidate, Reference, Workspace
from warp_tiles.tuning.environment import alike
from warp_tiles.tuning.maker import Maker, Measurement
from warp_tiles.tuning.measure import clock_for
from warp_tiles.tuning.record import Config, Timing
from warp_tiles.tuning.search import SearchDevice, SearchResult, search
from warp_tiles.tuning.space import Strategy


def search_kernels(
    maker: Maker,
    pending: Sequence[Config],
    values: Sequence[Any],
    written: frozenset[str] | None,
    device: Any,
    *,
    writes_only_named: bool,
    dim: Callable[[Config, Any], Any],
    measurement: Measurement,
    strategy: Strategy,
    budget_s: float,
    soft: Mapping[str, Any],
    finished: Callable[[Sequence[Timing]], None],
    first: Sequence[Config],
) -> SearchResult:
    """Build and measure configurations of a kernel. No array of the user changes.

    Args:
        maker: Makes the kernels.
        pending: The configurations.
        values: Arguments, in order.
        written: Names of arrays that launches write; None if they are not known.
        device: Warp's device.
        writes_only_named: True if launches write no array besides ``written``. If False, other arrays are copied too.
        dim: Launch dimensions, from a configuration and the arguments.
        measurement: Options for launching and measuring candidates.
        strategy, budget_s, soft, finished: See :func:`warp_tiles.tuning.search.search`.
        first: With ``reference="first"``, the first of these configurations that works gives the expected results.

    Raises:
        TuningError: The kernels do not accept an argument, the reference does not fit, or an argument cannot be copied.
    """
    from warp_tiles._warp.searches import without_tape

    names = maker.arguments()
    _require_arguments(maker, pending, names, values, device)
    with without_tape(), _devices(device, measurement.devices) as devices:
        spaces = [Workspace(names, values, written, each, writes_only_named=writes_only_named) for each in devices]
        arguments = [namespace(names, space.pristine) for space in spaces]

        def built(config: Config, number: int) -> KernelCandidate:
            launch = maker.launch_of(config)
            return KernelCandidate(launch, dim(config, arguments[number]), measurement.tiled, spaces[number]).build()

        reference = _reference(measurement, spaces[0], first, lambda config: built(config, 0))

        def search_device(number: int) -> SearchDevice:
            def build(config: Config) -> KernelCandidate:
                candidate = built(config, number)
                candidate.reference = reference
                return candidate

            return SearchDevice(build, clock_for(devices[number], flush_l2=measurement.flush_l2))

        return search(
            pending,
            [search_device(number) for number in range(len(devices))],
            strategy=strategy,
            effort=measurement.effort,
            jobs=measurement.jobs,
            budget_s=budget_s,
            soft=soft,
            finished=finished,
            what=maker.function.__name__,
        )


def _require_arguments(
    maker: Maker, configs: Sequence[Config], names: Sequence[str], values: Sequence[Any], device: Any
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


def _reference(
    measurement: Measurement, space: Workspace, first: Sequence[Config], built: Callable[[Config], KernelCandidate]
) -> Reference | FirstReference | None:
    if measurement.reference is None:
        return None
    tolerances = measurement.rtol, measurement.atol
    if measurement.reference == "first":
        return FirstReference([partial(built, config) for config in first], *tolerances)
    return Reference.from_function(measurement.reference, space, *tolerances)


@contextlib.contextmanager
def _devices(device: Any, others: Sequence[Any]) -> Iterator[list[Any]]:
    """Enter a block with the launch's own device and those of the others that are like it."""
    import warp as wp

    wp.synchronize_device(device)
    try:
        found = [wp.get_device(other) for other in others]
    except (RuntimeError, ValueError) as error:
        raise TuningError(
            f"devices is {list(others)!r}: {error}", remedy=f"there are {', '.join(map(str, wp.get_devices()))}"
        ) from error
    yield [device, *alike(device, found)]
