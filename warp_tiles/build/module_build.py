"""The build of one module, from its generated source to a cubin or PTX.

Linked modules may be kept in a cache: a module whose inputs are known needs neither its functions nor a compiler. Its
key covers everything that decides about the cubin: the generated source, the options, Warp's headers, the compiler, the
linker, and the keys of the functions. It is the same on every machine with the same packages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warp_tiles.build.context import BuildContext
from warp_tiles.build.engine import Engine, with_function
from warp_tiles.build.log import COMPILE, LINK, WAIT, WARP_LINK, WRITE, Artifact, ModuleLog, Phases, now_s
from warp_tiles.build.start_list import Linked, StartModule
from warp_tiles.build.warp_module import Start, WarpOutput, start_key_of
from warp_tiles.codegen.prelude import finished_source
from warp_tiles.compile.compiler import Compiled, CompileRequest, LinkRequest, linker_flags
from warp_tiles.compile.module import BuildCall, ModuleSource, WarpCompileRequest, module_flags, reason_without_key
from warp_tiles.compile.pool import result_of
from warp_tiles.compile.toolchain import AGAIN
from warp_tiles.errors import (
    BuildError,
    LinkError,
    LockedError,
    RefusedWorkerError,
    ToolchainError,
    WarpTilesError,
    WorkerError,
    unless_signalled,
)
from warp_tiles.gemm.problem import GemmProblem, Role
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.plan.planner import Choose, GeneratedModule, plan_module
from warp_tiles.plan.planning import ModulePlan, PlannedFunction
from warp_tiles.settings import current
from warp_tiles.solver.problem import Problem
from warp_tiles.store.key import CacheKey
from warp_tiles.store.packages import package_of
from warp_tiles.util.files import write_output
from warp_tiles.util.threads import wait_result
from warp_tiles.util.warn import log, warn

if TYPE_CHECKING:
    from warp_tiles.store.cache import BuildLease

#: Of a content key. Former versions kept the binary alone under keys of the kind ``linked module``.
LINKED_MODULE = "linked module and its source"


class ModuleBuild:
    """The build of a planned module. It starts when Warp's code generation has ended."""

    def __init__(self, engine: Engine, generated: GeneratedModule, plan: ModulePlan) -> None:
        self.plan = plan
        self._engine = engine
        self._generated = generated
        self._futures: Mapping[Problem, Future[Artifact]] = {}
        self._started = now_s()
        self._phases = Phases()
        self._lookup: Start | Rejected | None = None
        self._meta: dict[str, Any] = {}
        self._settings = plan.settings
        self._context = engine.build_context(plan.settings)

    @property
    def text(self) -> str:
        """The source that the plan asks for. Raises a ToolchainError if the device sources are missing."""
        return finished_source(self._generated.source, self.plan.code)

    def start(self, lookup: Start | Rejected | None = None, meta: Mapping[str, Any] | None = None) -> None:
        """Start the functions without waiting for them, unless the linked module itself may be cached.

        ``lookup`` is that of the module's start key, which found nothing, or why it has none; ``meta`` is Warp's
        metadata.
        """
        self._started, self._phases = now_s(), Phases()
        self._lookup, self._meta = lookup, dict(meta or {})
        for memory in self.plan.memory:
            if memory.failure and memory.direction == "backward":  # a program may never ask for gradients
                log.info("%s", memory.failure)
        for text in self._warnings:
            warn(text)
        may_be_known = self._settings.keeps_modules or self._is_looked_up  # the whole module
        if self.plan.linker_reason or not may_be_known:
            self._start_functions()

    def _start_functions(self) -> None:
        if self._futures:
            return
        if self._settings.rules.builds:
            problems = [v.problem for v in self.plan.needed if v.problem is not None]
            self._futures = self._engine.start(problems, self._settings, self.plan.linker_reason)
        else:
            self._futures = self._engine.start_cached(self.plan)

    def finish(self, call: BuildCall) -> ModuleLog:
        """Wait for the functions, then compile and link the module.

        Raises a BuildError if a function could not be built and may not fall back, and a LinkError if the module could
        not be compiled or linked, and the settings forbid Warp's link.
        """
        module = self._with_suffix(call.module)
        call, foreign = replace(call, module=module), foreign_inputs(call.inputs, module.keywords)
        linked_here = self.plan.has_own_code and not self._warp_link_reason(module, foreign)
        kept = linked_here and self._settings.keeps_modules
        text = call.source.read_text("utf-8")
        plan, progress, wanted = self.plan, self._engine.progress, self._output(text)
        looks = kept or (linked_here and self._is_looked_up)
        counted = progress.module(plan.name, module.arch, plan.block_dim, self._settings.progress)
        with counted, self._lease(module, text, looks=looks, keeps=kept) as lease:
            cached = wanted.equal(WarpOutput.of(lease.found)) if lease is not None else None
            if lease is not None and lease.found is not None and cached is not None:
                package = package_of(lease.found)
                module_log = replace(self._found(cached, call.output), module_key=lease.found.key, package=package)
            else:
                if self.plan.has_own_code and self._settings.bundle is not None:
                    raise LockedError(
                        f"module {plan.name} for sm_{plan.arch} with {plan.block_dim} threads per block is not in the "
                        f"bundle {self._settings.bundle}, or its source differs",
                        remedy=f"{AGAIN}, from the script as it runs here, with --arch {plan.arch}",
                    )
                began = now_s()
                self._start_functions()
                module_log = self._built(call, self._compile(call) if linked_here else None, foreign)
                as_planned = module_log.plan is plan and module_log.linker == "warp_tiles"
                if lease is not None and as_planned and self._context.stores_modules:
                    info = {"module": self.plan.name, "build_seconds": round(now_s() - began, 3)}
                    cached = replace(wanted, binary=call.output.read_bytes())
                    module_log = replace(module_log, module_key=lease.keep(cached.pack(), info).key)
        if kept and cached is not None and (start := self.unbound) is not None:
            start.bind(cached, plan.name, module_log.module_key)
        if module_log.module_key:
            _note(self._engine, plan, module, wanted, module_log.module_key)
        self._engine.log.add_module(module_log, planned=plan)
        if not module_log.found:
            self._engine.note_missed(plan)
        log.info("%s", module_log.summary())
        for loop in module_log.plan.loops:
            log.info("%s", loop.summary())
        if not self._settings.rules.builds and not module_log.found:
            log.warning(
                "module %s was linked in %.1f s: the policy is 'locked' and all of its LTO-IR was cached, but "
                "it is not in Warp's kernel cache; ship that cache too (wp.config.kernel_cache_dir, WARP_CACHE_PATH)",
                self.plan.name,
                module_log.seconds,
            )
        return module_log

    @property
    def _warnings(self) -> list[str]:
        """What a launch warns of."""
        plan = self.plan
        memory = (kernel.failure for kernel in plan.memory if kernel.direction == "forward")
        texts = (*memory, *plan.stuck_failures, *(loop.cost for loop in plan.loops))
        return list(dict.fromkeys(filter(None, texts)))

    @property
    def unbound(self) -> Start | None:
        """The lookup of a start key that found nothing, and that this process may bind."""
        start = self._lookup
        if not isinstance(start, Start) or start.found is not None or not self._context.stores_modules:
            return None
        return replace(start, warnings=len(self._warnings))

    def _output(self, text: str) -> WarpOutput:
        plan = self.plan
        functions = tuple(dict.fromkeys(v.problem for v in plan.needed if v.problem and v.provider != "scalar"))
        linked = asdict(Linked(functions, plan.arch_suffix, plan.register_limit))
        target = f".sm_{plan.arch}{plan.arch_suffix}.cubin"
        return WarpOutput(b"", text.encode("utf-8"), target, self._meta, linked=linked)

    def ahead(self, source_path: Path, module: ModuleSource) -> StartModule | None:
        """What is linked ahead, before anything is built; None if only the module's launch may."""
        module, keywords = self._with_suffix(module), module.keywords
        may_build = self._settings.rules.builds and self._settings.bundle is None
        if not (may_build and self.plan.has_own_code):
            return None
        if self._warp_link_reason(module, foreign_inputs(keywords.get("ltoirs", ()), keywords)):
            return None
        return start_module(self.plan, module, self._output(source_path.read_text("utf-8")))

    def _with_suffix(self, module: ModuleSource) -> ModuleSource:
        is_cubin = module.output == "cubin"  # whose loops may need the suffix
        return replace(module, suffix=self.plan.arch_suffix) if is_cubin else module

    @contextmanager
    def _lease(self, module: ModuleSource, text: str, *, looks: bool, keeps: bool) -> Iterator[BuildLease | None]:
        """Look the linked module up. Yields None if it has no key, or if it was not found and is not kept."""
        started, functions = now_s(), keys_of_functions(self.plan.needed)
        key = None
        # the source calls the planned functions, and includes nothing that no key covers
        if looks and all(functions.values()) and not reason_without_key(module, text):
            key = linked_key(self._context, module, text, functions, self.plan.register_limit)
        if key is None:
            yield None
            return
        with self._context.leased_module(key, self._phases, started, keeps=keeps) as lease:
            yield lease if keeps or lease.found is not None else None

    def _found(self, cached: WarpOutput, output: Path) -> ModuleLog:
        """Write a module that was linked before. Its functions are neither built nor fetched."""
        with self._phases.measured(WRITE):
            write_output(output, cached.binary)
        artifacts = [
            Artifact(v.problem, v.symbol, b"", v.provider, v.key, True, 0.0, tile_config=v.tile_config)
            for v in self.plan.needed
            if v.problem is not None and v.provider != "scalar"
        ]
        return self._module_log(self.plan, artifacts, "", output, found=True)

    def _built(self, call: BuildCall, early: Future[Compiled] | None, foreign: list[str]) -> ModuleLog:
        """Link the module from its functions, here or with Warp's own build. See :meth:`finish`."""
        with self._phases.measured(WAIT):
            artifacts = [wait_result(future) for future in self._futures.values()]
        self._refuse_scalar(artifacts)
        if any(artifact.provider == "libmathdx" for artifact in artifacts):
            foreign.append("libmathdx")  # from Warp's newer compiler
        plan, module = self._replanned(artifacts, call.module), call.module
        reason = self._warp_link_reason(module, foreign) if plan.has_own_code else "no function was built for it"
        plan, artifacts = self._linkable(plan, artifacts, module, reason)
        if plan is not self.plan:
            self._write(plan, call.source)
            early = None
        if not reason:
            reason = self._link(plan, call, early, payloads_of(artifacts))
            if reason:
                plan, artifacts = self._linkable(plan, artifacts, module, reason)
                self._write(plan, call.source)
        if reason:
            with self._phases.measured(WARP_LINK):
                plan, artifacts = self._link_by_warp(plan, artifacts, call)
        return self._module_log(plan, artifacts, reason, call.output)

    def _link_by_warp(
        self, plan: ModulePlan, artifacts: list[Artifact], call: BuildCall
    ) -> tuple[ModulePlan, list[Artifact]]:
        """Warp's own build. If it fails, the module is built again with less of the code that is not Warp's."""
        try:
            call.build([*call.inputs, *payloads_of(artifacts)])
            return plan, artifacts
        except unless_signalled(Exception) as error:  # the type that Warp raises
            if not plan.has_own_code:
                raise
            failure = error
        generated = replace(self._generated, session=self._generated.session.without_async_copies())
        scalar = [replace(artifact, symbol="", payload=b"", provider="scalar", key="") for artifact in artifacts]
        for built, instead in ((artifacts, "without async copies"), (scalar, "with Warp's scalar products")):
            choose, reason = choose_built(plan, built), plan.linker_reason
            try:
                less = plan_module(generated, choose, before=self.plan, linker_reason=reason, without_wgmma=True)
                self._write(less, call.source)
                self._refuse_scalar(built)
                call.build([*call.inputs, *payloads_of(built)])
            except unless_signalled(Exception):
                continue
            warn(
                f"Warp could not link module {plan.name}, and links it {instead}: {failure}. If this stays, set "
                "async_copies to 'off' for the module, which saves the first build"
            )
            return less, built
        raise failure

    def _replanned(self, artifacts: Sequence[Artifact], module: ModuleSource, linker_reason: str = "") -> ModulePlan:
        """The plan of what was built: a new one, if something differs from the plan."""
        plan, choose = self.plan, choose_built(self.plan, artifacts)
        same = all(choose(planned) is planned for planned in plan.needed)
        without_wgmma = bool(plan.arch_suffix) and (bool(linker_reason) or module.output != "cubin")
        if same and not without_wgmma and (plan.linker_reason or not linker_reason):
            return plan
        return plan_module(
            self._generated, choose, before=plan, linker_reason=linker_reason, without_wgmma=without_wgmma
        )

    def _write(self, plan: ModulePlan, source: Path) -> None:
        write_output(source, finished_source(self._generated.source, plan.code).encode("utf-8"))

    def _module_log(
        self, plan: ModulePlan, artifacts: Sequence[Artifact], reason: str, output: Path, *, found: bool = False
    ) -> ModuleLog:
        return ModuleLog(
            plan,
            [artifact.without_payload() for artifact in artifacts],
            "warp" if reason else "warp_tiles",
            reason,
            output.name,
            os.path.getsize(output),
            now_s() - self._started,
            started_at_s=self._started,
            phases=self._phases.found,
            found=found,
            start_key=start_key_of(self._lookup),
        )

    def _warp_link_reason(self, module: ModuleSource, foreign: Sequence[str]) -> str:
        reason = self._context.why_warp_links(module.arch, module.keywords, foreign)
        reason = reason or self._context.unreadable_ptx_reason(module.output)
        if reason and self._settings.linker == "own":
            raise LinkError(
                f"module {self.plan.name} has to be linked by Warp: {reason}", remedy="set linker to 'auto'"
            )
        return reason

    @property
    def _is_looked_up(self) -> bool:
        return self._context.is_looked_up(self.plan.name)

    def _compile(self, call: BuildCall) -> Future[Compiled]:
        request = request_of(self._context, call.module, call.source.read_text("utf-8"), self.plan.name)
        return self._context.submit(request)

    def _link(
        self, plan: ModulePlan, call: BuildCall, early: Future[Compiled] | None, payloads: Sequence[bytes]
    ) -> str:
        """Link the module. Returns the reason for leaving the link to Warp, or an empty text.

        Raises:
            WorkerError: Compiler processes died twice. Warp does not link then, because its larger cubin would stay in
                its kernel cache under the hash of this module.
            LinkError, ToolchainError: The link failed, and the settings forbid Warp's link.
        """

        def link(compiled: Future[Compiled]) -> None:
            module, own = call.module, self._phases.of_process(COMPILE, result_of(compiled))
            registers = plan.register_limit if module.output == "cubin" else None
            request = LinkRequest(module.name, (own.payload, *payloads), module.target, module.output, registers)
            linked = self._phases.of_process(LINK, result_of(self._context.submit(request)))
            write_output(call.output, linked.payload)

        try:
            try:
                link(early or self._compile(call))
            except RefusedWorkerError:
                raise
            except WorkerError:  # a compiler process died
                link(self._compile(call))
        except WarpTilesError as error:
            if self._settings.linker == "own" or isinstance(error, WorkerError):
                raise
            warn(
                f"{error.message}; Warp links module {self.plan.name} itself, into a larger file. "
                f"{error.log.strip()[:500]}"
            )
            return error.message
        return ""

    def _linkable(
        self, plan: ModulePlan, artifacts: list[Artifact], module: ModuleSource, reason: str
    ) -> tuple[ModulePlan, list[Artifact]]:
        """The plan and the functions for the linker: in the source if Warp links (``reason``) and cannot read them."""
        by_nvrtc = [artifact for artifact in artifacts if artifact.payload and artifact.provider != "libmathdx"]
        if by_nvrtc and (problem := replace(self._context, linker_reason=reason).unlinkable_reason):
            if fixed := next((artifact for artifact in by_nvrtc if artifact.provider != "own"), None):
                raise LinkError(
                    f"module {self.plan.name} cannot be linked with {fixed.problem.describe()}, built by "
                    f"{fixed.provider}: {problem}",
                    remedy="install an NVRTC that is not newer than Warp's CUDA, or set the provider to 'libmathdx'",
                )
            artifacts = [
                replace(artifact, payload=b"", key="", in_source=True) if artifact.provider == "own" else artifact
                for artifact in artifacts
            ]
        return (self._replanned(artifacts, module, reason) if plan.has_own_code else plan), artifacts

    def _refuse_scalar(self, artifacts: Sequence[Artifact]) -> None:
        """Refuse a product that takes a missing or inaccurate scalar path, as it does if it lacks one function."""
        unbuilt = {artifact.problem: artifact for artifact in artifacts if not artifact.symbol}
        requested = {artifact.problem for artifact in artifacts}
        for site in self._generated.session.sites:
            adjoint = site.problems[Role.ADJOINT] if site.own_adjoint else None
            if adjoint is not None and adjoint in unbuilt:
                raise BuildError(
                    f"in '{site.function}' {adjoint.describe()} could not be built, and Warp has no gradient of "
                    f"{site.call}",
                    remedy="set solver_gradients to 'warp', or enable_backward=False",
                    log="\n".join(unbuilt[adjoint].warnings),
                )
            products = [problem for problem in site.problems.values() if isinstance(problem, GemmProblem)]
            missing = next((problem for problem in products if problem in unbuilt), None)
            if missing is None:
                continue
            log = "\n".join(unbuilt[missing].warnings)
            if site.call == "tile_cholesky":
                raise BuildError(
                    f"the adjoint of tile_cholesky needs {missing.describe()}, which no provider could build",
                    remedy="set enable_backward=False, or the module option enable_mathdx_solver=False",
                    log=log,
                )
            if any(problem in requested and problem.c.dtype == "bfloat16" for problem in products):
                raise BuildError(
                    f"in '{site.function}' {missing.describe()} could not be built, and the scalar path of "
                    "tile_matmul would accumulate in bfloat16",
                    remedy="set the provider to mma to see the reason, or use float32 tiles",
                    log=log,
                )


