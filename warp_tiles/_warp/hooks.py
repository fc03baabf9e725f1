"""What is hooked into Warp, how, and how it is taken back.

Ten seams, all checked before the first is changed:

    tile_matmul.lto_dispatch_func   what a call in a kernel turns into
    build.build_lto_dot             the GEMM inside the adjoint of tile_cholesky
    Adjoint.build                   which function a call belongs to
    codegen_func_reverse            whose adjoint is generated
    ModuleBuilder.codegen           the finished source: the plan is made from it
    ModuleBuilder.get_link_inputs   the builds start here, and run outside Warp's lock
    build.build_cuda                compile and link
    ModuleHasher                    modules that contain a product get a hash of their own
    Module.load, Module._compile    a module that is to be hashed again is loaded again

The trace of the code generator has seams of its own (:mod:`warp_tiles._warp.tracing`). A Warp that lacks one of
them is served all the same, and its loops stay as Warp generates them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import warp

from warp_tiles import settings
from warp_tiles._warp.libmathdx import libmathdx_build
from warp_tiles._warp.modules import rehash_modules
from warp_tiles._warp.reload import LoadAgain, Reloads
from warp_tiles._warp.seams import CHOLESKY, MATMUL, check_seams, find, mathdx_enabled
from warp_tiles._warp.tracing import Tracer
from warp_tiles._warp.translate import (
    mentions,
    precision_of,
    put_in_shared_memory,
    tile_of,
    variant_of_call,
)
from warp_tiles.build.engine import Engine
from warp_tiles.errors import PlanError, UnsupportedVariant
from warp_tiles.gemm.dispatch import Target, products
from warp_tiles.gemm.variant import GemmVariant, Role
from warp_tiles.plan.planning import Session

if TYPE_CHECKING:
    from warp_tiles._warp.generation import BuilderState
    from warp_tiles._warp.module_recorder import ModuleRecorder
    from warp_tiles.build.module_build import ModuleBuild


_UNDECIDING = {"cache_max_bytes", "cache_shared", "jobs", "progress", "tune_budget_s"}  # they leave code as it is


def _deciding_settings() -> tuple[object, ...]:
    """What decides about code; a value that code names counts even if it is the default, as it beats options."""
    now = settings.current()
    return tuple((getattr(now, name), now.layer(name)) for name in settings.defaults() if name not in _UNDECIDING)


class _LinkInputs(list):  # type: ignore[type-arg]
    """Warp's list of LTO-IR, with the build that belongs to it, on its way to build_cuda()."""

    def __init__(self, inputs: list[bytes], build: ModuleBuild, module: Any) -> None:
        super().__init__(inputs)
        self.build = build
        self.module = module


