"""Installs warp_tiles in Warp, and removes it.

The hooks replace these members of Warp. :meth:`Hooks.install` checks that all exist before it changes the first:

    tile_matmul.lto_dispatch_func   generates a call of tile_matmul (:mod:`warp_tiles._warp.sites`)
    tile_cholesky.lto_dispatch_func, and those of the other solvers: generate a call (:mod:`warp_tiles._warp.sites`)
    build.build_lto_dot             builds the GEMM in Warp's own adjoint of tile_cholesky, if libmathdx serves the call
    Adjoint.build                   shows which function contains a call
    codegen_func_reverse            shows which functions get an adjoint
    ModuleBuilder.codegen           returns the finished source, from which the plan is made
    ModuleBuilder.get_link_inputs   starts the builds, which run outside Warp's lock
    Module._run_codegen             generates a module; one that its start key finds is not generated
    build.build_cuda                compiles and links
    ModuleHasher                    hashes a module; one that contains a product or a solver gets another hash for a GPU
    Module.load, Module._compile    load a module; one whose hash is discarded is loaded again

The trace of the code generator needs more members (``internals.TRACED``). If a Warp lacks one of them, its
products and solvers are still served, and its loops stay as Warp generates them. The hook of
``Tape.record_launch`` (:mod:`warp_tiles._warp.tapes`) is optional too. Without it, tapes run all adjoint kernels.
Without ``Module._run_codegen``, every module is generated.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import warp

from warp_tiles._warp import modules as warp_modules
from warp_tiles._warp import sites as call_sites
from warp_tiles._warp.internals import (
    GEMM_OPTION,
    LTO_DOT,
    MATMUL,
    SOLVER_OPTION,
    TRACED,
    check_internals,
    find,
    mathdx_enabled,
    require,
    unknown_products,
    untested,
)
from warp_tiles._warp.lookups import ModuleLookups, gpus_here, in_kernel_cache, loaded_programs
from warp_tiles._warp.reload import (
    ListedModules,
    LoadAgain,
    ModuleHash,
    NotCompiled,
    Reloads,
    check_prefetch,
    this_thread,
)
from warp_tiles._warp.tapes import Gradients, Tapes
from warp_tiles.build.engine import Engine
from warp_tiles.errors import PlanError, UnsupportedWarpError, raise_if_signalled
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.settings import OPTION_PREFIX, OWN, SETTINGS, Settings, current, from_options, keep_start_list
from warp_tiles.solver.problem import SOLVERS
from warp_tiles.util.warn import log, warn

if TYPE_CHECKING:
    from warp_tiles._warp.generation import BuilderState
    from warp_tiles.build.ahead import ProgramStart
    from warp_tiles.build.module_build import KnownModuleBuild, ModuleBuild
    from warp_tiles.build.warp_module import WarpModuleBuild
    from warp_tiles.plan.planner import GeneratedModule
    from warp_tiles.plan.planning import ModulePlan


def _code_settings() -> tuple[object, ...]:
    """The settings that affect generated code, each with its layer.

    The layer counts too: a value set in Python overrides module options, even if it equals the default.
    """
    now = current()
    named = ((getattr(now, name), now.layer(name)) for name, item in SETTINGS.items() if item.affects != "nothing")
    return now.start_list, *named


def _served_builtins(options: Any, resolved: Settings) -> set[str]:
    """Builtins that are planned here. Modules that mention no other keep Warp's hash and Warp's cached builds."""
    opted_out = set() if resolved.serves_opted_out else _opted_out(options)
    return {MATMUL, *unknown_products(), *SOLVERS} - opted_out


def _opted_out(options: Any) -> set[str]:
    """Builtins whose libraries a module opts out of. By themselves, they take Warp's scalar path."""
    names = {GEMM_OPTION: {MATMUL, *unknown_products()}, SOLVER_OPTION: set(SOLVERS)}
    return set().union(*(builtins for option, builtins in names.items() if options.get(option) is False))


