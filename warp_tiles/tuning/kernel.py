"""The tuned kernel, which launches the fastest known configuration.

The first launch for a key looks its record up. Candidates that the record lacks are built, measured and recorded. Every
later launch is a dictionary lookup. See docs/tuning.md.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import warp as wp

from warp_tiles._warp import is_enabled
from warp_tiles._warp.intercept import is_planning
from warp_tiles.errors import LockedError, SettingError, TuningError
from warp_tiles.recorded import RecordingTarget
from warp_tiles.settings import Settings, current, on_change
from warp_tiles.tuning.factory import (
    LARGEST_SPACE,
    KernelFactory,
    Limits,
    Random,
    Space,
    TunedLaunch,
    checked_configs,
    checked_key,
    hashable,
    in_order,
    key_values,
    namespace,
    refuse_unknown,
    require,
)
from warp_tiles.tuning.launches import Dim, KernelLaunches, LaunchOptions, dimensions
from warp_tiles.tuning.measure import Effort, SearchDevice
from warp_tiles.tuning.record import Config, Record, Timing, TuningKey, environment_of
from warp_tiles.tuning.search import Counters, Search, by_identity
from warp_tiles.tuning.source import source_digest
from warp_tiles.tuning.store import RecordStore, open_store
from warp_tiles.util.warn import log

Arguments = Sequence[Any] | Mapping[str, Any] | SimpleNamespace  # in order or by name
_MOST_KEYS = 4096  # whose choices are kept in the process
_RETRY_AFTER_S = 1.0  # after a launch of the default because another process searches
_NOTHING = None, 0.0

_instances: weakref.WeakSet[TunedKernel] = weakref.WeakSet()


def _settings_changed() -> None:
    for tuned in tuple(_instances):
        tuned.forget()


class TunedKernel:
    """A tuned kernel, as :func:`autotune` returns it. Thread-safe. ``__wrapped__`` makes its kernels.

    Of its methods, ``args`` are arguments of the kernel by name or in order, and ``device`` is Warp's device.
    """

    def __init__(
        self,
        factory: KernelFactory,
        key: Any,
        subset: Random,
        options: LaunchOptions,
        *,
        wait: bool = True,
        store: Callable[[Settings], RecordStore] | None = None,
    ) -> None:
        self._factory = factory
        self._key = checked_key(key)
        self._subset = subset
        self._options = options
        self._wait = wait
        self._open = store or open_store
        self._candidates: dict[str, dict[str, Config]] = {}  # by device
        self.forget()
        #: Counts of this kernel's operations in this process.
        self.counters = Counters()
        self.__wrapped__ = factory.function
        self.__doc__ = factory.function.__doc__
        self.__name__ = factory.function.__name__
        with contextlib.suppress(SettingError):  # parsed here, so that the first launch only checks for changes
            current()
        on_change(_settings_changed)
        _instances.add(self)

    def __repr__(self) -> str:
        return f"<tuned kernel {self.__wrapped__.__module__}.{self.__wrapped__.__qualname__}>"

    # ---- launching

    def launch(
        self,
        *,
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
        device: wp.DeviceLike = None,
        stream: wp.Stream | None = None,
        max_blocks: int = 0,
        record_tape: bool = True,
        **named: Any,
    ) -> None:
        """Launch the fastest known configuration; the first launch for a key may search for it.

        Args:
            inputs: As in ``wp.launch``.
            outputs: As in ``wp.launch``. A search takes these arrays as those that the kernel writes, unless
                ``restore`` names them.
            device: As in ``wp.launch``, and so are the next three.
            stream: A CUDA stream, in place of a device.
            max_blocks: The largest number of blocks; 0 for any.
            record_tape: False to keep the launch off a tape.
            named: Arguments by name, in place of the lists or after them.

        Raises:
            TuningError: An argument is missing or unknown, no candidate works, or a search is needed while a CUDA graph
                is captured.
            LockedError: The policy is ``locked``, and there is no record.
        """
        device = stream.device if stream is not None else wp.get_device(device)
        if named:
            values = in_order(self._names, inputs, outputs, named)
            given: Sequence[Any] = values
            results: Sequence[Any] = ()
        else:
            values = [*inputs, *outputs]
            given, results = inputs, outputs
        try:
            choice_key = self._choice_key(values, device)
            chosen, until = self._chosen.get(choice_key, _NOTHING)
        except (TypeError, IndexError, AttributeError, TuningError):  # too few arguments, or an invalid key value
            choice_key, (chosen, until) = None, _NOTHING
        if chosen is None or time.monotonic() > until:
            written = frozenset(self._names[len(inputs) : len(inputs) + len(outputs)]) if outputs else None
            chosen = self._launch_for(choice_key, values, device, written, stream)
        launch = wp.launch_tiled if self._options.tiled else wp.launch
        launch(
            chosen.kernel,
            dim=self._dim_of(chosen.config, values),
            inputs=given,
            outputs=results,
            device=device,
            stream=stream,
            record_tape=record_tape,
            max_blocks=max_blocks,
            block_dim=chosen.block_dim,
        )

    def recording_target(self, args: Arguments, device: wp.DeviceLike = None, outputs: int = 0) -> RecordingTarget:
        """Returns the launch of the last ``outputs`` and other arguments, for ``warp_tiles.record``. It may search."""
        values = self._listed(args)
        written = frozenset(self._names[len(values) - outputs :]) if outputs else None
        chosen = self._launch_for(None, values, wp.get_device(device), written, None)
        return RecordingTarget(*self.launch_of(chosen.config, values), tiled=self._options.tiled)

    def launch_of(self, config: Config, args: Arguments) -> tuple[wp.Kernel, int | Sequence[int], int | None]:
        """Returns kernel, dimensions and threads per block of a configuration, for a manual launch.

        Raises:
            TuningError: The factory refuses the configuration.
        """
        self._factory.check(config)
        launch = self._factory.launch_of(config)
        return launch.kernel, self._dim_of(config, self._listed(args)), launch.block_dim

    # ---- records

    def key(self, args: Arguments, device: wp.DeviceLike = None) -> TuningKey:
        """The key of these arguments.

        Raises:
            TuningError: A value that the factory refers to, or an argument that the key names, has no stable text.
        """
        return self._ask(self._listed(args), device).key

    def record(self, args: Arguments, device: wp.DeviceLike = None) -> Record | None:
        """The record for these arguments, or None. Nothing is measured."""
        search = self._ask(self._listed(args), device)
        return search.store.load(search.key)

    def best(self, args: Arguments, device: wp.DeviceLike = None) -> Timing | None:
        """The winner among the configurations, or None. Nothing is measured."""
        record = self.record(args, device)
        return record.among(by_identity(self.configs(device))).winner() if record else None

    def tune(
        self,
        args: Arguments,
        device: wp.DeviceLike = None,
        *,
        configs: Sequence[Config] | None = None,
        again: bool = False,
    ) -> Record:
        """Measure the candidates that the record lacks, under any policy. No array of the user changes.

        Args:
            configs: Measure only these; None for all candidates of the search.
            again: Also measure the candidates that the record has.

        Raises:
            TuningError: A configuration is not one of the kernel's, no candidate works, or a script is only planned.
        """
        for config in () if configs is None else checked_configs(configs):
            self._factory.check(config)
        search = self._ask(self._listed(args), device, configs=configs)
        if is_planning():
            raise TuningError(
                f"{self!r} cannot be tuned while the script is planned, because nothing is launched",
                remedy="ask warp_tiles.is_planning() before",
            )
        try:
            record, _ = search.settle(current().tune_budget_s, forced=configs is not None or again, again=again)
        finally:
            self.forget()
        if search.winner(record) is None:
            raise self._all_failed(search, record)
        return record

    def configs(self, device: wp.DeviceLike = None) -> tuple[Config, ...]:
        """The configurations; of a space, those that fulfil its constraints on a device."""
        return self._factory.configs(Limits.of(device))

    def forget(self) -> None:
        """Look records up again at the next launch."""
        self._chosen: dict[Any, tuple[TunedLaunch | None, float]] = {}  # and until when it counts

    # ---- the search of a launch

    @cached_property
    def _names(self) -> tuple[str, ...]:
        wp.init()
        names = self._factory.arguments()
        refuse_unknown(() if callable(self._key) else self._key, names, "the key")
        refuse_unknown(self._options.restore or (), names, "restore")
        return names

    @cached_property
    def _positions(self) -> tuple[int, ...]:
        return tuple(self._names.index(name) for name in self._key)  # type: ignore[union-attr]

    @cached_property
    def _source(self) -> str:
        return source_digest(self.__wrapped__, self._options.dim)

    def _listed(self, args: Arguments) -> list[Any]:
        """The values of arguments, which are given by name or in order."""
        named = vars(args) if isinstance(args, SimpleNamespace) else args if isinstance(args, Mapping) else None
        return in_order(self._names, tuple(args) if named is None else (), (), named or {})

    def _dim_of(self, config: Config, values: Sequence[Any]) -> int | Sequence[int]:
        return self._options.dim(config, namespace(self._names, values))

    def _choice_key(self, values: Sequence[Any], device: Any) -> Any:
        """Returns the values that decide the choice within this process. A later launch only hashes them."""
        if callable(self._key):
            fields = self._key(namespace(self._names, values))
            return device.alias, is_enabled(), tuple(sorted((name, hashable(value)) for name, value in fields.items()))
        parts: list[Any] = [device.alias, is_enabled()]
        for position in self._positions:
            value = values[position]
            shape = getattr(value, "shape", None)
            if shape:  # NumPy scalars have an empty one
                parts.append((shape, value.dtype, value.strides))
            else:
                parts.append(hashable(value))
        return tuple(parts)

    def _ask(
        self,
        values: Sequence[Any],
        device: Any,
        written: frozenset[str] | None = None,
        configs: Sequence[Config] | None = None,
    ) -> Search:
        """The search of a launch, for the fastest of some configurations or of all candidates."""
        device, now, function = wp.get_device(device), current(), self.__wrapped__
        fields = key_values(self._key, self._names, values)
        fields |= {"build.products": now.provider if is_enabled() else "warp", "build.mode": str(wp.config.mode)}
        fields |= {} if self._factory.block_dim is None else {"launch.block_dim": self._factory.block_dim}
        fields |= self._options.key_values()
        subject = f"kernel:{_module_name(function)}.{function.__qualname__}"
        key = TuningKey.of(subject, fields, self._source, environment_of(device))
        if configs is None and device.alias not in self._candidates:
            self._candidates[device.alias] = by_identity(self._subset.candidates(self.configs(device)))
        wanted = self._candidates[device.alias] if configs is None else by_identity(configs)

        def devices(pending: Sequence[Config]) -> contextlib.AbstractContextManager[Sequence[SearchDevice]]:
            launch_of, first = self._factory.launch_of, self.configs(device)
            launches = KernelLaunches(function, self._names, launch_of, values, written, device, self._options, first)
            return launches.devices(pending)

        options, store, reuse_stale = self._options, self._open(now), now.record_driver_mismatch == "reuse"
        return Search(
            key, store, wanted, devices, reuse_stale, self.__name__, None, options.effort, options.jobs, self.counters
        )

    # ---- the choice

    def _launch_for(
        self, choice_key: Any, values: Sequence[Any], device: Any, written: frozenset[str] | None, stream: Any
    ) -> TunedLaunch:
        known = self._chosen  # forget() replaces it, also during this search
        with wp.ScopedStream(stream) if stream is not None else contextlib.nullcontext():
            config = self._choose(self._listed(values), device, written)
        chosen = self._factory.launch_of(self._factory.default if config is None else config)
        if choice_key is not None:
            if len(known) >= _MOST_KEYS:  # e.g. a key with a value that changes each time
                known.clear()
            known[choice_key] = chosen, math.inf if config is not None else time.monotonic() + _RETRY_AFTER_S
        return chosen

    def _choose(self, values: Sequence[Any], device: Any, written: frozenset[str] | None) -> Config | None:
        """Returns the configuration to launch; None for the default one, after which a later launch looks again."""
        default, now = self._factory.default, current()
        if not now.rules.records:
            return default
        search = self._ask(values, device, written)
        self.counters.lookups += 1
        record = search.record()
        winner, pending = search.winner(record), search.pending(record)
        if pending and now.policy != "locked":
            if is_planning():
                return default if winner is None else winner.config
            if 0 in dimensions(self._dim_of(default, values)):
                return None
            if not device.is_capturing:
                return self._search_or_wait(search)
        if winner is None and now.policy == "locked":
            what = f"{self!r} has no tuning record for {search.key}; {now.named('policy')} is 'locked'"
            remedy = "tune where the policy is not locked, and ship the record (record_paths)"
            raise LockedError(f"{what}, the key is {search.key.digest}", remedy)
        if winner is None and pending:
            what = f"{self!r} must be tuned for {search.key} while a graph is captured"
            raise TuningError(what, remedy="launch it once before the capture")
        if winner is None:
            raise self._all_failed(search, record)
        soft = search.key.environment.soft()
        if winner.soft != soft:
            text = "tuning: the record of %r was measured with %s, and is used with %s (record_driver_mismatch = reuse)"
            log.warning(text, self, winner.soft, soft)
        return winner.config

    def _all_failed(self, search: Search, record: Record) -> TuningError:
        """The error for a record without a winner. Its log has each configuration's reason."""
        failed = [timing for timing in record.timings if timing.identity in search.wanted]
        return TuningError(
            f"no configuration of {self!r} works for {search.key}",
            remedy="see the reason of each; tune(..., again=True) tries them once more",
            log="\n".join(f"{dict(timing.config)}: {timing.reason}" for timing in failed),
        )

    def _search_or_wait(self, search: Search) -> Config | None:
        """Returns the winner after a search, here or in another process; None if there is none yet."""
        while True:
            record, may_search = search.settle(current().tune_budget_s, wait_s=None if self._wait else 0.0)
            if may_search or not search.pending(record):
                break
            if not self._wait or search.store.searches(search.key):  # a reference may launch this kernel
                return None
            if search.winner(record) is not None:  # the other search was cut short
                break
        if (winner := search.winner(record)) is not None:
            return winner.config
        if not search.wanted.keys() <= {timing.identity for timing in record.timings}:
            log.warning("tuning %r: the budget of %g s ended before a measurement", self, current().tune_budget_s)
            return None
        raise self._all_failed(search, record)


