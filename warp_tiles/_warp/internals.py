"""Finds the internals of Warp that warp_tiles needs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from typing import Any

import warp

from warp_tiles.errors import UnsupportedWarpError
from warp_tiles.solver.problem import SOLVERS

SUPPORTED_VERSIONS = ((1, 17), (1, 19))
GEMM_OPTION, SOLVER_OPTION = MATHDX_OPTIONS = ("enable_mathdx_gemm", "enable_mathdx_solver")  # Warp's module options
MATMUL, CHOLESKY = "tile_matmul", "tile_cholesky"

#: Parameters of ``build_lto_dot``. The last ones came in Warp 1.18 and 1.19; an unknown one may change what it builds.
LTO_DOT = (
    *("M", "N", "K", "adtype", "bdtype", "cdtype", "alayout", "blayout", "clayout", "arch", "num_threads", "builder"),
    *("lda", "ldb", "ldc", "aligned_bases", "precision"),
)
# required members of warp._src, each with its required parameters
REQUIRED = {
    "build.build_cuda": "cu_path arch output_path ltoirs fatbins",
    "build.build_lto_dot": " ".join(LTO_DOT[:15]),
    "codegen.Adjoint.assigned_name_ids": "",
    "codegen.Adjoint.build": "builder",
    "codegen.Adjoint.reference_nodes": "",
    "codegen.Adjoint.resolve_static_expression": "root_node eval_types",
    "codegen.Var": "label type requires_grad constant prefix",
    "codegen.codegen_func_reverse": "adj",
    "codegen.get_arg_value": "",
    "codegen._codegen_lock": "",
    "context.ModuleBuilder": "module options hasher",
    "context.ModuleBuilder.codegen": "device",
    "context.ModuleBuilder.get_link_inputs": "",
    "context.ModuleHasher": "kernels options",
    "context.ModuleHasher.hash_adjoint": "adj",
    "context.Module._compile": "device output_name options",
    "context.Module._get_compile_arch": "device",
    "context.Module._get_compile_output_name": "device block_dim",
    "context.Module._get_live_kernels": "",
    "context.Module.get_module_hash": "",
    "context.Module.get_module_identifier": "block_dim",
    "context.Module.load": "device block_dim",
    "context.Module.mark_modified": "",
    "context.Module.resolve_options": "",
    "context.Function": "lto_dispatch_func",
    "context.builtin_functions": "",
    "context.user_modules": "",
    "context.init": "",
    "logger.log_info": "",
    "logger.log_warning": "",
    "types.type_is_generic": "",
}

# members that the trace of loops needs, in the same form; those of codegen.Adjoint are wrapped
TRACED = {
    "codegen.Adjoint.add_call": "func args kwargs",
    "codegen.Adjoint.resolve_call": "func args kwargs",
    "codegen.Adjoint.add_forward": "statement replay skip_replay",
    "codegen.Adjoint.add_reverse": "statement",
    "codegen.Adjoint.add_grad_call": "func args kwargs",
    "codegen.Adjoint.add_comp": "",
    "codegen.Adjoint.add_return": "var",
    "codegen.Adjoint.begin_for": "iter",
    "codegen.Adjoint.end_for": "iter",
    "codegen.Adjoint.begin_while": "cond",
    "codegen.Adjoint.end_while": "",
    "codegen.Adjoint.begin_if": "cond",
    "codegen.Adjoint.end_if": "cond",
    "codegen.Adjoint.begin_else": "cond",
    "codegen.Adjoint.end_else": "cond",
    "codegen.Adjoint.eval": "node",
    "codegen.Adjoint.get_unroll_range": "loop",
    "codegen.Adjoint.set_lineno": "lineno",
    "types.is_reference": "",
}

_getter = cache(attrgetter)  # thousands of calls while a module is generated


def find(path: str) -> Any:
    """Returns ``warp._src.<path>``. Raises an UnsupportedWarpError if this Warp does not have it."""
    try:
        member = _getter(f"_src.{path}")(warp)
    except AttributeError:
        member = None
    if member is None:
        raise missing(f"warp._src.{path}")
    return member


def missing(what: str) -> UnsupportedWarpError:
    low, high = (".".join(map(str, version)) for version in SUPPORTED_VERSIONS)
    return UnsupportedWarpError(
        f"Warp {warp.__version__} has no {what}, which warp_tiles hooks into",
        remedy=f"use warp-lang {low} to {high}, or a newer warp-tiles",
    )


def untested() -> str:
    """A text for a Warp that is newer than the newest tested version; empty for a tested one."""
    newest = SUPPORTED_VERSIONS[1]
    if tuple(int(part) for part in warp.__version__.split(".")[:2]) <= newest:
        return ""
    return (
        f"Warp {warp.__version__} is newer than {newest[0]}.{newest[1]}, the newest version that this warp_tiles was "
        "tested with; a small kernel is checked before the first module is built, and what differs is left to Warp"
    )


def require(parts: Mapping[str, str]) -> None:
    """Checks that this Warp has some paths below ``warp._src``, each with the names of its required parameters.

    Raises an UnsupportedWarpError that names a missing part or parameter, and Warp's version.
    """
    for path, parameters in parts.items():
        target = find(path)
        known = inspect.signature(target).parameters if parameters else {}
        for name in parameters.split():
            if name not in known:
                raise missing(f"parameter '{name}' of warp._src.{path}")


def check_internals() -> list[str]:
    """Checks that this Warp has every member that the hooks need. See :func:`require`."""
    require(REQUIRED)
    for name in (MATMUL, *SOLVERS):
        if name not in find("context.builtin_functions"):
            raise missing(f"builtin '{name}'")
    return [f"warp._src.{path}" for path in REQUIRED]


def runtime(*names: str) -> Any:
    """Returns Warp's runtime. Raises an UnsupportedWarpError that names an attribute which it lacks."""
    find("context.init")()
    runtime = find("context.runtime")
    for name in names:
        if not hasattr(runtime, name):
            raise missing(f"warp._src.context.runtime.{name}")
    return runtime


def unknown_products() -> set[str]:
    """The builtins of this Warp whose names say that they multiply tiles, beside ``tile_matmul``."""
    return {name for name in find("context.builtin_functions") if name.startswith(f"{MATMUL}_")}


def mathdx_enabled() -> bool:
    """True if this Warp was built with MathDx. Without it Warp cannot link the functions of products and solvers."""
    return bool(runtime().core.wp_is_mathdx_enabled())


# ---- what searches use: the active tape, scalar types


@contextmanager
def without_tape() -> Iterator[None]:
    """Suspends the active ``wp.Tape`` within the block."""
    recording = runtime("tape")
    tape, recording.tape = recording.tape, None
    try:
        yield
    finally:
        recording.tape = tape


def scalar_and_shape(dtype: Any) -> tuple[Any, tuple[int, ...]]:
    """Returns the scalar type and shape of an array's dtype. The shape of a scalar is ``()``."""
    return getattr(dtype, "_wp_scalar_type_", dtype), tuple(getattr(dtype, "_shape_", ()))