def _trace(name: str, original: Any, adjoint: Any, *args: Any, **named: Any) -> Any:
    """Calls a method of Warp's code generator, through the tracer if the function is traced."""
    tracer = this_thread.tracer if this_thread.adjoint is adjoint else None
    if tracer is None:
        return original(adjoint, *args, **named)
    return getattr(tracer, name)(functools.partial(original, adjoint), *args, **named)


class _LinkInputs(list):  # type: ignore[type-arg]
    """Warp's list of LTO-IR, which carries the pending build to build_cuda()."""

    def __init__(self, inputs: list[bytes], build: ModuleBuild | WarpModuleBuild | KnownModuleBuild) -> None:
        super().__init__(inputs)
        self.build = build


class Hooks:
    """The hooks of warp_tiles in Warp. At most one instance is installed at a time.

    Args:
        gradients: See :class:`warp_tiles._warp.tapes.Tapes`.

    Attributes:
        program_start: The program's start with its list; None without one.
        start_is_fixed: True if ``enable(start=)`` changes nothing, because the command or the parent process decides
            which start list is kept, or that none is.
    """

    def __init__(self, engine: Engine, gradients: Gradients) -> None:
        self.engine = engine
        self.program_start: ProgramStart | None = None
        self.start_is_fixed = False
        self.reloads = Reloads(engine)
        self._rejection = ""  # names the part of Warp without which loops cannot be traced
        self._tapes = Tapes(self.plan_module, self.mentions, gradients)
        self.sites = call_sites.CallSites(self.reloads)
        self._lookups = ModuleLookups(engine, self.reloads)
        self._linking: set[str] = set()  # builtins whose generation builds LTO-IR
        self._code_settings = _code_settings()
        self._is_untested = untested() != ""
        self._restore = ExitStack()

    # ---- install and uninstall

    def install(self) -> None:
        """Installs the hooks. Raises an UnsupportedWarpError, and changes nothing, if this Warp lacks a member."""
        check_internals()
        if self._is_untested:
            warn(untested())
        try:
            build, codegen, context = find("build"), find("codegen"), find("context")
            build_lto_dot = build.build_lto_dot
            for name, builtin in context.builtin_functions.items():
                if any(overload.lto_dispatch_func for overload in (builtin, *getattr(builtin, "overloads", ()))):
                    self._linking.add(name)
            dispatchers: dict[str, Callable[..., Any]] = {MATMUL: self.sites.matmul}
            dispatchers |= {name: functools.partial(self.sites.solver, name) for name in SOLVERS}
            for name, dispatcher in dispatchers.items():
                builtin = context.builtin_functions[name]
                for overload in dict.fromkeys((builtin, *builtin.overloads)):
                    if (original := overload.lto_dispatch_func) is not None:
                        self._replace(overload, "lto_dispatch_func", functools.partial(dispatcher, original))
            if unknown := set(inspect.signature(build_lto_dot).parameters).difference(LTO_DOT):
                names = ", ".join(sorted(unknown))
                warn(f"libmathdx and the adjoint of tile_cholesky are left to Warp: build_lto_dot() takes {names}")
            else:
                self._wrap(build, "build_lto_dot", self.sites.lto_dot)
            self._wrap(build, "build_cuda", self._build_cuda)
            self._wrap(codegen.Adjoint, "build", self._adjoint_build)
            self._wrap(codegen, "codegen_func_reverse", self._codegen_func_reverse)
            self._install_recording()
            self._tapes.install(self._wrap)
            for module in (codegen, find("builtins")):
                if hasattr(module, "log_warning"):  # Warp 1.19
                    self._wrap(module, "log_warning", self._log_warning)
            self._wrap(context.ModuleBuilder, "codegen", self._codegen)
            self._wrap(context.ModuleBuilder, "get_link_inputs", self._get_link_inputs)
            if hasattr(context.Module, "_run_codegen"):
                self._wrap(context.Module, "_run_codegen", self._run_codegen)
            self._replace(context.Module, "load", self.reloads.wrapped_load(context.Module.load))
            self._wrap(context.Module, "_compile", self.reloads.compile)
            self._wrap(context.ModuleHasher, "__init__", self._hasher_init)
            self._wrap(context.ModuleHasher, "hash_adjoint", self._hash_adjoint)
            if mathdx_enabled() and not unknown:
                self.engine.use_libmathdx(functools.partial(call_sites.libmathdx_build, build_lto_dot))
            warp_modules.hash_all_after_enable()
        except BaseException:
            self.uninstall()
            raise

    def _install_recording(self) -> None:
        """Installs the hooks of the trace of loops, unless this Warp lacks a part that they need."""
        try:
            require(TRACED)
        except UnsupportedWarpError as error:
            self._rejection = error.message
            log.warning("loops of products are left as Warp generates them: %s", self._rejection)
            return
        for owner, _, name in (path.rpartition(".") for path in TRACED):
            if owner == "codegen.Adjoint":
                self._wrap(find(owner), name, functools.partial(_trace, name))

    def uninstall(self) -> None:
        """Restores Warp. A module that a thread is loading meanwhile keeps its hash."""
        self.reloads.reset()
        self._restore.close()
        warp_modules.hash_all_again()
        warp_modules.outdated.clear()

    def begin_start(self, file: Path) -> None:
        """Compiles ahead what a start list names, and keeps its list in place of the one before."""
        from warp_tiles.build.ahead import ProgramStart

        if (before := self.program_start) is None:
            keep_start_list(kept=True)
            self._restore.callback(keep_start_list, kept=False)
        version, generate = str(warp.__version__), ListedModules().generate
        start = ProgramStart(self.engine, file, version, in_kernel_cache, generate, gpus_here())
        self.program_start = self.engine.program_start = start
        start.begin(before)

    def end_start(self) -> None:
        """Writes the start list, if there is one, as long as modules have their hashes."""
        if (start := self.program_start) is not None:
            loaded = loaded_programs()
            start.close(lambda module: (module.program, module.block_dim, module.arch) in loaded)

    def prefetch(self, modules: Iterable[Any], device: Any, block_dim: int | None) -> int:
        """Compiles modules ahead of their launches (:func:`warp_tiles.prefetch`). Returns how many are queued."""
        target = warp.get_device(device)
        blocks = getattr(warp.config, "enable_cpu_blocks", False)  # Warp 1.19
        threads = 1 if target.is_cpu and not (blocks and block_dim) else block_dim
        fresh = (module for module in modules if not module.execs)
        return self.reloads.prefetches.start((m, target, threads or int(m.options["block_dim"])) for m in fresh)

    def settings_changed(self) -> None:
        """Discards the hashes of all modules if a setting changed that affects their code."""
        now = _code_settings()
        if now != self._code_settings:
            self._code_settings = now
            warp_modules.hash_all_again()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._restore.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def _wrap(self, owner: Any, name: str, hook: Callable[..., Any]) -> None:
        """Replaces a method or function by ``hook(original, *args, **kwargs)``."""
        original = vars(owner)[name]

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return hook(original, *args, **kwargs)

        self._replace(owner, name, wrapper)

    # ---- code generation

    def _adjoint_build(
        self, original: Callable[..., Any], adjoint: Any, builder: Any, *args: Any, **kwargs: Any
    ) -> Any:
        module = self._traced_module(builder)
        tracer = None if module is None else module.begin(adjoint)
        with this_thread(adjoint=adjoint, tracer=tracer):
            built = original(adjoint, builder, *args, **kwargs)
            if tracer is not None:
                tracer.end_function()
            return built

    def _traced_module(self, builder: Any) -> BuilderState | None:
        """The state of the module that a builder generates; None if the module is not traced."""
        if self._rejection or builder is None or builder.options.get("output_arch") is None:
            return None
        hasher = builder.module.hashers.get(int(builder.options["block_dim"]))
        if not getattr(hasher, "warp_tiles_has_calls", True):
            return None
        state = self.sites.state(builder)
        resolved = state.session.settings
        if resolved.policy == "off":
            return None
        if not this_thread.planning:
            self.engine.start_compilers(resolved, str(builder.module.name))
        return state

    def _log_warning(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if this_thread.ahead:  # the program may never launch what the warning is about
            raise NotCompiled
        original(*args, **kwargs)

    def _codegen_func_reverse(self, original: Callable[..., Any], adjoint: Any, *args: Any, **kwargs: Any) -> Any:
        if (state := this_thread.state) is not None:
            state.reversed.add(id(adjoint))
        return original(adjoint, *args, **kwargs)

    def _codegen(self, original: Callable[..., str], builder: Any, device: str) -> str:
        source = self._generate(original, builder, device)
        check_prefetch(builder.module, int(builder.options["block_dim"]))
        return source

    def _generate(self, original: Callable[..., str], builder: Any, device: str) -> str:
        state = self.sites.existing_state(builder)
        if state is None:
            return original(builder, device)
        from warp_tiles._warp.generation import finish_module, link_facts, reserve_shared

        source = self._source(original, builder, device, state)
        if not state.session.sites and not state.tracers:
            return source
        self._refuse_stale_hash(builder)
        from warp_tiles.build.module_build import ModuleBuild
        from warp_tiles.plan.planner import plan_module

        arch, resolved, reason = state.session.arch, state.session.settings, ""
        generated = finish_module(builder, state, source)
        if arch is not None:
            reason = self.engine.build_context(resolved).why_warp_links(arch, *link_facts(builder))
            generated = dataclasses.replace(generated, loops_reason=self._rejection, linker_reason=reason)
        generated = dataclasses.replace(generated, records=self.engine.measurements(resolved))
        choose = self.engine.chooser(resolved, reason)
        plan = plan_module(generated, choose, functools.partial(reserve_shared, builder, state))
        self.reloads.before_build(plan)
        if not this_thread.planning:  # a report is about what was built and loaded
            self.engine.log.add_plan(plan)
        state.build = ModuleBuild(self.engine, generated, plan)
        return state.build.text

    def _source(self, original: Callable[..., str], builder: Any, device: str, state: BuilderState) -> str:
        from warp_tiles._warp.generation import declare_prelude

        if state.tracers:  # the source contains hooks, which the prelude has to define
            declare_prelude(builder)
        with this_thread(state=state):
            return original(builder, device)

    def generated(self, module: Any, options: Any, hasher: Any) -> GeneratedModule:
        """Generates a module for a GPU under the default settings. It is not planned."""
        from warp_tiles._warp.generation import finish_module

        hasher.warp_tiles_settings, hasher.warp_tiles_has_calls = Settings(), True
        with this_thread(planning=True):
            builder = warp_modules.module_builder(module, options, hasher)
            state = self.sites.state(builder)
            original = find("context.ModuleBuilder").codegen.__wrapped__
            return finish_module(builder, state, self._source(original, builder, "cuda", state))

    def _probe(self) -> None:
        """Checks an untested Warp before the first module with a product is hashed. Warns of what is left to Warp."""
        if not self._is_untested or not mathdx_enabled():
            return
        self._is_untested = False
        from warp_tiles._warp import probe

        try:
            made = probe.generated(self)
            product = probe.difference(probe.PRODUCT, probe.product_of(made))
            loops = self._rejection or probe.difference(probe.TRACE, probe.trace_of(made))
        except BaseException as error:
            self._is_untested = True  # after an interrupt, the next module is probed for
            if not isinstance(error, Exception):
                raise
            raise_if_signalled(error)
            self._is_untested = False
            product, loops = f"{type(error).__name__}: {error}", ""
        if product:
            self.reloads.is_left_to_warp = True
            warn(f"products and solvers are left to Warp {warp.__version__}, whose code for a probe is new: {product}")
        elif loops and not self._rejection:
            self._rejection = f"Warp {warp.__version__} generates new code for a probe: {loops}"
            warn(f"loops of products are left as Warp generates them: {self._rejection}")

    def _refuse_stale_hash(self, builder: Any) -> None:
        """Raises LoadAgain, or a PlanError of a plan, if the settings differ from those in the module's hash."""
        hasher = builder.module.hashers.get(builder.options["block_dim"])
        if hasher is None and this_thread.loading:  # a changed setting has discarded it
            raise LoadAgain
        hashed = getattr(getattr(hasher, "get_hash", None), "choices", None)
        if hashed is not None and hashed != self.engine.choices(self.sites.state(builder).session.settings):
            if not this_thread.planning:
                raise LoadAgain
            builder.module.mark_modified()
            raise PlanError(
                f"the settings changed while module {builder.module.name} was being planned", "plan it again"
            )

    def _get_link_inputs(self, original: Callable[..., Any], builder: Any) -> tuple[list[bytes], list[bytes]]:
        ltoirs, fatbins = original(builder)
        state = self.sites.existing_state(builder)
        if state is None or state.build is None or not (state.build.plan.needed or state.build.plan.has_own_code):
            build = self._lookups.build(builder.module, builder.options, this_thread.start, builder.build_meta)
            return ltoirs if build is None else _LinkInputs(ltoirs, build), fatbins
        resolved = state.session.settings
        lookup = self._lookups.unchanged(this_thread.start, builder.module, builder.options, resolved)
        state.build.start(lookup, builder.build_meta())
        return _LinkInputs(ltoirs, state.build), fatbins

    def _run_codegen(
        self, original: Callable[..., Any], module: Any, options: dict[str, Any], is_cpu: bool
    ) -> tuple[str, str, dict[str, Any], list[bytes], list[bytes]]:
        start = Rejected("cpu") if is_cpu else self._lookups.look_up(module, options)
        if start is not None and not isinstance(start, Rejected) and (found := start.found) is not None:
            check_prefetch(module, int(options["block_dim"]))
            if (build := self._lookups.build(module, options, start, lambda: found.meta)) is not None:
                return found.source.decode("utf-8"), "cu", dict(found.meta), _LinkInputs([], build), []
            start = Rejected("changed_since_hash")  # by another thread
        with this_thread(start=start):
            return original(module, options, is_cpu)  # type: ignore[no-any-return]

    def _build_cuda(
        self, original: Callable[..., None], cu_path: str, arch: int, output_path: str, **keywords: Any
    ) -> None:
        from warp_tiles.compile.module import BuildCall, ModuleSource

        inputs, source, output = keywords.get("ltoirs"), Path(cu_path), Path(output_path)
        native_dir = str(Path(find("build.warp_home")) / "native")
        module = ModuleSource(source.name, arch, output.suffix[1:], native_dir, keywords)
        if this_thread.ahead:
            from warp_tiles.build.ahead import generated

            ahead = None  # it is left to Warp, so its launch decides again
            if isinstance(inputs, _LinkInputs):
                ahead = generated(self.engine, inputs.build, source, module)
            shutil.rmtree(source.parent, ignore_errors=True)  # what Warp has written for its compiler
            raise NotCompiled(ahead)
        if not isinstance(inputs, _LinkInputs):
            original(cu_path, arch, output_path, **keywords)
            return

        def warp_build(ltoirs: list[bytes]) -> None:
            original(cu_path, arch, output_path, **{**keywords, "ltoirs": ltoirs})

        inputs.build.finish(BuildCall(source, output, module, list(inputs), warp_build))

    # ---- plans

    def plan_module(self, module: Any, arch: int | None, block_dim: int | None = None) -> ModulePlan | None:
        """Generates a module's code for a target, and returns its plan. Nothing is built.

        None if the module contains no product and no solver, or if the settings leave it to Warp, whose code generation
        would build its functions. Raises a PlanError if there is no such target.
        """
        warp_modules.require_target(arch, block_dim)
        warp_modules.hash_outdated(module)
        with find("codegen._codegen_lock"), this_thread(planning=True):
            threads = block_dim if block_dim is not None else module.options["block_dim"]
            if not self.reloads.settings_of({**module.options, "block_dim": threads}, module).providers:
                return None
            module.get_module_hash(threads)  # evaluates deferred wp.static() expressions
            hasher = module.hashers[threads]
            # if an option of the module leaves one kind of call to Warp, only the generated code shows the others
            if not hasher.warp_tiles_has_calls and hasher.warp_tiles_names >= {MATMUL, *SOLVERS}:
                return None
            options = module.resolve_options(warp.config, block_dim=threads) | {"output_arch": arch}
            target = "cpu" if arch is None else "cuda"
            # with the module's own hasher the kernels have the same names as in the loaded module
            builder = warp_modules.module_builder(module, options, hasher, target)
            builder.codegen(target)
        state = self.sites.existing_state(builder)
        return state.build.plan if state is not None and state.build is not None else None

    def uninstantiated(self, module: Any) -> tuple[str, ...]:
        """Keys of the generic kernels that contain products or solvers, and that have no instance yet."""
        served = _served_builtins(module.options, self.reloads.settings_of(module.options, module))
        return tuple(
            kernel.key
            for kernel in module.kernels.values()  # a module's hash leaves such kernels out
            if kernel.is_generic and not kernel.overloads and self.mentions(kernel, served)
        )

    def mentions(self, kernel: Any, names: set[str]) -> bool:
        """True if a kernel, or a function that it calls, mentions one of some builtins."""
        hasher = find("context.ModuleHasher")((), {})
        hasher.warp_tiles_names = names
        hasher.hash_adjoint(kernel.adj)
        return bool(hasher.warp_tiles_has_calls)

    def plan_loaded_modules(self) -> None:
        """Plans the modules that Warp loaded from its kernel cache. Their code was not generated in this process."""
        for module in warp_modules.user_modules().values():
            for execution in tuple(module.execs.values()):
                arch = None if execution.device.is_cpu else execution.compile_arch
                hasher = module.hashers.get(execution.block_dim)
                known = self.engine.log.has_plan(module.name, arch, execution.block_dim)
                if not getattr(hasher, "warp_tiles_has_calls", False) or known:
                    continue
                if (plan := self.plan_module(module, arch, execution.block_dim)) is not None:
                    self.engine.log.add_plan(plan)

    # ---- hashing

    def _hasher_init(self, original: Callable[..., None], hasher: Any, kernels: Any, options: Any) -> None:
        """Hashes a module. If it has products or solvers, its hash for a GPU covers all that affects its code here.

        The names of kernels stay Warp's, so only the module's hash distinguishes builds.
        """
        module = next((kernel.module for kernel in kernels), None)
        resolved, hashed = self.reloads.settings_of(options, module), options
        if from_options(options, module.name if module else "") and resolved.policy != "off":
            hashed = {name: value for name, value in options.items() if not name.startswith(OPTION_PREFIX)}
        hasher.warp_tiles_names = _served_builtins(options, resolved)
        hasher.warp_tiles_linking = self._linking - _opted_out(options)
        hasher.warp_tiles_has_calls = hasher.warp_tiles_links = False
        hasher.warp_tiles_deferring = []
        original(hasher, kernels, hashed)
        hasher.warp_tiles_hash = hasher.hash
        if not hasher.warp_tiles_has_calls:
            is_looked_up = ModuleLookups.serves(resolved) or (
                resolved.store_trust != OWN and module is not None and self._lookups.is_looked_up(module, resolved)
            )
            if is_looked_up and (trust := self.engine.foreign_trust(resolved)):
                hasher.hash = hashlib.sha256(hasher.hash + trust.encode("utf-8")).digest()
            return
        if resolved.providers:
            self._probe()
            resolved = self.reloads.settings_of(options, module)
        if not resolved.providers:  # Warp builds the module alone
            hasher.warp_tiles_has_calls = False
            return
        hasher.warp_tiles_settings = resolved  # a change while the module is built counts from its next load on
        hasher.get_hash = ModuleHash(self.engine, module, hasher.hash, resolved)

    def _hash_adjoint(self, original: Callable[..., bytes], hasher: Any, adjoint: Any) -> bytes:
        names = getattr(hasher, "warp_tiles_names", {MATMUL})
        if call_sites.mentions(adjoint, names):
            hasher.warp_tiles_has_calls = True
        if this_thread.ahead:  # _generated() decides whether such a module is left to its launch
            hasher.warp_tiles_links |= call_sites.mentions(adjoint, hasher.warp_tiles_linking)
            if adjoint.has_unresolved_static_expressions:
                hasher.warp_tiles_deferring.append(adjoint)
        return original(hasher, adjoint)
