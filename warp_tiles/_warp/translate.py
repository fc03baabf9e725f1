"""Warp's objects as plain values."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from warp_tiles._warp.tracing import ModuleRecorder
from warp_tiles.gemm.dispatch import Tile
from warp_tiles.gemm.variant import DTYPE_BYTES, Arrangement, DType, GemmVariant, Operand, Precision
from warp_tiles.plan.planning import FunctionUse, Session

if TYPE_CHECKING:
    from warp_tiles.build.module_build import ModuleBuild

WARP_LAYOUTS: dict[str, Arrangement] = {"rowmajor": "row_major", "colmajor": "col_major"}


class BuilderState:
    """What is known about one ModuleBuilder."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.recorder = ModuleRecorder()
        self.adjoint_of_site: dict[int, int] = {}  # by number of the site: identity of the Adjoint that contains it
        self.build: ModuleBuild | None = None
        self._labels: dict[int, str] = {}

    def label(self, adjoint: Any) -> str:
        """A name for a function that no other function of the module has."""
        if id(adjoint) not in self._labels:
            name = str(getattr(adjoint, "fun_name", None) or "unknown")
            taken = set(self._labels.values())
            copies = (f"{name}#{n}" for n in range(2, len(taken) + 3))
            self._labels[id(adjoint)] = next(label for label in (name, *copies) if label not in taken)
        return self._labels[id(adjoint)]

    def known(self, adjoint: Any) -> str | None:
        """Its name if it contains a site."""
        return self._labels.get(id(adjoint))


def precision_of(value: object) -> Precision:
    """The ``precision`` argument of a call.

    Raises:
        ValueError: It is not one of the two literals.
    """
    # an argument that is not a literal comes as Warp's Var rather than as a string
    if value not in ("default", "tf32") or not isinstance(value, str):
        got = repr(value) if isinstance(value, str) else "a non-literal argument"
        raise ValueError(f"tile_matmul() precision must be the string literal 'default' or 'tf32', got {got}")
    return value


def tile_of(var: Any) -> Tile:
    """A tile variable as a plain value.

    A tile that owns its shared storage comes from a 16-byte-aligned allocator; views alias any
    offset, and the type of a function's parameter is its annotation, which cannot tell.
    """
    kind = var.type
    parameter = getattr(var, "is_parameter", True)  # Warp 1.17 does not say; then nothing is promised
    return Tile(
        cast(DType, kind.dtype.__name__),
        (int(kind.shape[0]), int(kind.shape[1])),
        (int(kind.strides[0]), int(kind.strides[1])),
        WARP_LAYOUTS[kind.layout],
        bool(kind.owner) and not parameter,
    )


def variant_of_call(arguments: Mapping[str, Any]) -> GemmVariant:
    """The variant that Warp asks for in a call of its ``build_lto_dot()``, given by that function's parameters.

    Nothing is known of the alignment there, so that none beyond an element's is promised.
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
    return GemmVariant(m, n, k, a, b, c, precision, int(arguments["num_threads"]), int(arguments["arch"]))


def reached_functions(builder: Any) -> list[tuple[Any, dict[int, Any]]]:
    """Each kernel of a module with the Adjoints that it reaches, its own included, by identity."""
    found = []
    for kernel in builder.kernels:
        seen: dict[int, Any] = {}
        pending = [kernel.adj]
        while pending:
            adjoint = pending.pop()
            if id(adjoint) in seen:
                continue
            seen[id(adjoint)] = adjoint
            for function in getattr(adjoint, "called_user_functions", ()):
                extra = (function.custom_grad_func, function.custom_replay_func)
                pending.extend(f.adj for f in (function, *extra) if f is not None)
        if any(adjoint.uses_grad_call for adjoint in seen.values()):
            # wp.grad() records no call; what it differentiates is marked instead
            forced = (f.adj for f in builder.functions if f.adj.force_adjoint_codegen)
            seen.update((id(adjoint), adjoint) for adjoint in forced)
        found.append((kernel, seen))
    return found


def kernels_of(adjoint: Any, reached: list[tuple[Any, dict[int, Any]]]) -> tuple[str, ...]:
    """Keys of the kernels that reach a function."""
    return tuple(kernel.key for kernel, seen in reached if id(adjoint) in seen)


def function_uses(
    builder: Any, state: BuilderState, reached: list[tuple[Any, dict[int, Any]]]
) -> Iterator[FunctionUse]:
    """Which kernel reaches which function that contains a product, and whether backward."""
    for kernel, seen in reached:
        options = builder.options | kernel.options
        backward = bool(options["enable_backward"])
        if backward:
            reason = f"kernel '{kernel.key}' has a backward pass"
        elif "enable_backward" in kernel.options:
            reason = f"kernel '{kernel.key}' has enable_backward=False"
        else:
            reason = "the module has enable_backward=False"
        for adjoint in seen.values():
            label = state.known(adjoint)
            if label is None:
                continue
            if adjoint.force_adjoint_codegen and not backward:
                yield FunctionUse(kernel.key, label, True, f"kernel '{kernel.key}' differentiates it with wp.grad()")
            else:
                yield FunctionUse(kernel.key, label, backward, reason)


def number_of(value: Any) -> float | None:
    """A scalar argument of a call as a number; None where it is not a constant."""
    constant = value if isinstance(value, (int, float)) else getattr(value, "constant", None)
    constant = getattr(constant, "value", constant)
    return float(constant) if isinstance(constant, (int, float)) else None


def mentions(adjoint: Any, names: set[str], package: Any, builtins: Mapping[str, Any]) -> bool:
    """Whether a function's source refers to one of Warp's builtins of these names, under any alias.

    Args:
        adjoint: Warp's Adjoint of the function.
        names: Names of builtins.
        package: The ``warp`` package.
        builtins: Warp's builtin functions by name.
    """
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
        except Exception:  # an unresolvable name is an error for Warp to report, not a product
            continue
        if value is package and path:
            value = builtins.get(path[-1])
        if isinstance(value, function) and value.key in names:
            return True
    resolved = getattr(adjoint, "resolved_static_expressions", {})
    return any(isinstance(value, function) and value.key in names for value in resolved.values())
