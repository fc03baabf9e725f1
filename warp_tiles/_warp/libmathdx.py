"""Builds a GEMM function with Warp's own libmathdx."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import warp

from warp_tiles._warp.translate import WARP_LAYOUTS
from warp_tiles.errors import BuildError
from warp_tiles.gemm.problem import GemmProblem

_lock = threading.Lock()


class _StandInBuilder:
    """Has the attributes of a ModuleBuilder that build_lto_dot() uses."""

    def __init__(self) -> None:
        self.ltoirs: dict[str, bytes] = {}
        self.ltoirs_decl: dict[str, str] = {}


def libmathdx_build(original: Callable[..., tuple[str, bytes]], variant: GemmProblem) -> tuple[str, bytes]:
    """Builds a variant with libmathdx inside warp.so, as Warp does.

    Args:
        original: Warp's ``build_lto_dot``.
        variant: The variant to build.

    Raises:
        BuildError: libmathdx rejects the variant.
    """
    builder = _StandInBuilder()
    layouts = {value: key for key, value in WARP_LAYOUTS.items()}
    operands = (variant.a, variant.b, variant.c)
    arguments: list[Any] = [variant.m, variant.n, variant.k]
    arguments += [getattr(warp, operand.dtype) for operand in operands]
    arguments += [layouts[operand.arrangement] for operand in operands]
    extra: dict[str, Any] = dict(zip(("lda", "ldb", "ldc"), variant.leading_dimensions))
    known = inspect.signature(original).parameters
    if "aligned_bases" in known:
        promised = zip(variant.alignments, variant.element_alignments)
        extra["aligned_bases"] = tuple(alignment > element for alignment, element in promised)
    if variant.precision == "tf32":
        if "precision" not in known:
            raise BuildError(f"Warp {warp.__version__} cannot build {variant.describe()}")
        extra["precision"] = "tf32"
    try:
        with _lock:  # Warp always calls it under a lock
            symbol, payload = original(*arguments, variant.arch, variant.threads, builder, **extra)
    except RuntimeError as error:
        raise BuildError(f"Warp's libmathdx could not build {variant.describe()}", log=str(error)) from error
    return str(symbol), bytes(payload)
