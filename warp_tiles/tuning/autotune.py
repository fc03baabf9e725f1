"""The decorator that makes a tuned kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from warp_tiles.errors import TuningError
from warp_tiles.settings import Settings
from warp_tiles.tuning.factory import KernelFactory
from warp_tiles.tuning.kernel import TunedKernel
from warp_tiles.tuning.launches import Dim, Measurement
from warp_tiles.tuning.measure import Effort
from warp_tiles.tuning.record import Config
from warp_tiles.tuning.space import Space, Strategy, checked_configs, strategy_of
from warp_tiles.tuning.store import RecordStore

if TYPE_CHECKING:
    import warp as wp


def autotune(
    configs: Sequence[Config] | None = None,
    *,
    key: Sequence[str] | str | Callable[[SimpleNamespace], Mapping[str, Any]],
    dim: Dim,
    space: Space | None = None,
    search: Literal["all"] | Strategy = "all",
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
        search: ``"all"``, ``Random(n)`` or ``Halving(n)``.
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
        wait: True waits while another process tunes the same key. False launches the default meanwhile.
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
    if configs is not None and not isinstance(configs, Iterable):
        raise TuningError(f"configs is {configs!r}", remedy="give a list of dictionaries")
    if space is not None and not isinstance(space, Space):
        raise TuningError(f"space is {space!r}", remedy="give a Space, or a list of dictionaries as configs")
    if not callable(dim):
        raise TuningError(f"dim is {dim!r}", remedy="give a function of a configuration and the arguments")
    if reference is not None and reference != "first" and not callable(reference):
        raise TuningError(f"reference is {reference!r}", remedy='give a function, "first" or None')
    if effort is not None and not isinstance(effort, Effort):
        raise TuningError(f"effort is {effort!r}", remedy="give an Effort or None")
    if type(jobs) is not int or jobs < 0:
        raise TuningError(f"jobs is {jobs!r}", remedy="give a whole number of builds, 0 for one per core")
    rtol, atol = _tolerance("rtol", rtol), _tolerance("atol", atol)
    chosen: tuple[Config, ...] | Space = space if space is not None else checked_configs(configs or ())
    strategy = strategy_of(search)
    further = () if devices is None else _listed(devices)
    measurement = Measurement(tiled, reference, rtol, atol, flush_l2, jobs, effort, further)
    names = None if restore is None else _listed(restore)
    if not all(isinstance(name, str) for name in names or ()):
        raise TuningError(f"restore is {restore!r}", remedy="name arguments of the kernel that are arrays")

    def decorate(function: Callable[..., Any]) -> TunedKernel:
        factory = KernelFactory(function, chosen, default, block_dim, needs_block_dim=tiled)
        return TunedKernel(factory, key, dim, strategy, measurement, restore=names, wait=wait, store=store)

    return decorate


def _tolerance(name: str, value: Any) -> float:
    try:
        found = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number may have more digits than Python prints
        found = value = math.inf
    if not 0 <= found < math.inf:
        raise TuningError(f"{name} is {value!r}", remedy="give a finite number that is not negative")
    return found


def _listed(values: Any) -> tuple[Any, ...]:
    """Returns the values as a tuple; a single value or a string makes a tuple of one."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)
