"""The call sites in the modules that Warp is generating, and the hooks that register those of products and solvers.

Each call gets placeholders in place of function names. Warp's objects are converted to plain values here, and problems
to calls of Warp's libmathdx.
"""

from __future__ import annotations

import ast
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import warp

from warp_tiles._warp.internals import CHOLESKY, GEMM_OPTION, MATMUL, SOLVER_OPTION, find, mathdx_enabled
from warp_tiles._warp.reload import Reloads, this_thread
from warp_tiles.codegen.trace import Session
from warp_tiles.errors import BuildError, LockedError, UnsupportedProblem, unless_signalled
from warp_tiles.gemm.problem import (
    DTYPE_BYTES,
    PRODUCT_ROLES,
    Arrangement,
    DType,
    GemmProblem,
    Operand,
    Precision,
    Role,
    Target,
    TileOperand,
    products,
)
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.settings import Settings, current
from warp_tiles.solver.problem import SOLVERS, Problem, SolverProblem, reason_unsupported, solvers

if TYPE_CHECKING:
    from warp_tiles._warp.generation import BuilderState

WARP_LAYOUTS: dict[str, Arrangement] = {"rowmajor": "row_major", "colmajor": "col_major"}
_libmathdx_lock = threading.Lock()
Dispatch = Callable[..., tuple[Any, ...]]  # Warp's function that generates a call of a builtin


