"""Kernels as candidates of a search: launched on copies, checked, restored."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from warp_tiles.errors import TuningError
from warp_tiles.tuning.arguments import is_array, is_struct, namespace
from warp_tiles.tuning.making import TunedLaunch
from warp_tiles.tuning.measure import is_passing

log = logging.getLogger("warp_tiles")
_SEED = 4


class Workspace:
    """Arguments of a search on one device; what a launch may write is a copy, so that the user's stay as they are.

    Args:
        names: Of the arguments.
        values: The arguments, in order.
        written: Names of arrays that launches write, which are restored; None for all arrays.
        device: Warp's device; arrays of another are copied there.
        is_all_written: Whether launches write nothing else. If not, the others are copied as well, and those that the
            first launch changes are restored from then on.
    """

    def __init__(
        self,
        names: Sequence[str],
        values: Sequence[Any],
        written: frozenset[str] | None,
        device: Any,
        *,
        is_all_written: bool = False,
    ) -> None:
        self.names = tuple(names)
        self.device = device
        self.pristine: list[Any] = []  # in the order of the arguments
        self.values: list[Any] = []
        self._is_all_written = is_all_written
        self._copies: dict[int, tuple[Any, Any]] = {}  # by the id of the user's array: the copy, and what it is of
        self._restored: dict[int, tuple[Any, Any]] = {}
        self._unsure: dict[int, str] = {}  # arrays that are copied though nothing declares that they are written
        self._is_looked_into = False
        self._results: dict[str, Any] = {}
        self._given: list[Any] = []  # arrays whose ids are used live as long
        for name, value in zip(names, values):
            pristine, own = self._taken(name, value, written is None or name in written)
            self.pristine.append(pristine)
            self.values.append(own)
        self.written = tuple(self._results)

    def _taken(self, name: str, value: Any, is_written: bool) -> tuple[Any, Any]:
        """A value with the user's numbers, and what launches get in its place."""
        import warp as wp

        if is_struct(value):
            structs = value._cls(), value._cls()
            for member in value._cls.vars:
                for struct, found in zip(structs, self._taken(f"{name}.{member}", getattr(value, member), is_written)):
                    setattr(struct, member, found)
            return structs
        if isinstance(value, wp.indexedarray):
            found = value.indices[: value.ndim]
            indices = [index if index is None else wp.clone(index, device=self.device) for index in found]
            pristine, own = self._taken(name, value.data, is_written)
            return wp.indexedarray(pristine, indices), wp.indexedarray(own, indices)
        if not is_array(value):
            return value, value
        if not isinstance(value, wp.array):
            raise TuningError(
                f"the argument {name} is a {type(value).__name__}", remedy="tune with Warp arrays; wrap it first"
            )
        self._given.append(value)
        if id(value) not in self._copies:
            source = value if value.device == self.device or not value.size else self._copy_of(name, value)
            source = source if is_written else _not_zero(name, source)
            if not is_written and self._is_all_written:
                return source, source
            self._copies[id(value)] = self._copy_of(name, source), source
        copy, source = self._copies[id(value)]
        if is_written:
            self._restored[id(value)] = copy, source
            self._results[name] = copy
        else:
            self._unsure.setdefault(id(value), name)
        return source, copy

    def _copy_of(self, name: str, array: Any) -> Any:
        try:
            return _copy_of(array, self.device)
        except (RuntimeError, MemoryError) as error:
            raise TuningError(
                f"the argument {name} of shape {array.shape} cannot be copied on {self.device}: {error}",
                remedy="take smaller arrays for tuning"
                if self._is_all_written
                else "name the arrays that the kernel writes, restore=[...]; the others are not copied then",
            ) from error

    def restore(self) -> None:
        """Give every copy that launches change the user's values again."""
        import warp as wp

        for copy, source in self._restored.values():
            wp.copy(copy, source)

    def find_written(self, run: Callable[[], None]) -> None:
        """Launch once, and restore from now on every array that it changed without a declaration.

        Args:
            run: One launch; it is not called where there is nothing to find. From the second time on it is not either:
                all copies have the user's values again.
        """
        import warp as wp

        unsure = {key: name for key, name in self._unsure.items() if key not in self._restored}
        if not unsure:
            return
        if self._is_looked_into:
            for key in unsure:
                wp.copy(*self._copies[key])
            return
        self.restore()
        run()
        self._is_looked_into = True
        for key, name in unsure.items():
            copy, source = self._copies[key]
            if not _is_equal(copy, source):
                log.warning(
                    "tuning: launches write %s; it is restored before each run, and yours is left alone. "
                    "Name what they write: outputs=, or autotune(restore=...)",
                    name,
                )
                self._restored[key] = copy, source
        self.restore()

    def results(self) -> dict[str, Any]:
        """Return what the last launch wrote as NumPy arrays by name, a struct member as ``argument.member``."""
        return {name: array.numpy().copy() for name, array in self._results.items()}


