"""A function that makes a kernel from a configuration, as one kernel that is tuned.

At the first launch for a key its record is looked up; what it lacks is built, measured and remembered. Every later
launch is a look into a dictionary. See docs/tuning_kernels.md.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from warp_tiles import settings
from warp_tiles.errors import LockedError, TuningError
from warp_tiles.tuning.arguments import checked_key, in_order, key_values, namespace, refuse_unknown
from warp_tiles.tuning.key import TuningKey
from warp_tiles.tuning.making import Maker, Measurement, TunedLaunch
from warp_tiles.tuning.record import Config, Record, Timing, identity
from warp_tiles.tuning.space import Strategy, checked_configs

log = logging.getLogger("warp_tiles")
SUBJECT = "kernel:"
UNTUNED = ("off", "scalar", "fast")  # policies under which nothing is looked up and nothing measured
_LOOK_AGAIN_S = 1.0  # after taking the default because another process searches

Dim = Callable[[Config, SimpleNamespace], Any]


class Store(Protocol):
    """Where records are kept."""

    def load(self, key: TuningKey) -> Record | None:
        """The record of a key."""

    def merge(self, key: TuningKey, timings: Sequence[Timing]) -> Record:
        """Add timings."""

    def single_flight(self, key: TuningKey, timeout_s: float | None = None) -> AbstractContextManager[bool]:
        """Whether this process may search."""


@dataclass
class Counters:
    """What a tuned kernel did in this process.

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


_every: weakref.WeakSet[TunedKernel] = weakref.WeakSet()


def _settings_changed() -> None:
    for tuned in tuple(_every):
        tuned.forget()


