"""Converts Warp's objects to plain values, and variants to calls of Warp's libmathdx."""

from __future__ import annotations

import ast
import inspect
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import warp

from warp_tiles.errors import BuildError
from warp_tiles.gemm.dispatch import Tile
from warp_tiles.gemm.problem import DTYPE_BYTES, Arrangement, DType, GemmProblem, Operand, Precision
from warp_tiles.util.threads import raise_if_signalled

WARP_LAYOUTS: dict[str, Arrangement] = {"rowmajor": "row_major", "colmajor": "col_major"}


def precision_of(value: object) -> Precision:
    """Returns the ``precision`` argument of a call.

    Raises:
        ValueError: It is not one of the two literals.
    """
    # Warp passes an argument that is not a literal as its Var
    if value not in ("default", "tf32") or not isinstance(value, str):
        got = repr(value) if isinstance(value, str) else "a non-literal argument"
        raise ValueError(f"tile_matmul() precision must be the string literal 'default' or 'tf32', got {got}")
    return value


def tile_of(var: Any) -> Tile:
    """Converts a tile variable of one or two dimensions. A vector becomes a matrix of one column.

    Only the base of a tile that owns its shared storage is known to be 16-byte aligned, because Warp's allocator aligns
    it. A view can begin at any offset. The type of a function's parameter does not tell whether it is a view.
    """
    kind = var.type
    shape, strides, layout = tuple(map(int, kind.shape)), tuple(map(int, kind.strides)), WARP_LAYOUTS[kind.layout]
    if len(shape) == 1:
        (rows,), (stride,) = shape, strides
        shape = (rows, 1)
        strides, layout = ((1, rows), "col_major") if stride == 1 else ((stride, 1), "row_major")
    parameter = getattr(var, "is_parameter", True)  # Warp 1.17 lacks the attribute; then no alignment is promised
    aligned = bool(kind.owner) and not parameter
    return Tile(cast(DType, kind.dtype.__name__), (shape[0], shape[1]), (strides[0], strides[1]), layout, aligned)


def put_in_shared_memory(var: Any) -> None:
    """Makes a tile use shared memory. Warp reads the storage after it has generated the whole function."""
    var.type.storage = "shared"


def variant_of_call(arguments: Mapping[str, Any]) -> GemmProblem:
    """Returns the variant that a call of Warp's ``build_lto_dot()`` requests.

    The call does not say how its operands are aligned. The variant promises only the alignment of an element.
    """
    m, n, k = (int(arguments[name]) for name in "MNK")
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n)}
    operands: dict[str, Operand] = {}
    for name, (rows, cols) in shapes.items():
        dtype = cast(DType, arguments[f"{name}dtype"].__name__)
        arrangement = WARP_LAYOUTS[arguments[f"{name}layout"]]
        ld = arguments[f"ld{name}"] or (cols if arrangement == "row_major" else rows)
        operands[name] = Operand(dtype, arrangement, int(ld), DTYPE_BYTES[dtype])
    precision: Precision = "tf32" if arguments.get("precision") == "tf32" else "default"
    a, b, c = operands["a"], operands["b"], operands["c"]
    return GemmProblem(m, n, k, a, b, c, precision, int(arguments["num_threads"]), int(arguments["arch"]))


def mentions(adjoint: Any, names: set[str], package: Any, builtins: Mapping[str, Any]) -> bool:
    """True if a function's source refers to one of these builtins of Warp, under any alias."""
    function = type(builtins["tile_matmul"])
    local = adjoint.assigned_name_ids() if hasattr(adjoint, "assigned_name_ids") else ()
    for node in adjoint.reference_nodes():
        if isinstance(node, ast.Name) and node.id in local:
            continue
        if not isinstance(node, (ast.Name, ast.Attribute)):
            continue
        if isinstance(node, ast.Attribute) and node.attr in names:
            return True
        try:
            value, path = adjoint.resolve_static_expression(node, eval_types=False)
        except Exception as error:  # Warp reports the unresolvable name later
            raise_if_signalled(error)
            continue
        if value is package and path:
            value = builtins.get(path[-1])
        if isinstance(value, function) and value.key in names:
            return True
    resolved = getattr(adjoint, "resolved_static_expressions", {})
    return any(isinstance(value, function) and value.key in names for value in resolved.values())


_lock = threading.Lock()


def libmathdx_build(original: Callable[..., tuple[str, bytes]], variant: GemmProblem) -> tuple[str, bytes]:
    """Builds a variant with libmathdx inside warp.so, as Warp does.

    Raises:
        BuildError: libmathdx rejects the variant.
    """
    builder = SimpleNamespace(ltoirs={}, ltoirs_decl={})  # what build_lto_dot() uses of a ModuleBuilder
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
        raise_if_signalled(error)
        raise BuildError(f"Warp's libmathdx could not build {variant.describe()}", log=str(error)) from error
    return str(symbol), bytes(payload)
