"""The launches of a search: kernels on copies of their arguments, checked and restored, on one or several devices."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import warp as wp

from warp_tiles._warp.internals import scalar_and_shape, without_tape
from warp_tiles._warp.launch import check_arguments, own_gradient, pack_launch
from warp_tiles.errors import RecordingError, ToolchainError, TuningError, suppressed, unless_signalled
from warp_tiles.tuning.factory import TunedLaunch, is_array, is_struct, namespace
from warp_tiles.tuning.measure import Candidate, Effort, SearchDevice, clock_for, describe_error, is_transient
from warp_tiles.tuning.record import Config, alike
from warp_tiles.util.threads import held
from warp_tiles.util.warn import log

Dim = Callable[[Config, SimpleNamespace], int | Sequence[int]]

_SEED = 4


@dataclass(eq=False)
class _Copy:
    """An array of the user, the values to restore before each run, and the array that launches get."""

    name: str
    original: Any  # kept alive, because its id is used
    source: Any
    copy: Any
    is_restored: bool


@dataclass(frozen=True)
class LaunchOptions:
    """How candidates are launched and measured; see :func:`warp_tiles.autotune`.

    Attributes:
        restore: Names of the only arrays that launches write; None if others may be written too.
        is_planned: True if the values of the arguments are not those of a run. ``atol`` is a share of the largest
            element of an array then.
    """

    dim: Dim
    tiled: bool = False
    reference: Any = None
    rtol: float = 1e-2
    atol: float = 1e-3
    flush_l2: bool = False
    jobs: int = 0
    effort: Effort = field(default_factory=Effort)
    devices: tuple[Any, ...] = ()
    restore: tuple[str, ...] | None = None
    adjoint: bool = False
    is_planned: bool = False

    def key_values(self) -> dict[str, Any]:
        """Options that differ from the defaults and affect timings or failures."""
        values: dict[str, Any] = {f"measure.{name}": True for name in ("tiled", "flush_l2") if getattr(self, name)}
        if self.reference is not None:
            kind = "first" if self.reference == "first" else "function"
            values["measure.reference"] = f"{kind}, rtol {self.rtol:g}, atol {self.atol:g}"
        return values


@dataclass(frozen=True)
class KernelLaunches:
    """The launches of a search. No array of the user changes.

    Attributes:
        written: Names of arrays that launches write; None if they are not known.
        device: Warp's device; those of the options that are like it share the work.
        first: With ``reference="first"``, the first of these configurations that works gives the expected results.
    """

    function: Callable[..., Any]
    names: Sequence[str]
    launch_of: Callable[[Config], TunedLaunch]
    values: Sequence[Any]
    written: frozenset[str] | None
    device: Any
    options: LaunchOptions
    first: Sequence[Config]

    @contextlib.contextmanager
    def devices(self, configs: Sequence[Config]) -> Iterator[list[SearchDevice]]:
        """Enter a block with the devices of a search for configurations.

        Raises TuningError if the kernels do not accept an argument, the reference does not fit, or an argument cannot
        be copied; ToolchainError if a device has not enough memory to measure.
        """
        self._require_arguments(configs)
        with without_tape():
            spaces = [Workspace(self, device) for device in _devices(self.device, self.options.devices)]
            reference = spaces[0].reference()
            yield [space.search_device(reference) for space in spaces]

    def _require_arguments(self, configs: Sequence[Config]) -> None:
        """Raise the first error if no kernel accepts the arguments. A search would record that each one has failed."""
        refused: RecordingError | None = None
        for config in configs:
            with contextlib.suppress(TuningError):  # the search records why
                kernel = self.launch_of(config).kernel
                try:
                    check_arguments(kernel, self.values, self.device)
                except RecordingError as error:
                    refused = refused or error
                else:
                    return
        if refused is not None:
            message = f"{self.function.__qualname__}: {refused.message}"
            raise TuningError(message, remedy=f"its arguments are {', '.join(self.names)}") from refused


class Workspace:
    """Arguments of launches on one device, with copies of the arrays that a launch may write. The user's do not change.

    Arrays that launches are known to write are restored before each run. Unless the user has named them, others are
    copied too, and those that the first launch changes are restored from then on.
    """

    def __init__(self, launches: KernelLaunches, device: Any) -> None:
        self._launches, self.options, self.device = launches, launches.options, device
        self._level = logging.INFO if self.options.is_planned else logging.WARNING
        self._copies: dict[int, _Copy] = {}  # by the id of the user's array
        self._results: dict[str, Any] = {}
        self._is_probed = False
        given = list(zip(launches.names, launches.values))
        written = launches.written if self.options.restore is None else self.options.restore
        for name, value in given:
            self._mapped(name, value, partial(self._add, written is None or name in written))
        # in the order of the arguments
        pristine, self.values = (
            [self._mapped(name, value, partial(self._known, field)) for name, value in given]
            for field in ("source", "copy")
        )
        self.arguments = namespace(launches.names, pristine)
        self.written = tuple(self._results)
        adjoint = self.options.adjoint
        self.gradients = [own_gradient(value, of=_random_gradient) for value in self.values] if adjoint else None

    def search_device(self, reference: Reference | None) -> SearchDevice:
        """A device with its memory, so that no candidate is blamed for the lack of it."""
        device = self.device
        try:
            clock = clock_for(device, flush_l2=self.options.flush_l2)
        except unless_signalled(Exception) as error:  # of any class: no candidate caused it
            raise ToolchainError(
                f"nothing can be measured on the GPU {device.alias}: {describe_error(error)}",
                remedy="free its memory, or name other GPUs with `warp-tiles tune --devices` or CUDA_VISIBLE_DEVICES",
            ) from error
        return SearchDevice(partial(self.built, reference), clock, str(device.alias), partial(is_usable, device))

    def built(self, reference: Reference | None, config: Config) -> KernelCandidate:
        launch, dim = self._launches.launch_of(config), self.options.dim(config, self.arguments)
        return KernelCandidate(launch, dimensions(dim), self, reference).build()

    def reference(self) -> Reference | None:
        """The results that the options ask to compare with."""
        options = self.options
        if options.reference is None:
            return None
        if options.reference == "first":
            sources = [partial(self._built_results, config) for config in self._launches.first]
        else:
            sources = [partial(dict, self.expected(options.reference(self.arguments)))]
        return Reference(sources, options.rtol, options.atol, options.is_planned)

    def _built_results(self, config: Config) -> dict[str, Any]:
        return self.built(None, config).results()

    def _mapped(self, name: str, value: Any, change: Callable[[str, Any], Any]) -> Any:
        """Returns an argument with other arrays. Those of a struct are named ``argument.member``."""
        if is_struct(value):
            struct = value._cls()
            for member in value._cls.vars:
                setattr(struct, member, self._mapped(f"{name}.{member}", getattr(value, member), change))
            return struct
        if isinstance(value, wp.indexedarray):
            indices = [index if index is None else wp.clone(index, device=self.device) for index in value.indices]
            return wp.indexedarray(self._mapped(name, value.data, change), indices[: value.ndim])
        return change(name, value) if is_array(value) else value

    def _known(self, field: str, name: str, value: Any) -> Any:
        return getattr(self._copies[id(value)], field)

    def _add(self, is_written: bool, name: str, value: Any) -> Any:
        """Copy an array, unless it is an input that no launch can write. Returns what has the user's values."""
        if not isinstance(value, wp.array):
            kind = type(value).__name__
            raise TuningError(f"the argument {name} is a {kind}", remedy="tune with Warp arrays; wrap it first")
        known = self._copies.get(id(value))
        if known is None or (is_written and known.copy is known.source):  # an input that is written under another name
            source = value if value.device == self.device or not value.size else self._copy_of(name, value)
            source = source if is_written else _nonzero_input(name, source, self._level)
            copy = source if self.options.restore is not None and not is_written else self._copy_of(name, source)
            known = self._copies[id(value)] = _Copy(name, value, source, copy, False)
        if is_written:
            known.is_restored = True
            self._results[name] = known.copy
        return known.source

    def _copy_of(self, name: str, array: Any) -> Any:
        try:
            return _copy_of(array, self.device)
        except unless_signalled(RuntimeError, MemoryError) as error:
            named = "name the arrays that the kernel writes, restore=[...]; the others are not copied then"
            raise TuningError(
                f"the argument {name} of shape {array.shape} cannot be copied on {self.device}: {error}",
                remedy="tune with smaller arrays" if self.options.restore is not None else named,
            ) from error

    def restore(self) -> None:
        for array in self._copies.values():
            if array.is_restored:
                wp.copy(array.copy, array.source)

    def find_written(self, run: Callable[[], None]) -> None:
        """Launch once to find arrays that the kernel writes without a declaration. They are restored from then on."""
        arrays = self._copies.values()
        undeclared = [array for array in arrays if not array.is_restored and array.copy is not array.source]
        if undeclared and not self._is_probed:
            self.restore()
            run()
            self._is_probed = True
            for array in undeclared:
                if array.copy.numpy().tobytes() != array.source.numpy().tobytes():
                    log.log(
                        self._level,
                        "tuning: launches write %s; a copy is restored before each run, and yours does not change. "
                        "Name the arrays that the kernel writes with outputs= or autotune(restore=...)",
                        array.name,
                    )
                    array.is_restored = True
                    if self.options.is_planned:  # the launch declares no outputs, and these are its results
                        self._results[array.name] = array.copy
        for array in undeclared:
            wp.copy(array.copy, array.source)

    def results(self) -> dict[str, Any]:
        """The results of the last launch as NumPy arrays by name; a struct member is ``argument.member``."""
        return {name: array.numpy().copy() for name, array in self._results.items()}

    def expected(self, given: Any) -> dict[str, Any]:
        """The results of a reference by name, given as one, in order or by name. TuningError if they do not fit."""
        written = ", ".join(self.written)
        if not isinstance(given, Mapping):
            results = list(given) if isinstance(given, (tuple, list)) else [given]
            if len(results) != len(self.written):
                raise TuningError(
                    f"the reference gives {len(results)} results for {written or 'nothing'}",
                    remedy="return one for each written array, or a dictionary by name; for a launch without outputs, "
                    "name the written arrays with autotune(restore=[...])",
                )
            given = dict(zip(self.written, results))
        if unknown := [name for name in given if name not in self.written]:
            raise TuningError(
                f"the reference gives {', '.join(unknown)}, which is not written",
                remedy=f"the written arrays are {written or 'none'}",
            )
        return {name: np.array(value.numpy() if hasattr(value, "numpy") else value) for name, value in given.items()}


