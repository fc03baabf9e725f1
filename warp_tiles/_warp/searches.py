"""Internals of Warp that searches use: the active tape, scalar types, and copies of kernels."""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import warp

from warp_tiles._warp.intercept import NotedLaunch
from warp_tiles._warp.internals import find, runtime


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


def scalar_and_shape(dtype: Any) -> tuple[Any, tuple[int, ...]]:
    """Returns the scalar type and shape of an array's dtype. The shape of a scalar is ``()``."""
    return getattr(dtype, "_wp_scalar_type_", dtype), tuple(getattr(dtype, "_shape_", ()))


def kernel_digest(kernel: Any) -> str:
    """Warp's hash, in hexadecimal, of a kernel's source and of the functions, structs, constants and types in it."""

    class Hasher(find("context.ModuleHasher")):  # type: ignore[misc]
        """Leaves out static expressions that a build resolves, because the hash would change with it."""

        def hash_adjoint(self, adjoint: Any) -> bytes:
            unbuilt = copy.copy(adjoint)
            unbuilt.deferred_static_expressions = []
            return bytes(super().hash_adjoint(unbuilt))

    return Hasher((), {}).hash_adjoint(kernel.adj).hex()


# ---- copies of kernels


def copied_kernel(kernel: Any, name: str, options: Mapping[str, Any]) -> Any:
    """Returns the same kernel in a module of its own.

    Args:
        name: The name of the module.
        options: Options of the module besides those of the kernel's module.
    """
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
