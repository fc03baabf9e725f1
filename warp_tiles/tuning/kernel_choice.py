"""Chooses the configuration of a tuned kernel to launch: by policy and record, or after a search."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warp_tiles._warp.intercept import is_planning
from warp_tiles.errors import LockedError, TuningError
from warp_tiles.settings import Settings, current
from warp_tiles.tuning.arguments import namespace
from warp_tiles.tuning.kernel_records import Dim, KernelRecords, Store, described
from warp_tiles.tuning.key import TuningKey
from warp_tiles.tuning.maker import Maker, Measurement
from warp_tiles.tuning.record import Config, Record, Timing, settled
from warp_tiles.tuning.space import Strategy, modules_first

log = logging.getLogger("warp_tiles")
UNTUNED = ("off", "scalar", "fast")  # policies without look-ups and measurements


@dataclass
class Counters:
    """Counts of the operations of a tuned kernel in this process.

    Attributes:
        lookups: Number of look-ups of records.
        searches: Number of searches.
        builds: Number of builds of candidates, failed ones included.
        measurements: Number of candidates with at least one timed run.
        build_s, measure_s: Time in which searches waited for builds, and in which they measured.
    """

    lookups: int = 0
    searches: int = 0
    builds: int = 0
    measurements: int = 0
    build_s: float = 0.0
    measure_s: float = 0.0


@dataclass(frozen=True)
class LaunchRequest:
    """A launch that needs a configuration.

    Attributes:
        values: Arguments, in order.
        device: Warp's device.
        written: Names of arrays that the launch writes; None if they are not known.
    """

    values: Sequence[Any]
    device: Any
    written: frozenset[str] | None = None


class KernelChooser:
    """Chooses configurations of one tuned kernel, and searches if that is needed and allowed.

    Args:
        maker: Makes the kernels.
        records: Keys and records of the kernel.
        dim: Launch dimensions, from a configuration and the arguments.
        strategy: Selects the configurations that a search measures.
        measurement: Options for launching and measuring candidates.
        restore: Names of the arrays that the kernel writes; None takes those of the launch.
        wait: True to wait for another process that searches.
    """

    def __init__(
        self,
        maker: Maker,
        records: KernelRecords,
        dim: Dim,
        strategy: Strategy,
        measurement: Measurement,
        restore: tuple[str, ...] | None,
        wait: bool,
    ) -> None:
        self.counters = Counters()
        self._maker = maker
        self._records = records
        self._dim = dim
        self._strategy = strategy
        self._measurement = measurement
        self._restore = restore
        self._wait = wait

    def choose(self, request: LaunchRequest) -> Config | None:
        """Returns the configuration to launch; None for the default one, after which a later launch looks it up again.

        Raises:
            TuningError: No configuration works, or a search is needed while a graph is captured.
            LockedError: The policy is ``locked``, and there is no record.
        """
        now, device = current(), request.device
        if now.policy in UNTUNED:
            return self._maker.default
        records = self._records
        key, store = records.key_of(request.values, device, now), records.open(now)
        self.counters.lookups += 1
        wanted = records.wanted(device)
        record = _stored_record(store, key)
        winner = record.among(wanted).winner()
        if now.policy == "locked":
            if winner is None:
                raise LockedError(
                    f"{records!r} has no tuning record for {described(key)}; {now.named('policy')} is 'locked', "
                    f"the key is {key.digest}",
                    remedy="tune where the policy is not locked, and ship the record (record_paths)",
                )
            records.warn_if_stale(key, winner)
            return winner.config
        pending = records.pending(record, wanted, now)
        if not pending:
            if winner is None:
                raise records.all_failed(record, wanted)
            records.warn_if_stale(key, winner)
            return winner.config
        if is_planning():
            return self._maker.default if winner is None else winner.config
        if _is_empty(self._dim(self._maker.default, namespace(self._maker.arguments(), request.values))):
            return None
        if device.is_capturing:
            if winner is None:
                raise TuningError(
                    f"{records!r} must be tuned for {described(key)} while a graph is captured",
                    remedy="launch it once before the capture",
                )
            records.warn_if_stale(key, winner)
            return winner.config
        return self._search_or_wait(store, key, wanted, request, now)

    def _search_or_wait(
        self,
        store: Store,
        key: TuningKey,
        wanted: Mapping[str, Config],
        request: LaunchRequest,
        now: Settings,
    ) -> Config | None:
        """Returns the winner after a search, here or in another process; None if there is none yet."""
        while True:
            with store.single_flight(key, None if self._wait else 0.0) as may_search:
                record = _stored_record(store, key)
                pending = self._records.pending(record, wanted, now)
                if may_search and pending:
                    unstored = self.search(store, key, pending, request, now)
                    record = unstored.merged(_stored_record(store, key).timings)
                    pending = ()
            if may_search or not pending:
                break
            if not self._wait:
                return None
        winner = record.among(wanted).winner()
        if winner is not None:
            return winner.config
        known = {timing.identity for timing in record.timings}
        if not wanted.keys() <= known:  # the budget ended before anything was measured
            log.warning("tuning %r: the budget of %g s ended before a measurement", self._records, now.tune_budget_s)
            return None
        raise self._records.all_failed(record, wanted)

    def tune(
        self, request: LaunchRequest, wanted: Mapping[str, Config], now: Settings, *, force: bool, again: bool
    ) -> Record:
        """Measure the candidates that the record lacks.

        Args:
            request: Arguments and device.
            wanted: Configurations by identity.
            now: Settings; the policy does not matter.
            force: Search even if another process has just finished a search.
            again: Also measure the candidates that the record has.

        Raises:
            TuningError: No candidate works, or a script is only planned.
        """
        records = self._records
        if is_planning():
            raise TuningError(
                f"{records!r} cannot be tuned while the script is planned, because nothing is launched",
                remedy="ask warp_tiles.is_planning() before",
            )
        key, store = records.key_of(request.values, request.device, now), records.open(now)
        with store.single_flight(key) as may_search:
            record = _stored_record(store, key)
            pending = tuple(modules_first(wanted.values())) if again else records.pending(record, wanted, now)
            unstored = Record(key)
            if pending and (may_search or force or again):
                unstored = self.search(store, key, pending, request, now)
        found = unstored.merged(_stored_record(store, key).timings)
        if found.among(wanted).winner() is None:
            raise records.all_failed(found, wanted)
        return found

    def search(
        self, store: Store, key: TuningKey, pending: Sequence[Config], request: LaunchRequest, now: Settings
    ) -> Record:
        """Build and measure configurations, and store each timing when it is final.

        Returns:
            Timings of builds that failed for a transient cause. They are not stored, and the next search tries these
            builds again.
        """
        from warp_tiles.tuning.kernel_search import KernelLaunches
        from warp_tiles.tuning.search import search

        written = request.written if self._restore is None else frozenset(self._restore)
        self.counters.searches += 1

        # without this, a small budget would never be enough
        before = _stored_record(store, key).timings if now.tune_budget_s else ()

        def finished(timings: Sequence[Timing]) -> None:
            store.merge(key, settled(timings, before))

        launches = KernelLaunches(
            self._maker,
            request.values,
            written,
            self._dim,
            self._measurement,
            writes_only_named=self._restore is not None,
            first=self._records.configs(request.device),
        )
        with launches.devices(request.device, pending) as devices:
            found = search(
                pending,
                devices,
                strategy=self._strategy,
                effort=self._measurement.effort,
                jobs=self._measurement.jobs,
                budget_s=now.tune_budget_s,
                soft=key.environment.soft(),
                finished=finished,
                what=self._maker.function.__name__,
            )
        self.counters.builds += found.builds
        self.counters.measurements += found.measured
        self.counters.build_s += found.build_s
        self.counters.measure_s += found.measure_s
        for timing in found.transient:
            log.warning(
                "tuning %r: %s is left out until the next search: %s", self._records, dict(timing.config), timing.reason
            )
        return Record(key, found.transient)


def _stored_record(store: Store, key: TuningKey) -> Record:
    """Returns the stored record with the current key; empty if there is none."""
    stored = store.load(key)
    return Record(key, stored.timings if stored is not None else ())


def _is_empty(dim: Any) -> bool:
    return 0 in (tuple(dim) if isinstance(dim, Sequence) else (dim,))