def _copy_of(array: Any, device: Any) -> Any:
    """Returns a copy with the same strides, because timings depend on them."""
    if array.is_contiguous:
        return wp.clone(array, device=device, requires_grad=False)
    steps = [(extent - 1) * stride for extent, stride in zip(array.shape, array.strides)]
    first, last = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    buffer = wp.empty(last - first + wp.types.type_size_in_bytes(array.dtype), dtype=wp.uint8, device=device)
    start = buffer.ptr - first
    copy = wp.array(ptr=start, dtype=array.dtype, shape=array.shape, strides=array.strides, device=device)
    copy.warp_tiles_buffer = buffer  # keeps the memory alive as long as the array
    wp.copy(copy, array)
    return copy


def _nonzero_input(name: str, array: Any, level: int) -> Any:
    """Returns an input, or random numbers if it is all zeros. Zeros would draw less power and run faster."""
    scalar, shape = scalar_and_shape(array.dtype)
    if not array.size or scalar not in (wp.float16, wp.float32, wp.float64, getattr(wp, "bfloat16", None)):
        return array
    if np.any(array.numpy()):
        return array
    log.log(level, "tuning: the input %s is all zeros; random numbers are measured in its place", name)
    random = np.random.default_rng(_SEED).uniform(-1, 1, (*array.shape, *shape))
    copy = _copy_of(array, array.device)
    copy.assign(random.astype(np.float32) if scalar is not wp.float64 else random)
    return copy