def _is_equal(array: Any, other: Any) -> bool:
    """Whether two arrays of one shape and dtype hold the same bits."""
    return _is_same(array.numpy(), other.numpy())


def _is_same(array: Any, other: Any) -> bool:
    """The same of NumPy arrays, field by field: what lies between fields means nothing."""
    import numpy as np

    if array.dtype.names:
        return all(_is_same(array[name], other[name]) for name in array.dtype.names)
    first, second = (np.ascontiguousarray(values).view(np.uint8) for values in (array, other))
    return bool(np.array_equal(first, second))


def _copy_of(array: Any, device: Any) -> Any:
    """A copy with the same strides, which are part of what is measured."""
    import warp as wp

    if array.is_contiguous:
        return wp.clone(array, device=device, requires_grad=False)
    steps = [(extent - 1) * stride for extent, stride in zip(array.shape, array.strides)]
    first, last = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    buffer = wp.empty(last - first + wp.types.type_size_in_bytes(array.dtype), dtype=wp.uint8, device=device)
    start = buffer.ptr - first
    copy = wp.array(ptr=start, dtype=array.dtype, shape=array.shape, strides=array.strides, device=device)
    copy.warp_tiles_buffer = buffer  # lives as long as what points into it
    wp.copy(copy, array)
    return copy


def _not_zero(name: str, array: Any) -> Any:
    """An input, or random numbers in place of nothing but zeros, which would draw less power and run faster."""
    import numpy as np
    import warp as wp

    from warp_tiles._warp.searches import scalar_and_shape

    scalar, shape = scalar_and_shape(array.dtype)
    if not array.size or scalar not in (wp.float16, wp.float32, wp.float64, getattr(wp, "bfloat16", None)):
        return array
    if np.any(array.numpy()):
        return array
    log.warning("tuning: the input %s is all zeros; random numbers are measured in its place", name)
    random = np.random.default_rng(_SEED).uniform(-1, 1, (*array.shape, *shape))
    copy = _copy_of(array, array.device)
    copy.assign(random.astype(np.float32) if scalar is not wp.float64 else random)
    return copy


class Reference:
    """The expected results, with tolerances.

    Args:
        expected: NumPy arrays by name.
        rtol, atol: As of ``numpy.allclose``.
    """

    def __init__(self, expected: Mapping[str, Any], rtol: float, atol: float) -> None:
        self.expected = expected
        self.rtol = rtol
        self.atol = atol

    @classmethod
    def called(cls, reference: Callable[..., Any], workspace: Workspace, rtol: float, atol: float) -> Reference:
        """From a function of the arguments, which gives one result, several in order, or several by name.

        Raises:
            TuningError: Its results do not fit the arrays that the kernel writes.
        """
        given = reference(namespace(workspace.names, workspace.pristine))
        if not isinstance(given, Mapping):
            results = list(given) if isinstance(given, (tuple, list)) else [given]
            if len(results) != len(workspace.written):
                raise TuningError(
                    f"the reference gives {len(results)} results for {', '.join(workspace.written) or 'nothing'}",
                    remedy="give one for each array that is written, or a dictionary by name; autotune(restore=[...]) "
                    "says what is written where a launch has no outputs",
                )
            given = dict(zip(workspace.written, results))
        unknown = [name for name in given if name not in workspace.written]
        if unknown:
            raise TuningError(
                f"the reference gives {', '.join(unknown)}, which is not written",
                remedy=f"written are {', '.join(workspace.written) or 'none'}",
            )
        return cls({name: _numpy(value) for name, value in given.items()}, rtol, atol)

    def check(self, results: Mapping[str, Any]) -> None:
        """Compare.

        Raises:
            TuningError: A result is not close; it is named, with the largest difference.
        """
        import numpy as np

        for name, expected in self.expected.items():
            actual = np.asarray(results[name], dtype=np.float64)
            wanted = np.asarray(expected, dtype=np.float64)
            if actual.shape != wanted.shape:
                raise TuningError(f"wrong result: {name} has the shape {actual.shape}, the reference {wanted.shape}")
            if not np.allclose(actual, wanted, rtol=self.rtol, atol=self.atol, equal_nan=True):
                worst = np.nanmax(np.abs(actual - wanted))
                raise TuningError(
                    f"wrong result: {name} differs by up to {worst:.3g} (rtol {self.rtol:g}, atol {self.atol:g})"
                )