def _as_function(hook: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A bound method as a function that shows the original's signature."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs)

    return function


class Hooks:
    """Warp with warp_tiles in it. One instance at a time is installed.

    Args:
        engine: Plans and builds.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._restore: list[Callable[[], None]] = []
        self._originals: dict[str, Any] = {}
        self._deciding = _deciding_settings()
        self._tracer = Tracer()
        self._generating = threading.local()
        self.reloads = Reloads(engine)
        self._sessions: weakref.WeakKeyDictionary[Any, BuilderState] = weakref.WeakKeyDictionary()

    # ---- install and take back

    def install(self) -> None:
        """Put the hooks in.

        Raises:
            SeamError: Warp is not as expected; nothing was changed.
        """
        check_seams()
        try:
            matmul = find("context.builtin_functions")[MATMUL]
            for overload in (matmul, *matmul.overloads):
                original = overload.lto_dispatch_func
                if original is not None:
                    self._replace(overload, "lto_dispatch_func", functools.partial(self._dispatch_matmul, original))
            for name, hook in (("build_lto_dot", self._build_lto_dot), ("build_cuda", self._build_cuda)):
                self._replace(find("build"), name, _as_function(hook, find(f"build.{name}")))
            self._wrap(find("codegen.Adjoint"), "build", self._adjoint_build)
            self._replace(
                find("codegen"),
                "codegen_func_reverse",
                _as_function(self._codegen_func_reverse, find("codegen.codegen_func_reverse")),
            )
            self._tracer.install(self._wrap)
            self._wrap(find("context.ModuleBuilder"), "codegen", self._codegen)
            self._wrap(find("context.ModuleBuilder"), "get_link_inputs", self._get_link_inputs)
            module = find("context.Module")
            self._replace(module, "load", self.reloads.wrapped_load(module.load))
            self._wrap(module, "_compile", self.reloads.compile)
            self._wrap(find("context.ModuleHasher"), "__init__", self._hasher_init)
            self._wrap(find("context.ModuleHasher"), "hash_adjoint", self._hash_adjoint)
            if mathdx_enabled():
                self.engine.use_libmathdx(functools.partial(libmathdx_build, self._originals["build_lto_dot"]))
            rehash_modules()
        except BaseException:
            self.uninstall()
            raise

    def settings_changed(self) -> None:
        """Have modules hashed again if what decides about their code changed."""
        deciding = _deciding_settings()
        if deciding != self._deciding:
            self._deciding = deciding
            rehash_modules()

    def uninstall(self) -> None:
        """Give Warp back as it was."""
        self.reloads.reset()
        while self._restore:
            self._restore.pop()()
        rehash_modules()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        original = getattr(owner, name)
        self._originals[name] = original
        self._restore.append(lambda: setattr(owner, name, original))
        setattr(owner, name, value)

    def _wrap(self, owner: type, name: str, hook: Callable[..., Any]) -> None:
        """Replace a method by ``hook(original, self, ...)``."""
        original = owner.__dict__[name]

        @functools.wraps(original)
        def method(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return hook(original, instance, *args, **kwargs)

        self._restore.append(lambda: setattr(owner, name, original))
        setattr(owner, name, method)

    # ---- code generation

    def _adjoint_build(
        self, original: Callable[..., Any], adjoint: Any, builder: Any, *args: Any, **kwargs: Any
    ) -> Any:
        with self._tracer.function(adjoint, self._module_recorder(builder)):
            return original(adjoint, builder, *args, **kwargs)

    def _module_recorder(self, builder: Any) -> ModuleRecorder | None:
        """Records the module that a builder generates; None where no loop can be served."""
        if self._tracer.obstacle or builder is None or builder.options.get("output_arch") is None:
            return None
        hasher = builder.module.hashers.get(int(builder.options["block_dim"]))
        if not getattr(hasher, "warp_tiles_has_products", True):
            return None
        state = self._state(builder)
        return state.recorder if state.session.settings.policy != "off" else None

    def _codegen_func_reverse(self, adjoint: Any, *args: Any, **kwargs: Any) -> Any:
        state = getattr(self._generating, "state", None)
        if state is not None:
            state.recorder.reversed.add(id(adjoint))
        return self._originals["codegen_func_reverse"](adjoint, *args, **kwargs)

    def _state(self, builder: Any) -> BuilderState:
        state = self._sessions.get(builder)
        if state is None:
            options = builder.options
            name = builder.module.name
            resolved = self.reloads.settings_of(options, builder.module)
            session = Session(name, options.get("output_arch"), int(options["block_dim"]), settings=resolved)
            from warp_tiles._warp.generation import BuilderState

            state = self._sessions[builder] = BuilderState(session)
        return state

    def _settings(self, options: Mapping[str, Any], builder: Any = None) -> settings.Settings:
        """The settings of the module that is being generated; of its options where there is no builder."""
        return settings.current(options) if builder is None else self._state(builder).session.settings

    def _target(self, options: Mapping[str, Any], resolved: settings.Settings) -> Target:
        reason = ""
        if options["output_arch"] is not None:
            if not mathdx_enabled():
                reason = "this Warp was built without MathDx, and its kernels can call no GEMM function"
            elif not options.get("enable_mathdx_gemm", True):
                reason = "the option enable_mathdx_gemm is off"
            elif resolved.policy == "scalar":
                reason = f"{resolved.named('policy')} is 'scalar'"
            elif resolved.provider == "scalar":
                reason = f"{resolved.named('provider')} is 'scalar'"
        return Target(options["output_arch"], int(options["block_dim"]), reason)

    def _dispatch_matmul(
        self,
        original: Callable[..., tuple[Any, ...]],
        arg_types: Mapping[str, Any],
        return_type: Any,
        return_values: list[Any],
        arg_values: Mapping[str, Any],
        options: Mapping[str, Any],
        builder: Any,
    ) -> tuple[Any, ...]:
        """Stands in for Warp's ``tile_matmul_lto_dispatch_func``: same checks, placeholders for names."""
        resolved = self._settings(options, builder)
        if resolved.policy == "off":
            return original(arg_types, return_type, return_values, arg_values, options, builder)
        a, b, alpha = arg_values["a"], arg_values["b"], arg_values["alpha"]
        # a fresh result is not read; an accumulator is, unless beta is zero
        out, beta = (return_values[0], 0.0) if return_values else (arg_values["out"], arg_values["beta"])
        if not find("types.is_tile")(out.type):
            raise TypeError(f"tile_matmul() 'out' argument must be a tile, got {out!r}")
        # Warp 1.19 knows ``precision``; older versions compute in the operands' own
        asked = find("codegen.get_arg_value")(arg_values["precision"]) if "precision" in arg_values else "default"
        precision = precision_of(asked)
        found = products(
            tile_of(a), tile_of(b), tile_of(out), precision=precision, target=self._target(options, resolved)
        )
        for operand in (a, b, out):
            put_in_shared_memory(operand)
        names: tuple[Any, ...] = (0, 0, 0)
        if builder is not None:
            if found.obstacle and resolved.provider not in ("auto", "scalar"):
                where = self._state(builder).label(self._tracer.adjoint)
                raise UnsupportedVariant(
                    f"In '{where}': {resolved.provider} cannot serve the product, {found.obstacle}",
                    remedy=f"copy it to a tile of its own, or {resolved.remedy('provider', 'auto')}",
                )
            if getattr(builder, "target", "cuda") is not None:
                for warning in found.warnings:
                    find("logger.log_warning")(warning)
            names = self._add_site(builder, MATMUL, found.variants, found.scalar_reason, (a, b))
            if (recorder := self._tracer.recorder()) is not None:
                site = len(self._state(builder).session.sites) - 1
                tiles, result = ((a, b), out) if return_values else ((a, b, out), None)
                recorder.multiplies(site, (alpha, beta), tiles, result)
        return ((*names, a, b, out, alpha, beta), (), [], 0)

    def _add_site(
        self,
        builder: Any,
        call: str,
        variants: Mapping[Role, GemmVariant],
        scalar_reason: str,
        operands: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        adjoint = self._tracer.adjoint
        # whether the adjoints, which bfloat16 can forbid, are called is known when the source is finished
        bfloat16 = any(operand.type.dtype.__name__ == "bfloat16" for operand in operands)
        state = self._state(builder)
        site = state.session.add(
            call, state.label(adjoint), variants, scalar_reason=scalar_reason, bfloat16_operands=bfloat16
        )
        state.adjoint_of_site[site.index] = id(adjoint)
        if not variants and self._tracer.recorder() is None:
            return (0, 0, 0)
        state.declare(builder)
        var = find("codegen.Var")
        return tuple(var(site.placeholder(role), str, False, True, False) for role in Role)

    def _build_lto_dot(self, *args: Any, **kwargs: Any) -> tuple[str, bytes]:
        """The GEMM of tile_cholesky's adjoint: noted, and built with the others."""
        original = self._originals["build_lto_dot"]
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        builder = bound.arguments["builder"]
        resolved = self._settings(builder.options, builder) if hasattr(builder, "module") else None
        if resolved is None or resolved.policy == "off" or resolved.provider == "scalar":
            return cast("tuple[str, bytes]", original(*args, **kwargs))
        variant = variant_of_call(bound.arguments)
        names = self._add_site(builder, CHOLESKY, {Role.ADJOINT_A: variant}, "", ())
        return str(names[1].label), b""

    def _codegen(self, original: Callable[..., str], builder: Any, device: str) -> str:
        state = self._sessions.get(builder)
        if state is None:
            return original(builder, device)
        self._generating.state = state
        try:
            if state.recorder.recorders:  # hooks have names in the source, which the prelude has to define
                state.declare(builder)
            source = original(builder, device)
        finally:
            self._generating.state = None
        if not state.session.sites and not state.recorder.recorders:
            return source
        self._refuse_stale_hash(builder)
        from warp_tiles._warp.generation import finished
        from warp_tiles.build.module_build import ModuleBuild, with_loops

        generated, bare = finished(builder, state, source)
        if bare.arch is not None:
            bare = dataclasses.replace(bare, loops_reason=self._tracer.obstacle)
        prepared = functools.partial(ModuleBuild, self.engine, generated)
        plan = with_loops(self.engine.annotate(bare), generated)
        self.reloads.before_build(builder.module, builder.options, bare, plan, prepared)
        self.engine.recorder.add_plan(plan)
        state.build = prepared(plan)
        return state.build.text()

    def _refuse_stale_hash(self, builder: Any) -> None:
        """A module is never built under other settings than those in its hash."""
        hasher = builder.module.hashers.get(builder.options["block_dim"])
        salt = getattr(hasher, "warp_tiles_salt", None)
        if salt is not None and salt != self.engine.salt(self._state(builder).session.settings):
            if not self.reloads.is_planning:
                raise LoadAgain
            builder.module.mark_modified()
            raise PlanError(
                f"the settings changed while module {builder.module.name} was being planned", "plan it again"
            )

    def _get_link_inputs(self, original: Callable[..., Any], builder: Any) -> tuple[list[bytes], list[bytes]]:
        ltoirs, fatbins = original(builder)
        state = self._sessions.get(builder)
        if state is None or state.build is None or not state.build.plan.needed:
            return ltoirs, fatbins
        state.build.start()
        return _LinkInputs(ltoirs, state.build, builder.module), fatbins

    def _build_cuda(self, cu_path: str, arch: int, output_path: str, **keywords: Any) -> None:
        original = self._originals["build_cuda"]
        inputs = keywords.get("ltoirs")
        if not isinstance(inputs, _LinkInputs):
            original(cu_path, arch, output_path, **keywords)
            return

        def warp_build(ltoirs: list[bytes]) -> None:
            original(cu_path, arch, output_path, **{**keywords, "ltoirs": ltoirs})

        inputs.build.finish(
            Path(cu_path),
            Path(output_path),
            arch,
            native_dir=str(Path(find("build.warp_home")) / "native"),
            warp_inputs=list(inputs),
            keywords=keywords,
            warp_build=warp_build,
        )
        self.reloads.fast_path_built(inputs.module, inputs.build)

    # ---- hashing

    def _hasher_init(self, original: Callable[..., None], hasher: Any, kernels: Any, options: Any) -> None:
        """Hash a module; one with products also over what its code depends on here.

        Names of kernels stay Warp's: the module's hash alone tells builds apart.
        """
        module = next((kernel.module for kernel in kernels), None)
        hashed = options
        if settings.from_options(options, module.name if module else "") and (
            self.reloads.settings_of(options, module).policy != "off"
        ):
            hashed = {name: value for name, value in options.items() if not name.startswith(settings.OPTION_PREFIX)}
        hasher.warp_tiles_names = {MATMUL, CHOLESKY} if options.get("enable_backward") else {MATMUL}
        hasher.warp_tiles_has_products = False
        original(hasher, kernels, hashed)
        if not hasher.warp_tiles_has_products:
            return
        resolved = self.reloads.settings_of(options, module)
        if not resolved.providers:  # Warp is left alone
            hasher.warp_tiles_has_products = False
            return
        hasher.warp_tiles_salt = salt = self.engine.salt(resolved)
        hasher.hash = hashlib.sha256(hasher.hash + salt.encode("utf-8")).digest()

    def _hash_adjoint(self, original: Callable[..., bytes], hasher: Any, adjoint: Any) -> bytes:
        names = getattr(hasher, "warp_tiles_names", {MATMUL})
        if mentions(adjoint, names, warp, find("context.builtin_functions")):
            hasher.warp_tiles_has_products = True
        return original(hasher, adjoint)