def _random_gradient(array: Any) -> Any:
    if not array.size:
        return None
    zeros = wp.zeros(array.shape, dtype=array.dtype, device=array.device)
    return _nonzero_input("gradient", zeros, logging.DEBUG)


@dataclass(eq=False)
class Reference:
    """The expected results, with tolerances.

    Attributes:
        sources: Functions that return NumPy arrays by name. The first one that works is called, at the first
            comparison. If none does, every result passes.
        is_scaled: True if ``atol`` is a share of the largest expected element of an array.
    """

    sources: Sequence[Callable[[], Mapping[str, Any]]]
    rtol: float
    atol: float
    is_scaled: bool = False
    _expected: Mapping[str, Any] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _first(self) -> Mapping[str, Any]:
        for source in self.sources:
            with suppressed(Exception):  # the search records why
                return source()
        return {}

    def check(self, results: Mapping[str, Any]) -> None:
        """Raise TuningError with the name and the largest difference of a result outside the tolerances."""
        with self._lock:
            if self._expected is None:
                self._expected = self._first()
        for name, expected in self._expected.items():
            actual = np.asarray(results[name], dtype=np.float64)
            wanted = np.asarray(expected, dtype=np.float64)
            if actual.shape != wanted.shape:
                raise TuningError(f"wrong result: {name} has the shape {actual.shape}, the reference {wanted.shape}")
            atol = self.atol
            if self.is_scaled and wanted.size:
                atol *= float(np.max(np.abs(np.where(np.isfinite(wanted), wanted, 0.0))))
            if not np.allclose(actual, wanted, rtol=self.rtol, atol=atol, equal_nan=True):
                worst = f"{np.nanmax(np.abs(actual - wanted)):.3g}"
                raise TuningError(f"wrong result: {name} differs by up to {worst} (rtol {self.rtol:g}, atol {atol:g})")