def autotune(
    configs: Sequence[Config] | None = None,
    *,
    key: Sequence[str] | str | Callable[[SimpleNamespace], Mapping[str, Any]],
    dim: Dim,
    space: Space | None = None,
    search: Literal["all"] | Random = "all",
    default: int | Config | None = None,
    tiled: bool = False,
    block_dim: int | None = None,
    restore: Sequence[str] | None = None,
    reference: Callable[..., Any] | str | None = None,
    rtol: float = 1e-2,
    atol: float = 1e-3,
    flush_l2: bool = False,
    wait: bool = True,
    jobs: int = 0,
    effort: Effort | None = None,
    devices: wp.DeviceLike | Sequence[wp.DeviceLike] = (),
    store: Callable[[Settings], RecordStore] | None = None,
) -> Callable[[Callable[..., Any]], TunedKernel]:
    """Turn a function that makes a kernel from a configuration into a tuned kernel.

        @warp_tiles.autotune(configs, key=("a", "b"), tiled=True,
                             dim=lambda c, args: (args.c.shape[0] // c["tile_m"], args.c.shape[1] // c["tile_n"]))
        def gemm(tile_m, tile_n):
            @wp.kernel(module="unique")
            def kernel(a: wp.array2d(dtype=float), b: wp.array2d(dtype=float), c: wp.array2d(dtype=float)):
                ...
            return kernel

        gemm.launch(inputs=[a, b], outputs=[c])

    Args:
        configs: Dictionaries of arguments for the function. ``block_dim`` also goes to the launch. A name that begins
            with ``warp_tiles_`` and that the function does not take is an option of the kernel's Warp module.
        key: Names of the kernel arguments that decide which configuration is best. An array counts by shape, dtype and
            layout, a scalar by value. Or a function of the arguments that returns values by name.
        dim: Function of a configuration and of the arguments, as attributes, that returns the launch dimensions.
        space: Combinations of values, in place of ``configs``.
        search: The configurations to measure: ``"all"`` or ``Random(n)``.
        default: The configuration, or its index, to launch where tuning is not allowed.
        tiled: Launch as ``wp.launch_tiled`` does.
        block_dim: Threads per block for configurations without ``block_dim``.
        restore: Names of the arrays that the kernel writes. They are restored before each run. None stands for the
            outputs of the launch, or for all arrays if it has no outputs. A search works on copies and never changes
            your arrays. If names are given, only those arrays are copied, and the kernel must not write to any other.
        reference: The check of results. ``"first"`` compares with the first configuration that works. A function
            gets the arguments and returns the expected results. A configuration with a wrong result has failed.
        rtol: Relative tolerance of results, as in ``numpy.allclose``; finite and not negative.
        atol: Absolute tolerance, likewise.
        flush_l2: Measure with inputs that are not in the L2 cache of the GPU.
        wait: True waits while another thread or process tunes the same key. False launches the default meanwhile.
        jobs: Number of parallel builds; 0 for one per core.
        effort: Amount of measurement; None for the default.
        devices: Further GPUs that share the work, one or a list. GPUs unlike the launch's own are left out.
        store: Function that returns the record store for given settings; None for the store that the settings name.

    Raises:
        TuningError: An argument has a wrong type or value, there are no configurations, one occurs twice, or the
            function cannot be called with one.
    """
    if (configs is None) == (space is None):
        raise TuningError("autotune() takes configs or space", remedy="give one of them")
    is_reference = reference is None or reference == "first" or callable(reference)
    restored = None if restore is None else _as_tuple(restore)
    are_names = all(isinstance(name, str) for name in restored or ())
    flags = {"tiled": tiled, "flush_l2": flush_l2, "wait": wait}
    tolerances = {"rtol": rtol, "atol": atol}
    for name, value, holds, remedy in (
        ("configs", configs, configs is None or isinstance(configs, Iterable), "give a list of dictionaries"),
        ("space", space, space is None or isinstance(space, Space), "give a Space, or dictionaries as configs"),
        ("dim", dim, callable(dim), "give a function of a configuration and the arguments"),
        ("reference", reference, is_reference, 'give a function, "first" or None'),
        ("effort", effort, effort is None or isinstance(effort, Effort), "give an Effort or None"),
        ("jobs", jobs, type(jobs) is int and jobs >= 0, "give a whole number of builds, 0 for one per core"),
        *((name, value, isinstance(value, bool), "give True or False") for name, value in flags.items()),
        *((name, value, _is_tolerance(value), "give a finite number from 0") for name, value in tolerances.items()),
        ("search", search, search == "all" or isinstance(search, Random), 'valid are "all" and Random(n, seed)'),
        ("restore", restore, are_names, "name arrays that the kernel takes"),
    ):
        require(holds, name, value, remedy)
    chosen: tuple[Config, ...] | Space = space if space is not None else checked_configs(configs or ())
    further = () if devices is None else _as_tuple(devices)
    options = LaunchOptions(
        dim, tiled, reference, float(rtol), float(atol), flush_l2, jobs, effort or Effort(), further, restored
    )
    subset = search if isinstance(search, Random) else Random(LARGEST_SPACE)

    def decorate(function: Callable[..., Any]) -> TunedKernel:
        factory = KernelFactory(function, chosen, default, block_dim, needs_block_dim=tiled)
        return TunedKernel(factory, key, subset, options, wait=wait, store=store)

    return decorate


def _is_tolerance(value: Any) -> bool:
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf
    except OverflowError:
        return False


def _as_tuple(values: Any) -> tuple[Any, ...]:
    """Returns the values as a tuple; a single value or a string makes a tuple of one."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)


def _module_name(function: Callable[..., Any]) -> str:
    """The name of a function's module, the same whether its file is run or imported."""
    if function.__module__ != "__main__":
        return function.__module__
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return str(spec.name) if spec is not None else Path(getattr(main, "__file__", None) or "__main__").stem
