"""Internals of Warp that searches use: the active tape, precompiled headers, scalar types, and copies of kernels."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import warp

from warp_tiles._warp.intercept import NotedLaunch
from warp_tiles._warp.internals import find, runtime
from warp_tiles.errors import UnsupportedWarpError
from warp_tiles.util.threads import raise_if_signalled, suppressed

CPU_HEADERS = "builtin_bd*.pch"  # the same folders also contain NVRTC's precompiled headers

log = logging.getLogger("warp_tiles")


class _Shared(threading.local):
    """The names of the precompiled headers that this thread already got from other threads."""

    def __init__(self) -> None:
        self.names: set[str] = set()


_shared = _Shared()


@contextlib.contextmanager
def without_tape() -> Iterator[None]:
    """Suspends the active ``wp.Tape`` within the block.

    Raises:
        UnsupportedWarpError: This Warp stores its active tape elsewhere.
    """
    found = runtime("tape")
    tape, found.tape = found.tape, None
    try:
        yield
    finally:
        found.tape = tape


def share_precompiled_headers() -> None:
    """Links the precompiled CPU headers of other threads into this thread's folder. Each saves 1.6 s of compilation.

    Each thread has its own folder. Every file is complete, because Warp gives it its name last. Of several with one
    name, the newest is linked. A thread gets each file only once: if Clang rejects it, Warp precompiles the header
    again. If this Warp stores the headers elsewhere, each thread precompiles its own.
    """
    try:
        found = runtime("_get_or_create_pch_dir", "_pch_dirs")
        folder = Path(found._get_or_create_pch_dir())
    except (UnsupportedWarpError, OSError) as error:
        raise_if_signalled(error)
        log.info("tuning: each thread precompiles its own headers: %s", error)
        return
    dated: list[tuple[int, Path]] = []
    for other in list(found._pch_dirs.values()):
        for header in Path(other.name).glob(CPU_HEADERS):
            with suppressed(OSError):  # Warp removes files that Clang rejects
                dated.append((header.stat().st_mtime_ns, header))
    for name, newest in {header.name: header for _, header in sorted(dated)}.items():
        if name not in _shared.names and not (folder / name).exists():
            with suppressed(OSError):  # a file system without links
                os.link(newest, folder / name)
        _shared.names.add(name)


def scalar_and_shape(dtype: Any) -> tuple[Any, tuple[int, ...]]:
    """Returns the scalar type and shape of an array's dtype. The shape of a scalar is ``()``."""
    return getattr(dtype, "_wp_scalar_type_", dtype), tuple(getattr(dtype, "_shape_", ()))


# ---- copies of kernels


def copied_kernel(kernel: Any, name: str, options: Mapping[str, Any]) -> Any:
    """Returns the same kernel in a module of its own, which has these options besides those of the kernel's module."""
    module = warp.get_module(name)
    module.options.update({**kernel.module.options, **options})
    module.mark_modified()
    return warp.Kernel(
        kernel.func,
        key=kernel.key,
        module=module,
        options=dict(kernel.options),
        code_transformers=kernel.adj.transformers,
    )


def forget_modules(names: Iterable[str]) -> None:
    """Removes modules of copied kernels, so that reports and later loads do not see them."""
    for name in names:
        put_module(name, None)


def put_module(name: str, module: Any) -> None:
    """Makes a module the one that Warp knows by a name; None makes Warp forget it."""
    modules = find("context.user_modules")
    modules.pop(name, None)
    if module is not None:
        modules[name] = module


def launching() -> NotedLaunch | None:
    """Returns the call of ``wp.launch`` that this thread is in the middle of; None if it is in none.

    Warp loads a module in the middle of a launch, and gives the arguments to nobody. So they are read from its frame.
    """
    frame, code = sys._getframe(1), inspect.unwrap(find("context.launch")).__code__
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return None
    call = frame.f_locals
    if call["adjoint"] or call["stream"] is not None:
        return None
    dim = (call["dim"],) if isinstance(call["dim"], int) else tuple(call["dim"])
    values = (*call["inputs"], *call["outputs"])
    return NotedLaunch(call["kernel"], dim, values, len(call["outputs"]), call["device"], int(call["block_dim"]))