def dimensions(dim: Any) -> tuple[int, ...]:
    """Launch dimensions as Warp takes them: a number, or several."""
    return tuple(dim) if isinstance(dim, Sequence) else (dim,)


@dataclass(eq=False)
class KernelCandidate(Candidate):
    """A configuration's kernel with arguments of its own. ``shared_bytes`` are known once it is built."""

    launch: TunedLaunch
    dim: tuple[int, ...]
    workspace: Workspace
    reference: Reference | None = None
    shared_bytes: int = 0
    _packed: Any = None

    def build(self) -> KernelCandidate:
        """Build and load the kernel, and pack its arguments. Raises any error of Warp.

        Raises TuningError if the kernel needs more shared memory than the device has, or the launch is empty.
        """
        dim, device, gradients = self.dim, self.workspace.device, self.workspace.gradients
        kernel, block_dim, tiled = self.launch.kernel, self.launch.block_dim, self.workspace.options.tiled
        if 0 in dim:
            raise TuningError(f"{dict(self.launch.config)} launches nothing, dim is {dim}")
        with held(_lock_of(self.launch, device)):
            try:
                values = self.workspace.values
                self._packed = pack_launch(
                    kernel, values, gradients, dim=dim, block_dim=block_dim, tiled=tiled, device=device
                )
            except Exception as error:
                if is_transient(error):
                    kernel.module.mark_modified()  # otherwise Warp raises it again without a build
                raise
        hooks, direction = self._packed.launch.hooks, "forward" if gradients is None else "backward"
        self.shared_bytes = int(getattr(hooks, f"{direction}_smem_bytes", 0))
        if shortfall := getattr(hooks, f"{direction}_smem_shortfall", None):
            raise TuningError(f"{self.shared_bytes} bytes of shared memory are needed, {shortfall}")
        return self

    def prepare(self) -> None:
        """Find the arrays that launches write. Raises TuningError if the result differs from the reference."""
        self.workspace.find_written(self.run)
        if self.reference is not None:
            self.reference.check(self.results())

    def results(self) -> dict[str, Any]:
        """Launch once and return the results as NumPy arrays by name."""
        self.restore()
        self.run()
        return self.workspace.results()

    def run(self) -> None:
        self._packed.run()

    def restore(self) -> None:
        self.workspace.restore()


_locks: WeakValueDictionary[tuple[str, str, int | None], threading.Lock] = WeakValueDictionary()  # those in use
_locks_guard = threading.Lock()


def _lock_of(launch: TunedLaunch, device: Any) -> threading.Lock:
    """The lock of a module: candidates that share one build in turn, and the second finds the first one's build."""
    name = (launch.kernel.module.name, str(device), None if device.is_cpu else launch.block_dim)
    with _locks_guard:
        return _locks.setdefault(name, threading.Lock())


def is_usable(device: Any) -> bool:
    """True if a device still computes. A kernel that reads wrong addresses breaks a GPU for the whole process."""
    with suppressed(Exception):  # of any class; the candidate's own error is reported
        return bool(wp.ones(1, dtype=wp.int32, device=device).numpy()[0] == 1)
    return False


def _devices(device: Any, others: Sequence[Any]) -> list[Any]:
    """The launch's own device and those of the others that are like it."""
    wp.synchronize_device(device)
    try:
        further = [wp.get_device(alias) for alias in others]
    except unless_signalled(RuntimeError, ValueError) as error:
        present = ", ".join(map(str, wp.get_devices()))
        raise TuningError(f"devices is {list(others)!r}: {error}", remedy=f"there are {present}") from error
    return [device, *alike(device, further)]
