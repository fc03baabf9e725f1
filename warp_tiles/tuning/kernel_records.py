"""Keys and records of a tuned kernel, and the configurations that a search would measure."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from warp_tiles._warp import is_enabled
from warp_tiles.errors import TuningError
from warp_tiles.settings import Settings
from warp_tiles.tuning.arguments import Key, key_values
from warp_tiles.tuning.environment import environment_of, limits_of
from warp_tiles.tuning.key import TuningKey
from warp_tiles.tuning.maker import Maker, Measurement
from warp_tiles.tuning.record import Config, Record, Timing, identity
from warp_tiles.tuning.source import source_digest
from warp_tiles.tuning.space import Strategy, modules_first
from warp_tiles.tuning.store import open_store

log = logging.getLogger("warp_tiles")
SUBJECT = "kernel:"

Dim = Callable[[Config, SimpleNamespace], Any]


class Store(Protocol):
    """A store of tuning records."""

    def load(self, key: TuningKey) -> Record | None:
        """The record of a key."""

    def merge(self, key: TuningKey, timings: Sequence[Timing]) -> Record:
        """Add timings to the record of a key."""

    def single_flight(self, key: TuningKey, timeout_s: float | None = None) -> AbstractContextManager[bool]:
        """Enter a block with True if this thread may search."""


class KernelRecords:
    """Keys and records of one tuned kernel.

    Args:
        maker: Makes the kernels.
        measurement: Options for measuring kernels; some of them are part of the key.
        key: Names of the arguments that decide, or a function of the arguments.
        dim: Function that returns the launch dimensions; its source is part of the key.
        strategy: Selects the configurations that a search measures.
        store: Function that returns the store for given settings; None for the store that the settings name.
    """

    def __init__(
        self,
        maker: Maker,
        measurement: Measurement,
        key: Key,
        dim: Dim,
        strategy: Strategy,
        store: Callable[[Settings], Store] | None,
    ) -> None:
        self._maker = maker
        self._measurement = measurement
        self._key = key
        self._dim = dim
        self._strategy = strategy
        self._source = ""
        self._candidates: dict[str, dict[str, Config]] = {}
        self.open: Callable[[Settings], Store] = store or open_store

    def __repr__(self) -> str:
        function = self._maker.function
        return f"<tuned kernel {function.__module__}.{function.__qualname__}>"

    def key_of(self, values: Sequence[Any], device: Any, now: Settings) -> TuningKey:
        """The key of arguments, in order.

        Raises:
            TuningError: A value that the maker refers to, or an argument that the key names, has no stable text.
        """
        function = self._maker.function
        if not self._source:
            self._source = source_digest(function, self._dim)
        named = key_values(self._key, self._maker.arguments(), values)
        subject = f"{SUBJECT}{_module_name(function)}.{function.__qualname__}"
        shared = {**_build_settings(now), **self._maker.key_values(), **self._measurement.key_values()}
        return TuningKey.of(subject, named | shared, self._source, environment_of(device))

    def configs(self, device: Any) -> tuple[Config, ...]:
        """The configurations; of a space, those that fulfil its constraints on a device."""
        return self._maker.configs(limits_of(device))

    def wanted(self, device: Any) -> dict[str, Config]:
        """The configurations that a search on a device measures, by identity."""
        if device.alias not in self._candidates:
            candidates = self._strategy.candidates(self.configs(device))
            self._candidates[device.alias] = {identity(config): config for config in candidates}
        return self._candidates[device.alias]

    def pending(self, record: Record, wanted: Mapping[str, Config], now: Settings) -> tuple[Config, ...]:
        """Returns configurations without a timing, then those whose timing cannot be used now.

        A timing cannot be used if it is outdated or unfinished. The timing of a dropped candidate cannot be used if the
        candidate may have lost to one that is not wanted now.

        Args:
            record: All timings under the current key, also of configurations that are not wanted.
            wanted: Configurations by identity.
            now: The settings.
        """
        known = {timing.identity: timing for timing in record.timings}
        best, winner, soft = record.winner(), record.among(wanted).winner(), record.key.environment.soft()

        def is_known(timing: Timing | None) -> bool:
            if timing is None or timing.unfinished:
                return False
            if now.record_driver_mismatch == "retune" and dict(timing.soft or {}) != soft:
                return False
            if timing.status != "dropped":
                return True
            if best is None or winner is None:
                return False
            return best.identity in wanted or timing.median_us >= winner.median_us

        missing = [name for name in wanted if not is_known(known.get(name))]
        new = [wanted[name] for name in missing if name not in known]
        again = [wanted[name] for name in missing if name in known]
        return (*modules_first(new), *modules_first(again))

    def warn_if_stale(self, key: TuningKey, winner: Timing) -> None:
        """Log a warning if the winner was measured with another driver or Warp patch release."""
        soft = key.environment.soft()
        if dict(winner.soft or {}) != soft:
            log.warning(
                "tuning: the record of %r was measured with %s, and is used with %s (record_driver_mismatch = reuse)",
                self,
                dict(winner.soft or {}),
                soft,
            )

    def all_failed(self, record: Record, wanted: Mapping[str, Config]) -> TuningError:
        """Returns the error for a record without a winner. Its log has each configuration's reason."""
        return TuningError(
            f"no configuration of {self!r} works for {described(record.key)}",
            remedy="see the reason of each; tune(..., again=True) tries them once more",
            log="\n".join(
                f"{dict(timing.config)}: {timing.reason}" for timing in record.timings if timing.identity in wanted
            ),
        )


def described(key: TuningKey) -> str:
    """The names and values of a key, for messages."""
    return ", ".join(f"{name}={value}" for name, value in key.values)


def _build_settings(now: Settings) -> dict[str, Any]:
    """Settings outside the source that change the build."""
    import warp as wp

    return {"build.products": now.provider if is_enabled() else "warp", "build.mode": str(wp.config.mode)}


def _module_name(maker: Callable[..., Any]) -> str:
    """The name of a maker's module, the same whether its file is run or imported."""
    if maker.__module__ != "__main__":
        return maker.__module__
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return str(spec.name) if spec is not None else Path(getattr(main, "__file__", None) or "__main__").stem
