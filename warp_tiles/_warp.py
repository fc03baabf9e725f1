"""The only module that touches Warp's internals: what is hooked, how, and how it is taken back.

Seven seams, all checked before the first is changed:

    tile_matmul.lto_dispatch_func   what a call in a kernel turns into
    build.build_lto_dot             the GEMM inside the adjoint of tile_cholesky
    Adjoint.build                   which function a call belongs to
    ModuleBuilder.codegen           the finished source: the plan is made from it
    ModuleBuilder.get_link_inputs   the builds start here, and run outside Warp's lock
    build.build_cuda                compile and link
    ModuleHasher                    modules that contain a product get a hash of their own
"""

from __future__ import annotations

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
from warp_tiles.dispatch import Target, products
from warp_tiles.engine import Engine
from warp_tiles.errors import BuildError, PlanError, SeamError
from warp_tiles.planning import DECLARATIONS, ModulePlan, Session, resolve
from warp_tiles.toolchain import Version
from warp_tiles.translate import (
    WARP_LAYOUTS,
    BuilderState,
    function_uses,
    mentions,
    precision_of,
    tile_of,
    variant_of_call,
)
from warp_tiles.variant import GemmVariant, Role

if TYPE_CHECKING:
    from warp_tiles.module_build import ModuleBuild

SUPPORTED_VERSIONS = ((1, 17), (1, 19))
MATMUL, CHOLESKY = "tile_matmul", "tile_cholesky"

# what must exist below warp._src, and the parameters that it must take
_REQUIRED = {
    "build.build_cuda": "cu_path arch output_path ltoirs fatbins",
    "build.build_lto_dot": "M N K adtype bdtype cdtype alayout blayout clayout arch num_threads builder lda ldb ldc",
    "codegen.Adjoint.build": "builder",
    "codegen.Adjoint.reference_nodes": "",
    "codegen.Adjoint.resolve_static_expression": "root_node eval_types",
    "codegen.Var": "label type requires_grad constant prefix",
    "codegen.get_arg_value": "",
    "codegen._codegen_lock": "",
    "context.ModuleBuilder": "module options hasher",
    "context.ModuleBuilder.codegen": "device",
    "context.ModuleBuilder.get_link_inputs": "",
    "context.ModuleHasher": "kernels options",
    "context.ModuleHasher.hash_adjoint": "adj",
    "context.Module.mark_modified": "",
    "context.Module.resolve_options": "",
    "context.Function": "lto_dispatch_func",
    "context.builtin_functions": "",
    "context.user_modules": "",
    "context.init": "",
    "logger.log_warning": "",
    "types.is_tile": "",
}


def find(path: str) -> Any:
    """The object at ``warp._src.<path>``.

    Raises:
        SeamError: This Warp does not have it.
    """
    here: Any = getattr(warp, "_src", None)
    for name in path.split("."):
        here = getattr(here, name, None)
        if here is None:
            raise _missing(f"warp._src.{path}")
    return here


def _missing(what: str) -> SeamError:
    low, high = (".".join(map(str, version)) for version in SUPPORTED_VERSIONS)
    return SeamError(
        f"Warp {warp.__version__} has no {what}, which warp_tiles hooks into",
        remedy=f"use warp-lang {low} to {high}, or a newer warp-tiles",
    )


def check_seams() -> list[str]:
    """Names of all seams, each of which was found.

    Raises:
        SeamError: One is missing or takes other parameters; Warp's version and the name are given.
    """
    for path, parameters in _REQUIRED.items():
        target = find(path)
        known = inspect.signature(target).parameters if parameters else {}
        for name in parameters.split():
            if name not in known:
                raise _missing(f"parameter '{name}' of warp._src.{path}")
    if MATMUL not in find("context.builtin_functions"):
        raise _missing(f"builtin '{MATMUL}'")
    return [f"warp._src.{path}" for path in _REQUIRED]


def toolkit_version() -> Version | None:
    """CUDA version of Warp's compiler and linker; None where Warp has none."""
    find("context.init")()
    version = getattr(find("context.runtime"), "toolkit_version", None)
    return (int(version[0]), int(version[1])) if version else None