def _numpy(value: Any) -> Any:
    import numpy as np

    return np.array(value.numpy() if hasattr(value, "numpy") else value)


class FirstReference:
    """The results of the first configuration that works, taken when something is to be compared with them.

    Args:
        candidates: Build the configurations, one after the other.
        rtol, atol: As of ``numpy.allclose``.
    """

    def __init__(self, candidates: Sequence[Callable[[], KernelCandidate]], rtol: float, atol: float) -> None:
        self._candidates = candidates
        self._tolerances = rtol, atol
        self._found: Reference | None = None
        self._lock = threading.Lock()

    def check(self, results: Mapping[str, Any]) -> None:
        """See :meth:`Reference.check`; where no configuration works, every result passes."""
        with self._lock:
            for build in () if self._found is not None else self._candidates:
                with contextlib.suppress(Exception):  # the search records why
                    self._found = Reference(build().results(), *self._tolerances)
                    break
        if self._found is not None:
            self._found.check(results)


class KernelCandidate:
    """A configuration's kernel on a workspace.

    Args:
        launch: Kernel and block.
        dim: Launch dimensions.
        tiled: Whether it is launched as by ``wp.launch_tiled``.
        workspace: Arguments.
    """

    def __init__(self, launch: TunedLaunch, dim: Any, tiled: bool, workspace: Workspace) -> None:
        self._launch = launch
        self._dim = dim
        self._tiled = tiled
        self._workspace = workspace
        self._command: Any = None
        self.reference: Reference | FirstReference | None = None

    def build(self) -> KernelCandidate:
        """Build and load the kernel, and pack its arguments.

        Raises:
            TuningError: It needs more shared memory than the device has.
            Exception: What Warp raises.
        """
        import warp as wp

        from warp_tiles._warp.searches import share_precompiled_headers

        if self._workspace.device.is_cpu:
            share_precompiled_headers()
        launch = wp.launch_tiled if self._tiled else wp.launch
        with _lock_of(self._launch, self._workspace.device):
            try:
                self._command = launch(
                    self._launch.kernel,
                    dim=self._dim,
                    inputs=self._workspace.values,
                    device=self._workspace.device,
                    block_dim=self._launch.block_dim,
                    record_cmd=True,
                )
            except Exception as error:
                if is_passing(error):
                    self._launch.kernel.module.mark_modified()  # or Warp raises it again, and builds nothing
                raise
        if self._command is None:
            raise TuningError(f"{dict(self._launch.config)} launches nothing, dim is {self._dim}")
        lacking = getattr(self._command.hooks, "forward_smem_shortfall", None)
        if lacking:
            raise TuningError(f"{self.shared_bytes} bytes of shared memory are needed, {lacking}")
        return self

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block; 0 on the CPU."""
        return int(getattr(self._command.hooks, "forward_smem_bytes", 0)) if self._command is not None else 0

    def prepare(self) -> None:
        """Find out what launches write, and check the result, where there is a reference.

        Raises:
            TuningError: It is wrong.
        """
        self._workspace.find_written(self.run)
        if self.reference is not None:
            self.reference.check(self.results())

    def results(self) -> dict[str, Any]:
        """Return what one launch writes as NumPy arrays by name."""
        self.restore()
        self.run()
        return self._workspace.results()

    def run(self) -> None:
        """One launch."""
        self._command.launch()

    def restore(self) -> None:
        """Give every array that is written the user's values again."""
        self._workspace.restore()


_locks: dict[tuple[str, str, int | None], threading.Lock] = {}
_locks_guard = threading.Lock()


def _lock_of(launch: TunedLaunch, device: Any) -> threading.Lock:
    """Candidates that share a module are built one after the other; the second finds what the first built."""
    name = (launch.kernel.module.name, str(device), None if device.is_cpu else launch.block_dim)
    with _locks_guard:
        return _locks.setdefault(name, threading.Lock())