# ---- what was built


def choose_built(plan: ModulePlan, artifacts: Iterable[Artifact]) -> Choose:
    """Chooses what was built for a plan: the planned function itself, or what took its place, or the scalar path."""
    built = {artifact.problem: artifact for artifact in artifacts}
    planned_as = {(planned.problem, planned.role, planned.no_gradient): planned for planned in plan.functions}

    def choose(planned: PlannedFunction) -> PlannedFunction:
        before = planned_as.get((planned.problem, planned.role, planned.no_gradient), planned)
        artifact = built.get(planned.problem) if planned.problem is not None else None
        # a fallback can have the same name, and so the same source
        fields = "provider", "symbol", "key", "tile_config", "in_source"
        built_as = {name: getattr(artifact, name) for name in fields} if artifact is not None else {}
        if artifact is not None and all(getattr(before, name) == value for name, value in built_as.items()):
            return before
        if artifact is None or not artifact.symbol:
            reason = f"{planned.reason}; on Warp's scalar path, because nothing was built"
            return replace(planned, provider="scalar", reason=reason)
        where = "in the module's source" if artifact.in_source else f"built by {artifact.provider}"
        reason = f"{planned.reason}; {where} in place of the function that was planned"
        return with_function(replace(planned, reason=reason, choice=before.choice, **built_as))

    return choose