class CallSites:
    """Registers call sites, and keeps the state of each module while Warp generates it."""

    def __init__(self, reloads: Reloads) -> None:
        self.reloads = reloads
        self._states: weakref.WeakKeyDictionary[Any, BuilderState] = weakref.WeakKeyDictionary()

    def existing_state(self, builder: Any) -> BuilderState | None:
        """The state of a module, or None if nothing has asked for it yet."""
        return self._states.get(builder)

    def state(self, builder: Any) -> BuilderState:
        """The state of a module; the first call creates it."""
        state = self._states.get(builder)
        if state is None:
            from warp_tiles._warp.generation import BuilderState

            options, module = builder.options, builder.module
            block_dim = int(options["block_dim"])
            hashed = getattr(module.hashers.get(block_dim), "warp_tiles_settings", None)
            resolved = hashed or self.reloads.settings_of(options, module)
            session = Session(module.name, options.get("output_arch"), block_dim, settings=resolved)
            state = self._states[builder] = BuilderState(session)
        return state

    def settings_of(self, options: Mapping[str, Any], builder: Any = None) -> Settings:
        """The settings of the module that is being generated. Without a builder its options alone decide."""
        return current(options) if builder is None else self.state(builder).session.settings

    def function(self, builder: Any) -> str:
        return self.state(builder).label(this_thread.adjoint)

    def add(
        self,
        builder: Any,
        call: str,
        problems: Mapping[Role, Problem],
        operands: tuple[Any, ...] = (),
        *,
        roles: tuple[Role, ...] = PRODUCT_ROLES,
        **facts: Rejected | str | bool | None,
    ) -> tuple[Any, ...]:
        """Registers a call site (:class:`warp_tiles.codegen.trace.Site`). The operands are A and B as Warp has them.

        Returns the function arguments of the generated call: a placeholder of the prelude for each role, or 0.
        """
        # the scalar path has no bfloat16 adjoints; only the finished source shows whether it calls them
        bfloat16 = any(operand.type.dtype.__name__ == "bfloat16" for operand in operands)
        state = self.state(builder)
        label = self.function(builder)
        site = state.session.add(call, label, problems, bfloat16_operands=bfloat16, roles=roles, **facts)
        state.adjoint_of_site[site.index] = id(this_thread.adjoint)
        if not problems and this_thread.tracer is None:
            return (0,) * len(roles)
        from warp_tiles._warp.generation import declare_prelude

        declare_prelude(builder)
        var = find("codegen.Var")
        return tuple(var(site.placeholder(role), str, False, True, False) for role in roles)

    def _unsupported(self, builder: Any, resolved: Settings, call: str, reason: Rejected | None) -> UnsupportedProblem:
        return UnsupportedProblem(
            f"In '{self.function(builder)}': {resolved.provider} cannot serve {call}, {reason}",
            remedy=f"copy it to a tile of its own, or {resolved.remedy('provider', 'auto')}",
        )

    # ---- calls

    def matmul(self, original: Dispatch, *call: Any, options: Mapping[str, Any], builder: Any) -> tuple[Any, ...]:
        """Replaces Warp's ``tile_matmul_lto_dispatch_func``, with the same checks of arguments."""
        _, _, return_values, arg_values = call
        resolved = self.settings_of(options, builder)
        if resolved.policy == "off":
            return original(*call, options, builder)
        a, b, alpha = arg_values["a"], arg_values["b"], arg_values["alpha"]
        # a new result is not read; an accumulator is, unless beta is zero
        out, beta = (return_values[0], 0.0) if return_values else (arg_values["out"], arg_values["beta"])
        if not warp.types.is_tile(out.type):
            raise TypeError(f"tile_matmul() 'out' argument must be a tile, got {out!r}")
        # Warp 1.19 added ``precision``; older versions always compute in the operands' own
        requested = find("codegen.get_arg_value")(arg_values["precision"]) if "precision" in arg_values else "default"
        precision = precision_of(requested)
        target = _target(options, resolved, precision)
        product = products(tile_of(a), tile_of(b), tile_of(out), precision=precision, target=target)
        for operand in (a, b, out):
            put_in_shared_memory(operand)
        names: tuple[Any, ...] = (0, 0, 0)
        if builder is not None:
            if product.is_unsupported and resolved.provider not in ("auto", "scalar"):
                raise self._unsupported(builder, resolved, "the product", product.scalar_reason)
            is_expected = resolved.own_products and product.is_unsupported  # Warp warns of no product that opts out
            if getattr(builder, "target", "cuda") is not None and not is_expected:
                for warning in product.warnings:
                    find("logger.log_warning")(warning)
            names = self.add(builder, MATMUL, product.problems, (a, b), scalar_reason=product.scalar_reason)
            if (tracer := this_thread.tracer) is not None:
                site = len(self.state(builder).session.sites) - 1
                tiles, result = ((a, b), out) if return_values else ((a, b, out), None)
                tracer.resolve_product(site, (alpha, beta), tiles, result)
        return ((*names, a, b, out, alpha, beta), (), [], 0)

    def lto_dot(self, original: Callable[..., tuple[str, bytes]], *args: Any, **kwargs: Any) -> tuple[str, bytes]:
        """Registers the GEMM of ``tile_cholesky``'s adjoint. It is built together with the other functions.

        It does not opt out of MathDx, so if the module's products do, Warp builds it.
        """
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        builder = bound.arguments["builder"]
        resolved = self.settings_of(builder.options, builder) if hasattr(builder, "module") else None
        if resolved is None or resolved.policy == "off" or resolved.provider == "scalar" or resolved.own_products:
            return original(*args, **kwargs)
        problem = problem_of_call(bound.arguments)
        (name,) = self.add(builder, CHOLESKY, {Role.ADJOINT_A: problem}, roles=(Role.ADJOINT_A,))
        return str(name.label), b""

    def solver(
        self, name: str, original: Dispatch, *call: Any, options: Mapping[str, Any], builder: Any
    ) -> tuple[Any, ...]:
        """Replaces the ``lto_dispatch_func`` of a solver builtin.

        Warp's function for its native path checks the arguments, puts tiles into shared memory, and returns a zero for
        each function that a call may name. Placeholders take the place of the zeros.

        Raises:
            LockedError: The policy is ``locked``, and only libmathdx can serve the call.
            UnsupportedProblem: The settings name the provider ``own``, and no leading dimension expresses a tile.
        """
        if builder is None or options["output_arch"] is None:
            return original(*call, options, builder)
        resolved = self.settings_of(options, builder)
        if resolved.policy == "off":
            return original(*call, options, builder)
        values, template, payloads, shared = original(*call, {**options, SOLVER_OPTION: False}, builder)
        return_values = call[2]
        functions = sum(isinstance(value, int) for value in values)
        roles = (Role.FORWARD, Role.ADJOINT)[:functions]  # a third function, which Warp has for cholesky, stays 0
        function, operands = SOLVERS[name], values[functions:]
        tiles = [tile_of(tile) for tile in operands]
        own = solvers(
            function,
            [*(tiles[:1] if function == "cholesky" else tiles[:2]), tiles[-1]],
            Target(int(options["output_arch"]), int(options["block_dim"])),
            upper=bool(template and template[0]),
            in_place=not return_values,
        )
        allowed = bool(options.get(SOLVER_OPTION, True))
        provider, reason = "scalar", _without_functions(options, resolved, SOLVER_OPTION, "solver")
        if not reason:
            provider, reason = _provider(own, resolved, allowed)
        if provider == "own" and isinstance(own, Rejected):
            raise self._unsupported(builder, resolved, name, own)
        problems = {} if provider != "own" or isinstance(own, Rejected) else own
        lost = _lost_gradient(roles, problems, reason, resolved)
        if provider == "libmathdx":
            if not resolved.rules.builds:
                raise LockedError(
                    f"{resolved.named('policy')} is 'locked', and {name} in '{self.function(builder)}' needs "
                    f"libmathdx, whose builds are not cached: {reason}",
                    remedy=f"set the module option {SOLVER_OPTION}=False for Warp's scalar path",
                )
            self.add(builder, name, {}, roles=roles, scalar_reason=reason, provider="libmathdx", no_gradient=lost)
            return original(*call, options, builder)
        is_own = len(roles) == 1 and not lost
        roles = (Role.FORWARD, Role.ADJOINT) if is_own else roles
        names = self.add(
            builder, name, problems, roles=roles, scalar_reason=reason, no_gradient=lost, own_adjoint=is_own
        )
        if (tracer := this_thread.tracer) is not None:
            tracer.resolve_solver(len(self.state(builder).session.sites) - 1)
        if is_own:
            names, adjoint = names[:1], names[1]
            called = f"{name}<{str(template[0]).lower()}>" if template else name
            this_thread.adjoint.add_reverse(_adjoint(called, adjoint, operands, has_result=bool(return_values)))
        return ((*names, *values[len(names) :]), template, payloads, shared)


