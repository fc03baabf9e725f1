"""The tuned kernel, which launches the fastest known configuration.

The first launch for a key looks its record up. Candidates that the record lacks are built, measured and recorded. Every
later launch is a dictionary lookup. See docs/tuning.md.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from warp_tiles._warp import is_enabled
from warp_tiles.errors import SettingError, TuningError
from warp_tiles.launch.recorded import RecordingTarget
from warp_tiles.settings import Settings, current, on_change, project_file
from warp_tiles.tuning.arguments import checked_key, hashable, in_order, namespace, refuse_unknown
from warp_tiles.tuning.kernel_choice import Counters, KernelChooser, LaunchRequest
from warp_tiles.tuning.kernel_records import Dim, KernelRecords, Store
from warp_tiles.tuning.key import TuningKey
from warp_tiles.tuning.maker import Maker, Measurement, TunedLaunch
from warp_tiles.tuning.record import Config, Record, Timing, identity
from warp_tiles.tuning.space import Strategy, checked_configs

_RETRY_AFTER_S = 1.0  # after a launch of the default because another process searches


_instances: weakref.WeakSet[TunedKernel] = weakref.WeakSet()


def _settings_changed() -> None:
    for tuned in tuple(_instances):
        tuned.forget()


class TunedKernel:
    """A tuned kernel, as :func:`autotune` returns it. Thread-safe.

    Attributes:
        maker: The function that makes the kernels.
    """

    def __init__(
        self,
        maker: Maker,
        key: Any,
        dim: Dim,
        strategy: Strategy,
        measurement: Measurement,
        *,
        restore: tuple[str, ...] | None = None,
        wait: bool = True,
        store: Callable[[Settings], Store] | None = None,
    ) -> None:
        self.maker = maker.function
        self._maker = maker
        self._key = checked_key(key)
        self._dim = dim
        self._measurement = measurement
        self._restore = restore
        self._records = KernelRecords(maker, measurement, self._key, dim, strategy, store)
        self._chooser = KernelChooser(maker, self._records, dim, strategy, measurement, restore, wait)
        self._names: tuple[str, ...] = ()
        self._positions: tuple[int, ...] = ()
        self._chosen: dict[Any, TunedLaunch] = {}
        self._retry_at: dict[Any, float] = {}
        self._lock = threading.RLock()
        self._wp: Any = None
        self.__doc__ = self.maker.__doc__
        self.__name__ = self.maker.__name__
        with contextlib.suppress(SettingError):  # parsed here, so that the first launch only checks for changes
            project_file.find()
        on_change(_settings_changed)
        _instances.add(self)

    def __repr__(self) -> str:
        return repr(self._records)

    @property
    def counters(self) -> Counters:
        """Counts of this kernel's operations in this process."""
        return self._chooser.counters

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
            inputs: As in ``wp.launch``.
            outputs: As in ``wp.launch``. A search takes these arrays as those that the kernel writes, unless
                ``restore`` names them.
            device: As in ``wp.launch``, like the next three.
            stream: See ``wp.launch``.
            max_blocks: See ``wp.launch``.
            record_tape: See ``wp.launch``.
            named: Arguments by name, in place of the lists or after them.

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
            choice_key = self._choice_key(values, device)
            chosen = self._chosen.get(choice_key)
        except (TypeError, IndexError, AttributeError, TuningError):  # too few arguments, or an invalid key value
            choice_key, chosen = None, None
        if chosen is None:
            written = frozenset(self._names[len(inputs) : len(inputs) + len(outputs)]) if outputs else None
            chosen = self._choose(choice_key, values, device, written, stream)
        dim = self._dim(chosen.config, SimpleNamespace(**dict(zip(self._names, values))))
        launch = wp.launch_tiled if self._measurement.tiled else wp.launch
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

    def recording_target(self, args: Any, device: Any = None, outputs: int = 0) -> RecordingTarget:
        """Returns kernel, dimensions and block for these arguments, for ``warp_tiles.record``. It may search first.

        Args:
            args: Arguments by name, or in order.
            device: Warp's device.
            outputs: Number of outputs, which are the last arguments.
        """
        wp = self._wp or self._prepare()
        device = wp.get_device(device)
        values = self._listed(args)
        written = frozenset(self._names[len(values) - outputs :]) if outputs else None
        kernel, dim, block_dim = self.launch_of(self._choose(None, values, device, written, None).config, values)
        return RecordingTarget(kernel=kernel, dim=dim, block_dim=block_dim, tiled=self._measurement.tiled)

    def launch_of(self, config: Config, args: Any) -> tuple[Any, Any, int | None]:
        """Returns kernel, dimensions and threads per block of a configuration, for a manual launch.

        Args:
            config: Any configuration that the maker accepts.
            args: Arguments by name, or in order.

        Raises:
            TuningError: The maker refuses the configuration.
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
            TuningError: A value that the maker refers to, or an argument that the key names, has no stable text.
        """
        return self._records.key_of(self._listed(args), device, current())

    def record(self, args: Any, device: Any = None) -> Record | None:
        """The record for these arguments, or None. Nothing is measured."""
        now = current()
        return self._records.open(now).load(self._records.key_of(self._listed(args), device, now))

    def best(self, args: Any, device: Any = None) -> Timing | None:
        """The winner among the configurations, or None. Nothing is measured."""
        found = self.record(args, device)
        return found.winner(self.configs(device)) if found is not None else None

    def tune(
        self, args: Any, device: Any = None, *, configs: Sequence[Config] | None = None, again: bool = False
    ) -> Record:
        """Measure the candidates that the record lacks, under any policy. No array of the user changes.

        Args:
            args: Arguments by name, or in order.
            device: Warp's device.
            configs: Measure only these; None for all candidates of the search.
            again: Also measure the candidates that the record has.

        Raises:
            TuningError: A configuration is not one of the kernel's, or no candidate works.
        """
        wp = self._wp or self._prepare()
        device = wp.get_device(device)
        values = self._listed(args)
        if configs is None:
            wanted = self._records.wanted(device)
        else:
            wanted = {identity(config): config for config in checked_configs(configs)}
            for config in wanted.values():
                self._maker.check(config)
        request = LaunchRequest(values, device)
        try:
            return self._chooser.tune(request, wanted, current(), force=configs is not None, again=again)
        finally:
            with self._lock:
                self.forget()

    def configs(self, device: Any = None) -> tuple[Config, ...]:
        """The configurations; of a space, those that fulfil its constraints on a device."""
        return self._records.configs(device)

    def forget(self) -> None:
        """Look records up again at the next launch."""
        self._chosen = {}
        self._retry_at = {}

    # ---- the choice of a launch

    def _prepare(self) -> Any:
        """Read the names of the kernel's arguments. Returns Warp."""
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

    def _choice_key(self, values: Sequence[Any], device: Any) -> Any:
        """Returns the values that decide the choice within this process. A later launch only hashes them."""
        if callable(self._key):
            found = self._key(SimpleNamespace(**dict(zip(self._names, values))))
            return device.alias, is_enabled(), tuple(sorted((name, hashable(value)) for name, value in found.items()))
        parts: list[Any] = [device.alias, is_enabled()]
        for position in self._positions:
            value = values[position]
            shape = getattr(value, "shape", None)
            if shape:  # NumPy scalars have an empty one
                parts.append((shape, value.dtype, value.strides))
            else:
                parts.append(hashable(value))
        return tuple(parts)

    def _choose(
        self, choice_key: Any, values: Sequence[Any], device: Any, written: frozenset[str] | None, stream: Any
    ) -> TunedLaunch:
        values = self._listed(values)
        with self._lock:
            if choice_key is not None:
                known = self._chosen.get(choice_key)
                if known is not None:
                    return known
                if time.monotonic() < self._retry_at.get(choice_key, 0.0):
                    return self._maker.launch_of(self._maker.default)
            with self._wp.ScopedStream(stream) if stream is not None else contextlib.nullcontext():
                config = self._chooser.choose(LaunchRequest(values, device, written))
            chosen = self._maker.launch_of(config if config is not None else self._maker.default)
            if choice_key is not None:
                if config is not None:
                    self._chosen[choice_key] = chosen
                else:
                    self._retry_at[choice_key] = time.monotonic() + _RETRY_AFTER_S
            return chosen

    def _listed(self, args: Any) -> list[Any]:
        if self._wp is None:
            self._prepare()
        if isinstance(args, Mapping):
            return in_order(self._names, (), (), args)
        if isinstance(args, SimpleNamespace):
            return in_order(self._names, (), (), vars(args))
        return in_order(self._names, tuple(args), (), {})