def driver_version() -> Version | None:
    """CUDA version of the driver; None where there is none."""
    find("context.init")()
    version = getattr(find("context.runtime"), "driver_version", None)
    return (int(version[0]), int(version[1])) if version else None


def mathdx_enabled() -> bool:
    """Whether this Warp can link GEMM functions at all."""
    find("context.init")()
    return bool(find("context.runtime").core.wp_is_mathdx_enabled())


def _choice(options: Mapping[str, Any]) -> settings.ProviderChoice:
    """The provider in force for a module of these options."""
    return settings.provider_choice(options.get(settings.MODULE_OPTION))


def _deciding_settings() -> tuple[object, ...]:
    """What decides about code; a provider that code names counts even if it is the default, as it beats options."""
    now = settings.current()
    return settings.provider_choice(), now.linker, now.cache_dir, now.loop_sums, now.wide_moves


class _LinkInputs(list):  # type: ignore[type-arg]
    """Warp's list of LTO-IR, with the build that belongs to it, on its way to build_cuda()."""

    def __init__(self, inputs: list[bytes], build: ModuleBuild) -> None:
        super().__init__(inputs)
        self.build = build


_libmathdx_lock = threading.Lock()


def _as_function(hook: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A bound method as a function that shows the original's signature."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs)

    return function


class _StandInBuilder:
    """What build_lto_dot() needs of a ModuleBuilder."""

    def __init__(self) -> None:
        self.ltoirs: dict[str, bytes] = {}
        self.ltoirs_decl: dict[str, str] = {}


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
        self._building = threading.local()
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
                if overload.lto_dispatch_func is not None:
                    self._replace(overload, "lto_dispatch_func", self._dispatch_matmul, key="")
            for name, hook in (("build_lto_dot", self._build_lto_dot), ("build_cuda", self._build_cuda)):
                self._replace(find("build"), name, _as_function(hook, find(f"build.{name}")))
            self._wrap(find("codegen.Adjoint"), "build", self._adjoint_build)
            self._wrap(find("context.ModuleBuilder"), "codegen", self._codegen)
            self._wrap(find("context.ModuleBuilder"), "get_link_inputs", self._get_link_inputs)
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
        while self._restore:
            self._restore.pop()()
        rehash_modules()

    def _replace(self, owner: Any, name: str, value: Any, key: str | None = None) -> None:
        original = getattr(owner, name)
        self._originals[name if key is None else f"{name}{len(self._originals)}"] = original
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

    def _adjoint_build(self, original: Callable[..., Any], adjoint: Any, *args: Any, **kwargs: Any) -> Any:
        stack = self._building.__dict__.setdefault("stack", [])
        stack.append(adjoint)
        try:
            return original(adjoint, *args, **kwargs)
        finally:
            stack.pop()

    def _state(self, builder: Any) -> BuilderState:
        state = self._sessions.get(builder)
        if state is None:
            options = builder.options
            session = Session(
                builder.module.name, options.get("output_arch"), int(options["block_dim"]), choice=_choice(options)
            )
            state = self._sessions[builder] = BuilderState(session)
        return state

    def _current_adjoint(self) -> Any:
        stack = self._building.__dict__.get("stack")
        return stack[-1] if stack else None

    def _target(self, options: Mapping[str, Any]) -> Target:
        reason = ""
        if options["output_arch"] is not None:
            if not mathdx_enabled():
                reason = "this Warp was built without MathDx, and its kernels can call no GEMM function"
            elif not options.get("enable_mathdx_gemm", True):
                reason = "the option enable_mathdx_gemm is off"
            elif _choice(options).name == "scalar":
                reason = f"{_choice(options).by} is 'scalar'"
        return Target(options["output_arch"], int(options["block_dim"]), reason)

    def _dispatch_matmul(
        self,
        arg_types: Mapping[str, Any],
        return_type: Any,
        return_values: list[Any],
        arg_values: Mapping[str, Any],
        options: Mapping[str, Any],
        builder: Any,
    ) -> tuple[Any, ...]:
        """Stands in for Warp's ``tile_matmul_lto_dispatch_func``: same checks, placeholders for names."""
        a, b, alpha = arg_values["a"], arg_values["b"], arg_values["alpha"]
        # a fresh result is not read; an accumulator is, unless beta is zero
        out, beta = (return_values[0], 0.0) if return_values else (arg_values["out"], arg_values["beta"])
        if not find("types.is_tile")(out.type):
            raise TypeError(f"tile_matmul() 'out' argument must be a tile, got {out!r}")
        # Warp 1.19 knows ``precision``; older versions compute in the operands' own
        asked = find("codegen.get_arg_value")(arg_values["precision"]) if "precision" in arg_values else "default"
        precision = precision_of(asked)
        found = products(tile_of(a), tile_of(b), tile_of(out), precision=precision, target=self._target(options))
        for operand in (a, b, out):
            operand.type.storage = "shared"
        names: tuple[Any, ...] = (0, 0, 0)
        if builder is not None:
            if getattr(builder, "target", "cuda") is not None:
                for warning in found.warnings:
                    find("logger.log_warning")(warning)
            names = self._add_site(builder, MATMUL, found.variants, found.scalar_reason, (a, b))
        return ((*names, a, b, out, alpha, beta), (), [], 0)

    def _add_site(
        self,
        builder: Any,
        call: str,
        variants: Mapping[Role, GemmVariant],
        scalar_reason: str,
        operands: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        adjoint = self._current_adjoint()
        # whether the adjoints, which bfloat16 can forbid, are called is known when the source is finished
        bfloat16 = any(operand.type.dtype.__name__ == "bfloat16" for operand in operands)
        state = self._state(builder)
        site = state.session.add(
            call, state.label(adjoint), variants, scalar_reason=scalar_reason, bfloat16_operands=bfloat16
        )
        if variants:
            builder.ltoirs_decl["warp_tiles"] = DECLARATIONS
        var = find("codegen.Var")
        return tuple(var(site.placeholder(role), str, False, True, False) for role in Role)

    def _build_lto_dot(self, *args: Any, **kwargs: Any) -> tuple[str, bytes]:
        """The GEMM of tile_cholesky's adjoint: noted, and built with the others."""
        original = self._originals["build_lto_dot"]
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        builder = bound.arguments["builder"]
        if not hasattr(builder, "module") or _choice(builder.options).name == "scalar":
            return cast("tuple[str, bytes]", original(*args, **kwargs))
        variant = variant_of_call(bound.arguments)
        names = self._add_site(builder, CHOLESKY, {Role.ADJOINT_A: variant}, "", ())
        return str(names[1].label), b""

    def _codegen(self, original: Callable[..., str], builder: Any, device: str) -> str:
        source = original(builder, device)
        state = self._sessions.get(builder)
        if state is None or not state.session.sites:
            return source
        self._refuse_stale_hash(builder)
        kernels = [kernel.key for kernel in builder.kernels]
        plan = resolve(state.session, source, kernels, list(function_uses(builder, state)))
        plan = self.engine.annotate(plan)
        self.engine.recorder.add_plan(plan)
        from warp_tiles.module_build import ModuleBuild

        state.build = ModuleBuild(self.engine, state.session, source, plan)
        return state.build.text()

    def _refuse_stale_hash(self, builder: Any) -> None:
        """A module is never built under other settings than those in its hash."""
        hasher = builder.module.hashers.get(builder.options["block_dim"])
        if getattr(hasher, "warp_tiles_salt", None) not in (None, self.engine.salt(_choice(builder.options))):
            builder.module.mark_modified()
            raise PlanError(
                f"the settings changed while module {builder.module.name} was being built",
                "change them with warp_tiles.configure() or override(), between launches; then launch again",
            )

    def _get_link_inputs(self, original: Callable[..., Any], builder: Any) -> tuple[list[bytes], list[bytes]]:
        ltoirs, fatbins = original(builder)
        state = self._sessions.get(builder)
        if state is None or state.build is None or not state.build.plan.needed:
            return ltoirs, fatbins
        state.build.start()
        return _LinkInputs(ltoirs, state.build), fatbins

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

    # ---- hashing

    def _hasher_init(self, original: Callable[..., None], hasher: Any, kernels: Any, options: Any) -> None:
        hasher.warp_tiles_option = options.get(settings.MODULE_OPTION)
        hasher.warp_tiles_names = {MATMUL, CHOLESKY} if options.get("enable_backward") else {MATMUL}
        original(hasher, kernels, options)

    def _hash_adjoint(self, original: Callable[..., bytes], hasher: Any, adjoint: Any) -> bytes:
        digest = original(hasher, adjoint)
        if mentions(adjoint, getattr(hasher, "warp_tiles_names", {MATMUL}), warp, find("context.builtin_functions")):
            choice = settings.provider_choice(getattr(hasher, "warp_tiles_option", None))
            hasher.warp_tiles_salt = salt = self.engine.salt(choice)
            digest = hashlib.sha256(digest + salt.encode("utf-8")).digest()
            hasher.warp_tiles_has_products = True
        return digest


def libmathdx_build(original: Callable[..., tuple[str, bytes]], variant: GemmVariant) -> tuple[str, bytes]:
    """Build a variant as Warp would: with libmathdx, inside warp.so.

    Args:
        original: Warp's ``build_lto_dot``.
        variant: What to build.

    Raises:
        BuildError: libmathdx refused the configuration.
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
        with _libmathdx_lock:  # Warp itself calls it under a lock alone
            symbol, payload = original(*arguments, variant.arch, variant.threads, builder, **extra)
    except RuntimeError as error:
        raise BuildError(f"Warp's libmathdx could not build {variant.describe()}", log=str(error)) from error
    return str(symbol), bytes(payload)


def rehash_modules() -> None:
    """Have every module hashed again at its next use."""
    for module in list(find("context.user_modules").values()):
        module.mark_modified()


def plan_module(hooks: Hooks, module: Any, arch: int | None, block_dim: int | None = None) -> ModulePlan | None:
    """Generate a module's code for a target and return its plan; nothing is built.

    Returns:
        None if the module multiplies no tiles.
    """
    context = find("context")
    with find("codegen._codegen_lock"):
        threads = block_dim if block_dim is not None else module.options["block_dim"]
        module.get_module_hash(threads)  # resolves what wp.static() defers
        options = module.resolve_options(warp.config, block_dim=threads) | {"output_arch": arch}
        target = "cpu" if arch is None else "cuda"
        known = inspect.signature(context.ModuleBuilder).parameters
        extra = {"target": target} if "target" in known else {}
        # with the module's own hasher the names of kernels stay those of what is loaded
        builder = context.ModuleBuilder(module, options, hasher=module.hashers[threads], **extra)
        builder.codegen(target)
    state = hooks._sessions.get(builder)
    return state.build.plan if state is not None and state.build is not None else None


def plan_loaded_modules(hooks: Hooks) -> None:
    """Plan the modules that Warp loaded from its own kernel cache, for which no code was generated."""
    for module in user_modules().values():
        for execution in tuple(module.execs.values()):
            arch = None if execution.device.is_cpu else execution.compile_arch
            hasher = module.hashers.get(execution.block_dim)
            known = hooks.engine.recorder.has_plan(module.name, arch, execution.block_dim)
            if getattr(hasher, "warp_tiles_has_products", False) and not known:
                plan_module(hooks, module, arch, execution.block_dim)


def user_modules() -> dict[str, Any]:
    """Warp's modules by name."""
    return dict(find("context.user_modules"))


def compile_module(module: Any, arch: int, block_dim: int, folder: Path) -> Path:
    """Compile a module ahead of time.

    Args:
        module: Warp's module.
        arch: Compute capability, e.g. ``90``.
        block_dim: Threads per block.
        folder: Where the cubin, its metadata and its source go.

    Returns:
        Path of the cubin.
    """
    module.get_module_hash(block_dim)
    options = module.resolve_options(warp.config, block_dim=block_dim)
    name = module._get_compile_output_name(None, output_arch=arch, use_ptx=False, block_dim=block_dim)
    module._compile(None, folder, output_name=name, output_arch=arch, use_ptx=False, options=options)
    return folder / str(name)