# ---- Warp's objects


def mentions(adjoint: Any, names: set[str]) -> bool:
    """True if a function's source refers to one of these builtins of Warp, under any alias."""
    function, builtins = find("context.Function"), find("context.builtin_functions")
    local = adjoint.assigned_name_ids()
    for node in adjoint.reference_nodes():
        if isinstance(node, ast.Attribute):
            if node.attr in names:
                return True
        elif not isinstance(node, ast.Name) or node.id in local:
            continue
        try:
            value, path = adjoint.resolve_static_expression(node, eval_types=False)
        except unless_signalled(Exception):  # Warp reports the unresolvable name later
            continue
        if value is warp and path:
            value = builtins.get(path[-1])
        if isinstance(value, function) and value.key in names:
            return True
    resolved = getattr(adjoint, "resolved_static_expressions", {}).values()
    return any(isinstance(value, function) and value.key in names for value in resolved)


def precision_of(value: object) -> Precision:
    # Warp passes an argument that is not a literal as its Var
    if value not in ("default", "tf32") or not isinstance(value, str):
        got = repr(value) if isinstance(value, str) else "a non-literal argument"
        raise ValueError(f"tile_matmul() precision must be the string literal 'default' or 'tf32', got {got}")
    return value


def tile_of(var: Any) -> TileOperand:
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
    return TileOperand(
        cast(DType, kind.dtype.__name__), (shape[0], shape[1]), (strides[0], strides[1]), layout, aligned
    )


def put_in_shared_memory(var: Any) -> None:
    var.type.storage = "shared"  # Warp reads it after it has generated the whole function


