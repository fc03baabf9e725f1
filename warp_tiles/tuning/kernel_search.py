"""One search for a tuned kernel: its candidates on copies of the arguments, on one device or several."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from warp_tiles.errors import RecordingError, TuningError
from warp_tiles.tuning.arguments import namespace
from warp_tiles.tuning.candidate import FirstReference, KernelCandidate, Reference, Workspace
from warp_tiles.tuning.environment import alike
from warp_tiles.tuning.making import Maker, Measurement
from warp_tiles.tuning.measure import clock_for
from warp_tiles.tuning.record import Config, Timing
from warp_tiles.tuning.search import Found, Lane, search
from warp_tiles.tuning.space import Strategy


def search_kernels(
    maker: Maker,
    pending: Sequence[Config],
    values: Sequence[Any],
    written: frozenset[str] | None,
    device: Any,
    *,
    is_all_written: bool,
    dim: Callable[[Config, Any], Any],
    how: Measurement,
    strategy: Strategy,
    budget_s: float,
    soft: Mapping[str, Any],
    finished: Callable[[Sequence[Timing]], None],
    first: Sequence[Config],
) -> Found:
    """Build and measure configurations of a kernel; no array of the user changes.

    Args:
        maker: Makes the kernels.
        pending: What is searched.
        values: Arguments, in order.
        written: Names of arrays that launches write; None if it is not known.
        device: Warp's device.
        is_all_written: Whether launches write nothing but ``written``; else other arrays are copied as well.
        dim: Launch dimensions, from a configuration and the arguments.
        how: How candidates are launched and measured.
        strategy, budget_s, soft, finished: As of :func:`warp_tiles.tuning.search.search`.
        first: Configurations, the first of which that works gives the results to compare with, where that is asked.

    Raises:
        TuningError: An argument is not what the kernels take, the reference does not fit, or an argument cannot be
            copied.
    """
    from warp_tiles._warp.searches import without_tape

    names = maker.arguments()
    _require_arguments(maker, pending, names, values, device)
    with without_tape(), _devices(device, how.devices) as places:
        spaces = [Workspace(names, values, written, place, is_all_written=is_all_written) for place in places]
        arguments = [namespace(names, space.pristine) for space in spaces]

        def built(config: Config, number: int) -> KernelCandidate:
            launch = maker.launch_of(config)
            return KernelCandidate(launch, dim(config, arguments[number]), how.tiled, spaces[number]).build()

        reference = _reference(how, spaces[0], first, lambda config: built(config, 0))

        def lane(number: int) -> Lane:
            def build(config: Config) -> KernelCandidate:
                candidate = built(config, number)
                candidate.reference = reference
                return candidate

            return Lane(build, clock_for(places[number], flush_l2=how.flush_l2))

        return search(
            pending,
            [lane(number) for number in range(len(places))],
            strategy=strategy,
            effort=how.effort,
            jobs=how.jobs,
            budget_s=budget_s,
            soft=soft,
            finished=finished,
            what=maker.function.__name__,
        )


def _require_arguments(
    maker: Maker, configs: Sequence[Config], names: Sequence[str], values: Sequence[Any], device: Any
) -> None:
    """Refuse arguments that no kernel takes; a search would note a failure of every configuration.

    Raises:
        TuningError: What the first kernel says.
    """
    from warp_tiles._warp.launch import check_arguments

    refused: RecordingError | None = None
    for config in configs:
        with contextlib.suppress(TuningError):  # the search notes why
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
    how: Measurement, space: Workspace, first: Sequence[Config], built: Callable[[Config], KernelCandidate]
) -> Reference | FirstReference | None:
    if how.reference is None:
        return None
    if how.reference == "first":
        return FirstReference([partial(built, config) for config in first], how.rtol, how.atol)
    return Reference.called(how.reference, space, how.rtol, how.atol)


@contextlib.contextmanager
def _devices(device: Any, others: Sequence[Any]) -> Iterator[list[Any]]:
    """The launch's own device, and those that are like it among the others that were given."""
    import warp as wp

    wp.synchronize_device(device)
    try:
        found = [wp.get_device(other) for other in others]
    except (RuntimeError, ValueError) as error:
        raise TuningError(
            f"devices is {list(others)!r}: {error}", remedy=f"there are {', '.join(map(str, wp.get_devices()))}"
        ) from error
    yield [device, *alike(device, found)]