class TunedKernel:
    """What :func:`autotune` makes of a function. Safe for threads.

    Attributes:
        maker: The function.
        counters: What was done in this process.
    """

    def __init__(
        self,
        maker: Maker,
        key: Any,
        dim: Dim,
        strategy: Strategy,
        how: Measurement,
        *,
        restore: tuple[str, ...] | None = None,
        wait: bool = True,
        store: Callable[[settings.Settings], Store] | None = None,
    ) -> None:
        self.maker = maker.function
        self.counters = Counters()
        self._maker = maker
        self._key = checked_key(key)
        self._dim = dim
        self._strategy = strategy
        self._how = how
        self._restore = restore
        self._wait = wait
        self._open_store = store or _user_store
        self._names: tuple[str, ...] = ()
        self._positions: tuple[int, ...] = ()
        self._source = ""
        self._chosen: dict[Any, TunedLaunch] = {}
        self._waiting: dict[Any, float] = {}
        self._candidates: dict[str, dict[str, Config]] = {}
        self._lock = threading.RLock()
        self._wp: Any = None
        self.__doc__ = self.maker.__doc__
        self.__name__ = self.maker.__name__
        settings.on_change(_settings_changed)
        _every.add(self)

    def __repr__(self) -> str:
        return f"<tuned kernel {self.maker.__module__}.{self.maker.__qualname__}>"

    # ---- launching

    def launch(
        self,
        *,
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
        device: Any = None,
        stream: Any = None,
        max_blocks: int = 0,
        record_tape: bool = True,
        **named: Any,
    ) -> None:
        """Launch the fastest known configuration; the first launch for a key may search for it.

        Args:
            inputs, outputs: As of ``wp.launch``. Arrays among the outputs are those that the kernel writes, unless
                ``restore`` names them.
            device, stream, max_blocks, record_tape: As of ``wp.launch``.
            named: Arguments by name, in place of the lists or behind them.

        Raises:
            TuningError: An argument is missing or unknown, no candidate works, or a search is needed while a CUDA graph
                is captured.
            LockedError: The policy is ``locked``, and there is no record.
        """
        wp = self._wp or self._prepare()
        device = stream.device if stream is not None else wp.get_device(device)
        if named:
            values = in_order(self._names, inputs, outputs, named)
            given: Sequence[Any] = values
            results: Sequence[Any] = ()
        else:
            values = [*inputs, *outputs]
            given, results = inputs, outputs
        try:
            asked = self._asked(values, device)
            chosen = self._chosen.get(asked)
        except (TypeError, IndexError, AttributeError):  # not hashable, too few, or no mapping
            asked, chosen = None, None
        if chosen is None:
            written = frozenset(self._names[len(inputs) : len(inputs) + len(outputs)]) if outputs else None
            chosen = self._choose(asked, values, device, written, stream)
        dim = self._dim(chosen.config, SimpleNamespace(**dict(zip(self._names, values))))
        launch = wp.launch_tiled if self._how.tiled else wp.launch
        launch(
            chosen.kernel,
            dim=dim,
            inputs=given,
            outputs=results,
            device=device,
            stream=stream,
            record_tape=record_tape,
            max_blocks=max_blocks,
            block_dim=chosen.block_dim,
        )

    def recording_target(self, args: Any, device: Any = None) -> Any:
        """Kernel, dimensions and block of these arguments, for ``warp_tiles.record``; it may search first.

        Args:
            args: Arguments by name, or in order.
            device: Warp's device.
        """
        wp = self._wp or self._prepare()
        device = wp.get_device(device)
        values = self._listed(args)
        kernel, dim, block_dim = self.launch_of(self._choose(None, values, device, None, None).config, values)
        target = import_module("warp_tiles.recorded").RecordingTarget
        return target(kernel=kernel, dim=dim, block_dim=block_dim, tiled=self._how.tiled)

    def launch_of(self, config: Config, args: Any) -> tuple[Any, Any, int | None]:
        """Kernel, dimensions and threads per block of a configuration, to launch it by hand.

        Args:
            config: Any that the maker accepts.
            args: Arguments by name, or in order.

        Raises:
            TuningError: The maker refuses it.
        """
        self._maker.check(config)
        values = self._listed(args)
        launch = self._maker.launch_of(config)
        return launch.kernel, self._dim(config, namespace(self._names, values)), launch.block_dim

    # ---- records

    def key(self, args: Any, device: Any = None) -> TuningKey:
        """The key of these arguments.

        Args:
            args: Arguments by name, or in order.
            device: Warp's device.

        Raises:
            TuningError: Something that the maker refers to, or an argument that the key names, has no stable text.
        """
        return self._key_of(self._listed(args), device, settings.current())

    def _key_of(self, values: Sequence[Any], device: Any, now: settings.Settings) -> TuningKey:
        from warp_tiles.tuning.environment import environment_of
        from warp_tiles.tuning.source import source_digest

        if not self._source:
            self._source = source_digest(self.maker, self._dim)
        named = key_values(self._key, self._names, values)
        subject = f"{SUBJECT}{_module_name(self.maker)}.{self.maker.__qualname__}"
        return TuningKey.of(subject, named | self._built_with(now), self._source, environment_of(device))

    def record(self, args: Any, device: Any = None) -> Record | None:
        """Everything that is known for these arguments; nothing is measured."""
        now = settings.current()
        return self._open_store(now).load(self._key_of(self._listed(args), device, now))

    def best(self, args: Any, device: Any = None) -> Timing | None:
        """The winner among the configurations, if one is known; nothing is measured."""
        found = self.record(args, device)
        return found.winner(self.configs(device)) if found is not None else None

    def tune(
        self, args: Any, device: Any = None, *, configs: Sequence[Config] | None = None, again: bool = False
    ) -> Record:
        """Measure what the record lacks, whatever the policy says; nothing is launched, no array changes.

        Args:
            args: Arguments by name, or in order.
            device: Warp's device.
            configs: Only these; None for what the search looks at.
            again: Measure also what the record has.

        Raises:
            TuningError: A configuration is not one of the kernel's, or no candidate works.
        """
        wp = self._wp or self._prepare()
        device = wp.get_device(device)
        values = self._listed(args)
        wanted: Mapping[str, Config] = self._wanted(device)
        if configs is not None:
            wanted = {identity(config): config for config in checked_configs(configs)}
            for config in wanted.values():
                self._maker.check(config)
        now = settings.current()
        key, store = self._key_of(values, device, now), self._open_store(now)
        with store.single_flight(key) as may_search:
            record = _relevant(store.load(key), key, wanted)
            pending = tuple(wanted.values()) if again else self._pending(record, wanted, now)
            if pending and (may_search or configs is not None or again):
                self._search(store, key, pending, values, device, None, now)
        with self._lock:
            self.forget()
        found = store.load(key) or Record(key)
        if _relevant(found, key, wanted).winner() is None:
            raise _all_failed(self, _relevant(found, key, wanted))
        return found

    def configs(self, device: Any = None) -> tuple[Config, ...]:
        """The configurations, of a space those that fulfil its constraints on a device."""
        from warp_tiles.tuning.environment import limits_of

        return self._maker.configs(limits_of(device))

    def forget(self) -> None:
        """Look records up again at the next launch."""
        self._chosen = {}
        self._waiting = {}

    # ---- choosing

    def _prepare(self) -> Any:
        """Warp, and the names of the kernel's arguments."""
        import warp as wp

        with self._lock:
            wp.init()
            self._names = self._maker.arguments()
            if not callable(self._key):
                refuse_unknown(self._key, self._names, "the key")
                self._positions = tuple(self._names.index(name) for name in self._key)
            if self._restore is not None:
                refuse_unknown(self._restore, self._names, "restore")
            self._wp = wp
        return wp

    def _asked(self, values: Sequence[Any], device: Any) -> Any:
        """What decides about the choice within this process; hashing it is all that a later launch does."""
        if callable(self._key):
            found = self._key(SimpleNamespace(**dict(zip(self._names, values))))
            return device.alias, tuple(sorted(found.items()))
        parts: list[Any] = [device.alias]
        for position in self._positions:
            value = values[position]
            try:
                parts.append((value.shape, value.dtype, value.strides))
            except AttributeError:
                parts.append((type(value), value))
        return tuple(parts)

    def _choose(
        self, asked: Any, values: Sequence[Any], device: Any, written: frozenset[str] | None, stream: Any
    ) -> TunedLaunch:
        values = self._listed(values)
        with self._lock:
            if asked is not None:
                known = self._chosen.get(asked)
                if known is not None:
                    return known
                if time.monotonic() < self._waiting.get(asked, 0.0):
                    return self._maker.launch_of(self._maker.default)
            with self._wp.ScopedStream(stream) if stream is not None else contextlib.nullcontext():
                config = self._resolve(values, device, written)
            chosen = self._maker.launch_of(config if config is not None else self._maker.default)
            if asked is not None:
                if config is not None:
                    self._chosen[asked] = chosen
                else:
                    self._waiting[asked] = time.monotonic() + _LOOK_AGAIN_S
            return chosen

    def _resolve(self, values: Sequence[Any], device: Any, written: frozenset[str] | None) -> Config | None:
        """The configuration to launch; None for the default one until another process has finished its search."""
        now = settings.current()
        if now.policy in UNTUNED:
            return self._maker.default
        key, store = self._key_of(values, device, now), self._open_store(now)
        self.counters.lookups += 1
        wanted = self._wanted(device)
        record = _relevant(store.load(key), key, wanted)
        winner = record.winner()
        if now.policy == "locked":
            if winner is None:
                raise LockedError(
                    f"{self!r} has no tuning record for {_named(key)}",
                    remedy="tune where the policy is not locked, and ship the record (record_paths)",
                )
            return winner.config
        pending = self._pending(record, wanted, now)
        if not pending:
            if winner is None:
                raise _all_failed(self, record)
            self._say_if_stale(key, winner)
            return winner.config
        if _launches_nothing(self._dim(self._maker.default, namespace(self._names, values))):
            return None
        if device.is_capturing:
            if winner is None:
                raise TuningError(
                    f"{self!r} must be tuned for {_named(key)} while a graph is captured",
                    remedy="launch it once before the capture",
                )
            return winner.config
        return self._tuned(store, key, wanted, values, device, written, now)

    def _tuned(
        self,
        store: Store,
        key: TuningKey,
        wanted: Mapping[str, Config],
        values: Sequence[Any],
        device: Any,
        written: frozenset[str] | None,
        now: settings.Settings,
    ) -> Config | None:
        """The winner after a search, here or in another process; None if another one still searches."""
        while True:
            with store.single_flight(key, None if self._wait else 0.0) as may_search:
                record = _relevant(store.load(key), key, wanted)
                pending = self._pending(record, wanted, now)
                if may_search and pending:
                    self._search(store, key, pending, values, device, written, now)
                    record = _relevant(store.load(key), key, wanted)
                    pending = ()
            if may_search or not pending:
                break
            if not self._wait:
                return None
        winner = record.winner()
        if winner is not None:
            return winner.config
        if len(record.timings) < len(wanted):  # the budget ended before anything was measured
            log.warning("tuning %r: the budget of %g s ended before a measurement", self, now.tune_budget_s)
            return None
        raise _all_failed(self, record)

    def _wanted(self, device: Any) -> dict[str, Config]:
        """What a search on a device looks at, by identity."""
        if device.alias not in self._candidates:
            candidates = self._strategy.candidates(self.configs(device))
            self._candidates[device.alias] = {identity(config): config for config in candidates}
        return self._candidates[device.alias]

    def _pending(self, record: Record, wanted: Mapping[str, Config], now: settings.Settings) -> tuple[Config, ...]:
        """What has no timing, an outdated one, or was given up for one that is not wanted now."""
        known = {timing.identity: timing for timing in record.timings}
        winner, soft = record.winner(), record.key.environment.soft()

        def is_known(timing: Timing | None) -> bool:
            if timing is None or (now.stale_records == "retune" and dict(timing.soft or {}) != soft):
                return False
            return timing.status != "dropped" or (winner is not None and timing.median_us >= winner.median_us)

        return tuple(config for name, config in wanted.items() if not is_known(known.get(name)))

    def _say_if_stale(self, key: TuningKey, winner: Timing) -> None:
        soft = key.environment.soft()
        if dict(winner.soft or {}) != soft:
            log.warning(
                "tuning: the record of %r was measured with %s, here is %s; it is used (stale_records = reuse)",
                self,
                dict(winner.soft or {}),
                soft,
            )

    def _search(
        self,
        store: Store,
        key: TuningKey,
        pending: Sequence[Config],
        values: Sequence[Any],
        device: Any,
        written: frozenset[str] | None,
        now: settings.Settings,
    ) -> None:
        from warp_tiles.tuning.kernel_search import search_kernels

        if self._restore is not None:
            written = frozenset(self._restore)
        self.counters.searches += 1

        def finished(timings: Sequence[Timing]) -> None:
            store.merge(key, timings)

        found = search_kernels(
            self._maker,
            pending,
            values,
            written,
            device,
            dim=self._dim,
            how=self._how,
            strategy=self._strategy,
            budget_s=now.tune_budget_s,
            soft=key.environment.soft(),
            finished=finished,
            first=self.configs(device),
        )
        self.counters.builds += found.builds
        self.counters.measurements += found.measured
        self.counters.build_s += found.build_s
        self.counters.measure_s += found.measure_s

    def _listed(self, args: Any) -> list[Any]:
        if self._wp is None:
            self._prepare()
        if isinstance(args, Mapping):
            return in_order(self._names, (), (), args)
        if isinstance(args, SimpleNamespace):
            return in_order(self._names, (), (), vars(args))
        return in_order(self._names, tuple(args), (), {})

    def _built_with(self, now: settings.Settings) -> dict[str, Any]:
        """What changes builds or measurements and is neither in the source nor in a configuration."""
        from warp_tiles.api import is_enabled

        return {
            "build.products": now.provider if is_enabled() else "warp",
            "build.mode": str(self._wp.config.mode),
            **self._maker.key_values(),
            **self._how.key_values(),
        }