def problem_of_call(arguments: Mapping[str, Any]) -> GemmProblem:
    """Returns the problem that a call of Warp's ``build_lto_dot()`` requests.

    The call does not say how its operands are aligned. The problem promises only the alignment of an element.
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


def libmathdx_build(original: Callable[..., tuple[str, bytes]], problem: GemmProblem) -> tuple[str, bytes]:
    """Builds the function of a problem with libmathdx inside warp.so, as Warp does."""
    builder = SimpleNamespace(ltoirs={}, ltoirs_decl={})  # what build_lto_dot() uses of a ModuleBuilder
    layouts = {value: key for key, value in WARP_LAYOUTS.items()}
    operands = (problem.a, problem.b, problem.c)
    arguments: list[Any] = [problem.m, problem.n, problem.k]
    arguments += [getattr(warp, operand.dtype) for operand in operands]
    arguments += [layouts[operand.arrangement] for operand in operands]
    extra: dict[str, Any] = dict(zip(("lda", "ldb", "ldc"), problem.leading_dimensions))
    known = inspect.signature(original).parameters
    if "aligned_bases" in known:
        promised = zip(problem.alignments, problem.element_alignments)
        extra["aligned_bases"] = tuple(alignment > element for alignment, element in promised)
    if problem.precision == "tf32":
        if "precision" not in known:
            raise BuildError(f"Warp {warp.__version__} cannot build {problem.describe()}")
        extra["precision"] = "tf32"
    try:
        with _libmathdx_lock:  # Warp always calls it under a lock
            symbol, payload = original(*arguments, problem.arch, problem.threads, builder, **extra)
    except unless_signalled(RuntimeError) as error:
        raise BuildError(f"Warp's libmathdx could not build {problem.describe()}", log=str(error)) from error
    return str(symbol), bytes(payload)


def _without_functions(options: Mapping[str, Any], resolved: Settings, option: str, kind: str) -> Rejected | None:
    """Why a module cannot call functions of a kind, for which Warp has an option; None if it can."""
    if not mathdx_enabled():
        return Rejected("without_mathdx", (kind,))
    if not options.get(option, True) and not resolved.serves_opted_out:
        return Rejected("option_off", (option,))
    return None


def _target(options: Mapping[str, Any], resolved: Settings, precision: Precision) -> Target:
    reason = None
    if options["output_arch"] is not None:
        reason = _without_functions(options, resolved, GEMM_OPTION, "GEMM")
        if not reason and resolved.decides_opted_out and precision == "tf32":
            reason = Rejected("tf32_opted_out")
        for name in ("policy", "provider"):
            if not reason and getattr(resolved, name) == "scalar":
                reason = resolved.against(name, "auto")
    return Target(options["output_arch"], int(options["block_dim"]), reason)


def _adjoint(call: str, function: Any, tiles: Sequence[Any], *, has_result: bool) -> str:
    """A call of Warp's adjoint of a builtin, which does nothing if its first argument is 0.

    The adjoint's function takes the place of the forward one.
    """
    gradients = [tile.emit_adj() for tile in tiles]
    gradients += gradients[-1:] if has_result else []
    arguments = ", ".join((function.label, *(tile.emit() for tile in tiles), function.label, *gradients))
    return f"wp::adj_{call}({arguments});"


def _lost_gradient(
    roles: tuple[Role, ...], problems: Mapping[Role, SolverProblem], reason: Rejected | None, resolved: Settings
) -> Rejected | None:
    """The reason why a call has no gradient; None if it has one.

    Args:
        roles: The functions that Warp's code calls. One is the forward function, so Warp has no adjoint.
        problems: The functions of this project, if they serve the call.
        reason: The reason why they do not.
    """
    if len(roles) > 1:
        return None
    if resolved.solver_gradients == "warp":
        return Rejected("warp_has_no_gradient", (resolved.remedy("solver_gradients", "own"),))
    if not problems:
        assert reason is not None
        return reason.after("only the provider own has one: ")
    return reason_unsupported(problems[Role.ADJOINT])


def _provider(
    own: Mapping[Role, SolverProblem] | Rejected, resolved: Settings, libmathdx: bool
) -> tuple[str, Rejected | None]:
    """The provider of a call, and the reason why it is not ``own``.

    ``libmathdx`` is False if the module opts out of libmathdx.
    """
    if resolved.provider == "own":  # the engine raises the reason why it cannot build the problem, here and below
        return "own", None
    instead = "scalar"
    # cuBLASDx has no solvers, so Warp builds them as it does without warp_tiles
    if libmathdx and not {"libmathdx", "cublasdx"}.isdisjoint(resolved.providers):
        instead = "libmathdx"
    if "own" not in resolved.providers:
        layer = "provider" if resolved.provider != "auto" else "policy"
        return instead, resolved.against(layer, "auto")
    if isinstance(own, Rejected):
        return instead, own
    # without NVRTC, functions of own stand in the module's source, unless the policy makes that an error
    unsupported = reason_unsupported(own[Role.FORWARD])
    return (instead, unsupported.after("own cannot serve ")) if unsupported else ("own", None)