def payloads_of(artifacts: Sequence[Artifact]) -> list[bytes]:
    """The LTO-IR of each function once, sorted by the functions' names."""
    return list({a.symbol: a.payload for a in sorted(artifacts, key=lambda a: a.symbol) if a.payload}.values())


# ---- a module that its start key finds


class KnownModuleBuild:
    """The build of a module with products or solvers that its start key has found: its linked binary is written."""

    unbound = None  # the key that has found it

    def __init__(self, engine: Engine, plan: ModulePlan, start: Start, known: WarpOutput) -> None:
        self.plan = plan
        self._engine, self._start, self._known, self._phases = engine, start, known, Phases(start.steps)

    def ahead(self, source_path: Path, module: ModuleSource) -> StartModule | None:
        """What a start list has of it; None if the list may not have it."""
        return start_module(self.plan, module, self._known)

    def finish(self, call: BuildCall) -> None:
        began, known, plan = self._phases.started_at_s(), self._known, self.plan
        if known.warnings:
            some = f"{known.warnings} warnings" if known.warnings > 1 else "a warning"
            warn(f"module {plan.name} was built with {some} about its launches: `warp-tiles plan SCRIPT` has the text")
        with self._phases.measured(WRITE):
            write_output(call.output, known.binary)
        _note(self._engine, plan, call.module, known, self._start.content_key)
        self._engine.log.add_module(
            ModuleLog(
                plan, (), "warp_tiles", "", call.output.name, len(known.binary), now_s() - began,
                module_key=self._start.content_key, found=True, started_at_s=began, phases=self._phases.found,
                package=self._start.package, start_key="found",
            )
        )  # fmt: skip