def _user_store(now: settings.Settings) -> Store:
    store: Store = import_module("warp_tiles.tuning.store").open_store(now)
    return store


def _module_name(maker: Callable[..., Any]) -> str:
    """The name of a maker's module, the same whether its file is run or imported."""
    if maker.__module__ != "__main__":
        return maker.__module__
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return str(spec.name) if spec is not None else Path(getattr(main, "__file__", None) or "__main__").stem


def _launches_nothing(dim: Any) -> bool:
    return 0 in (tuple(dim) if isinstance(dim, Sequence) else (dim,))


def _named(key: TuningKey) -> str:
    return ", ".join(f"{name}={value}" for name, value in key.values)


def _relevant(record: Record | None, key: TuningKey, wanted: Mapping[str, Config]) -> Record:
    """What a record knows of configurations, under the key of here and now."""
    known = record.timings if record is not None else ()
    return Record(key, tuple(timing for timing in known if timing.identity in wanted))


def _all_failed(tuned: TunedKernel, record: Record) -> TuningError:
    return TuningError(
        f"no configuration of {tuned!r} works for {_named(record.key)}",
        remedy="see each one's reason; tune(..., again=True) tries them once more",
        log="\n".join(f"{dict(timing.config)}: {timing.reason}" for timing in record.timings),
    )
