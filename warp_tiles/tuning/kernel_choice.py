"""Which configuration of a tuned kernel is launched: by policy and record, or after a search."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from warp_tiles import settings
from warp_tiles.errors import LockedError, TuningError
from warp_tiles.tuning.arguments import namespace
from warp_tiles.tuning.kernel_records import Dim, KernelRecords, Store, described
from warp_tiles.tuning.key import TuningKey
from warp_tiles.tuning.making import Maker, Measurement
from warp_tiles.tuning.record import Config, Record, Timing, settled
from warp_tiles.tuning.space import Strategy, modules_first

log = logging.getLogger("warp_tiles")
UNTUNED = ("off", "scalar", "fast")  # policies under which nothing is looked up and nothing measured


@dataclass
class Counters:
    """Counts of the operations of a tuned kernel in this process.

    Attributes:
        lookups: Records that were looked up.
        searches: Searches that were begun.
        builds: Candidates that were built, or failed to.
        measurements: Candidates that had at least one timed run.
        build_s, measure_s: What searches spent waiting for builds, and measuring.
    """

    lookups: int = 0
    searches: int = 0
    builds: int = 0
    measurements: int = 0
    build_s: float = 0.0
    measure_s: float = 0.0


@dataclass(frozen=True)
class Question:
    """A launch that a configuration is asked for.

    Attributes:
        values: Arguments, in order.
        device: Warp's device.
        written: Names of arrays that the launch writes; None if it is not known.
    """

    values: Sequence[Any]
    device: Any
    written: frozenset[str] | None = None


class KernelChooser:
    """Chooses configurations of one tuned kernel, and searches where that is needed and allowed.

    Args:
        maker: Makes the kernels.
        records: What is known.
        dim: Launch dimensions, from a configuration and the arguments.
        strategy, how: What is searched, and how.
        restore: Names of the arrays that the kernel writes; None takes those of the launch.
        wait: Whether to wait for another process that searches.
    """

    def __init__(
        self,
        maker: Maker,
        records: KernelRecords,
        dim: Dim,
        strategy: Strategy,
        how: Measurement,
        restore: tuple[str, ...] | None,
        wait: bool,
    ) -> None:
        self.counters = Counters()
        self._maker = maker
        self._records = records
        self._dim = dim
        self._strategy = strategy
        self._how = how
        self._restore = restore
        self._wait = wait

    def choose(self, question: Question) -> Config | None:
        """The configuration to launch; None for the default one until another process has finished its search.

        Raises:
            TuningError: No configuration works, or a search is needed while a graph is captured.
            LockedError: The policy is ``locked``, and there is no record.
        """
        now, device = settings.current(), question.device
        if now.policy in UNTUNED:
            return self._maker.default
        records = self._records
        key, store = records.key_of(question.values, device, now), records.open(now)
        self.counters.lookups += 1
        wanted = records.wanted(device)
        record = _known(store, key)
        winner = record.among(wanted).winner()
        if now.policy == "locked":
            if winner is None:
                raise LockedError(
                    f"{records!r} has no tuning record for {described(key)}; {now.named('policy')} is 'locked', "
                    f"the key is {key.digest}",
                    remedy="tune where the policy is not locked, and ship the record (record_paths)",
                )
            records.say_if_stale(key, winner)
            return winner.config
        pending = records.pending(record, wanted, now)
        if not pending:
            if winner is None:
                raise records.all_failed(record, wanted)
            records.say_if_stale(key, winner)
            return winner.config
        if _launches_nothing(self._dim(self._maker.default, namespace(self._maker.arguments(), question.values))):
            return None
        if device.is_capturing:
            if winner is None:
                raise TuningError(
                    f"{records!r} must be tuned for {described(key)} while a graph is captured",
                    remedy="launch it once before the capture",
                )
            records.say_if_stale(key, winner)
            return winner.config
        return self._tuned(store, key, wanted, question, now)

    def _tuned(
        self,
        store: Store,
        key: TuningKey,
        wanted: Mapping[str, Config],
        question: Question,
        now: settings.Settings,
    ) -> Config | None:
        """The winner after a search, here or in another process; None if another one still searches."""
        while True:
            with store.single_flight(key, None if self._wait else 0.0) as may_search:
                record = _known(store, key)
                pending = self._records.pending(record, wanted, now)
                if may_search and pending:
                    left_out = self.search(store, key, pending, question, now)
                    record = left_out.merged(_known(store, key).timings)
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
        self, question: Question, wanted: Mapping[str, Config], now: settings.Settings, *, insists: bool, again: bool
    ) -> Record:
        """Measure what the record lacks; nothing is launched.

        Args:
            question: Arguments and device.
            wanted: Configurations by identity.
            now: Settings; the policy does not matter.
            insists: Search even though another process has just finished a search.
            again: Measure also what the record has.

        Raises:
            TuningError: No candidate works.
        """
        records = self._records
        key, store = records.key_of(question.values, question.device, now), records.open(now)
        with store.single_flight(key) as may_search:
            record = _known(store, key)
            pending = tuple(modules_first(wanted.values())) if again else records.pending(record, wanted, now)
            left_out = Record(key)
            if pending and (may_search or insists or again):
                left_out = self.search(store, key, pending, question, now)
        found = left_out.merged(_known(store, key).timings)
        if found.among(wanted).winner() is None:
            raise records.all_failed(found, wanted)
        return found

    def search(
        self, store: Store, key: TuningKey, pending: Sequence[Config], question: Question, now: settings.Settings
    ) -> Record:
        """Build and measure configurations, and store each timing when it is final.

        Returns:
            The timings that were not stored: their builds failed for a temporary cause. The next search
            tries them again.
        """
        from warp_tiles.tuning.headers import kept_headers
        from warp_tiles.tuning.kernel_search import search_kernels

        written = question.written if self._restore is None else frozenset(self._restore)
        self.counters.searches += 1

        before = _known(store, key).timings if now.tune_budget_s else ()  # or a small budget would never be enough

        def finished(timings: Sequence[Timing]) -> None:
            store.merge(key, settled(timings, before))

        with kept_headers(now) if question.device.is_cpu else nullcontext():
            found = search_kernels(
                self._maker,
                pending,
                question.values,
                written,
                question.device,
                is_all_written=self._restore is not None,
                dim=self._dim,
                how=self._how,
                strategy=self._strategy,
                budget_s=now.tune_budget_s,
                soft=key.environment.soft(),
                finished=finished,
                first=self._records.configs(question.device),
            )
        self.counters.builds += found.builds
        self.counters.measurements += found.measured
        self.counters.build_s += found.build_s
        self.counters.measure_s += found.measure_s
        for timing in found.passing:
            log.warning(
                "tuning %r: %s is left out until the next search: %s", self._records, dict(timing.config), timing.reason
            )
        return Record(key, found.passing)


def _known(store: Store, key: TuningKey) -> Record:
    """The stored record under the current key."""
    stored = store.load(key)
    return Record(key, stored.timings if stored is not None else ())


def _launches_nothing(dim: Any) -> bool:
    return 0 in (tuple(dim) if isinstance(dim, Sequence) else (dim,))