# ---- a linked module, from its plan or from a start list


def start_module(plan: ModulePlan, module: ModuleSource, output: WarpOutput) -> StartModule | None:
    """What a start list has of a linked module. None if no key covers it, or if it has settings of its own."""
    now, own = current(), (plan.settings.affecting_code(), plan.settings.providers)
    if reason_without_key(module, output.source.decode("utf-8")) or own != (now.affecting_code(), now.providers):
        return None
    try:
        linked = Linked.from_json(json.loads(json.dumps(output.linked)))
    except (ValueError, RecursionError):  # others may write the entry that was found
        return None
    request = WarpCompileRequest.of(replace(module, suffix=""), output.source)
    return StartModule.of(plan.name, plan.block_dim, request, output.meta, linked)


def _note(engine: Engine, plan: ModulePlan, module: ModuleSource, output: WarpOutput, key: str) -> None:
    """Tell the start of the program of a linked module that a launch needs, if a start list may have it."""
    if (listener := engine.program_start) is not None and (noted := start_module(plan, module, output)):
        listener.note(noted, key)


def keys_of_functions(needed: Iterable[PlannedFunction]) -> dict[str, str]:
    """The cache keys of needed functions, by symbol; empty ones for those that have none."""
    return {planned.symbol: planned.key for planned in needed if planned.provider != "scalar"}


