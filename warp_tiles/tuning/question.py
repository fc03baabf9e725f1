"""A question that a search answers: which of some configurations is the fastest?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warp_tiles.tuning.key import TuningKey
from warp_tiles.tuning.record import Config, Record, Timing, identity, settled
from warp_tiles.tuning.search import SearchDevice, SearchResult, search
from warp_tiles.tuning.space import modules_first
from warp_tiles.tuning.store import RecordStore


def by_identity(configs: Iterable[Config]) -> dict[str, Config]:
    """Configurations by their identities, each once."""
    return {identity(config): config for config in configs}


@dataclass(frozen=True)
class Question:
    """Configurations, and the record with their timings.

    Attributes:
        wanted: The configurations that count, by identity.
        reuse_stale: True if timings of another driver or Warp patch release count.
    """

    key: TuningKey
    store: RecordStore
    wanted: Mapping[str, Config]
    reuse_stale: bool

    def record(self) -> Record:
        """The stored record; empty if there is none."""
        return self.store.load(self.key) or Record(self.key)

    def winner(self, record: Record) -> Timing | None:
        """The fastest of the configurations that count."""
        return record.among(self.wanted).winner()

    def pending(self, record: Record) -> tuple[Config, ...]:
        """Returns configurations without a timing, then those whose timing cannot be used now.

        A timing cannot be used if it is outdated or unfinished. The timing of a dropped candidate cannot be used if the
        candidate may have lost to one that does not count now.
        """
        known = {timing.identity: timing for timing in record.timings}
        best, winner, soft = record.winner(), self.winner(record), self.key.environment.soft()

        def is_known(timing: Timing | None) -> bool:
            if timing is None or timing.unfinished:
                return False
            if not self.reuse_stale and dict(timing.soft or {}) != soft:
                return False
            if timing.status != "dropped":
                return True
            if best is None or winner is None:
                return False
            return best.identity in self.wanted or timing.median_us >= winner.median_us

        missing = [name for name in self.wanted if not is_known(known.get(name))]
        new = [self.wanted[name] for name in missing if name not in known]
        again = [self.wanted[name] for name in missing if name in known]
        return (*modules_first(new), *modules_first(again))

    def search(
        self,
        configs: Sequence[Config],
        devices: Sequence[SearchDevice],
        budget_s: float,
        finished: Callable[[Sequence[Timing], Record], None] = lambda timings, record: None,
        **options: Any,
    ) -> SearchResult:
        """Measure configurations, and store each timing when it is final.

        Args:
            configs: The configurations.
            devices: See :func:`search`, like the next one.
            budget_s: See :func:`search`.
            finished: Called with timings and the record that they were added to.
            options: More arguments of :func:`search`.
        """
        # without this, a small budget would never be enough
        before = self.record().timings if budget_s else ()

        def store(timings: Sequence[Timing]) -> None:
            finished(timings, self.store.merge(self.key, settled(timings, before)))

        soft = self.key.environment.soft()
        return search(configs, devices, budget_s=budget_s, soft=soft, finished=store, **options)