def linked_key(
    context: BuildContext, module: ModuleSource, text: str, functions: Mapping[str, str], register_limit: int | None
) -> CacheKey | None:
    """The key of a linked module, from those of its functions by symbol; None if nothing covers what it depends on."""
    keywords = module.keywords
    if module.output != "cubin" or keywords.get("lineinfo") or keywords.get("extra_include_dirs"):
        return None  # line information names files of this machine, and other headers may be anything
    try:
        toolchain, facts = context.toolchain(), context.facts
        if toolchain.nvjitlink is None:
            return None
        return CacheKey.of({
            "compiler": facts.compiler_digest(),
            "functions": [f"{symbol} {key}" for symbol, key in sorted(functions.items())],
            "headers": facts.digests.digest_folder(Path(module.native_dir), "*.h"),
            "kind": LINKED_MODULE,
            "link_options": linker_flags(module.target, module.output, register_limit),
            "linker": facts.linker_digest(),
            "options": module_flags(module, toolchain.nvrtc_version),  # of the folders, the content counts
            "source": text,
            "target": module.target,
        })  # fmt: skip
    except unless_signalled(OSError, ToolchainError):
        return None


def foreign_inputs(inputs: Sequence[bytes], keywords: Mapping[str, Any]) -> list[str]:
    """The names of the inputs that Warp has built itself."""
    return ["a solver or FFT"] if inputs or keywords.get("fatbins") else []


def request_of(context: BuildContext, module: ModuleSource, text: str, name: str) -> CompileRequest:
    flags = module_flags(module, context.toolchain().nvrtc_version)
    level = module.optimization_level
    return CompileRequest(module.name, text, flags, module.include_dirs, f"module {name}", level)
