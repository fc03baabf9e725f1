"""The engine: builds the functions of a plan in parallel, tries the providers in order, and uses the cache.

A module's hash contains the choices of its chain of providers.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from warp_tiles.build.context import BuildContext, Resources
from warp_tiles.build.log import Artifact, BuildLog, BuildProgress, now_s
from warp_tiles.codegen.module_code import DeviceFunction, LoopAccumulators
from warp_tiles.compile.find import Version, dotted
from warp_tiles.compile.sources import DeviceSource, code_files
from warp_tiles.errors import (
    BuildError,
    LockedError,
    RefusedWorkerError,
    ToolchainError,
    UnsupportedProblem,
    WarpTilesError,
    WorkerError,
)
from warp_tiles.gemm.problem import BFLOAT16_ADJOINT_ERROR, BFLOAT16_OUT_ERROR, GemmProblem, Role
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.plan.planning import ModulePlan, PlannedFunction
from warp_tiles.providers.base import (
    NvrtcProvider,
    Provider,
    ProviderContext,
    Recipe,
    ScalarProvider,
    Tuned,
    TunedChoice,
)
from warp_tiles.providers.cublasdx import CublasdxProvider, Libmathdx, LibmathdxProvider
from warp_tiles.providers.own import InSourceProvider, OwnProvider, SolverProvider, register_accumulators, unit_of
from warp_tiles.settings import OWN, PROVIDER_ORDER, Settings, current
from warp_tiles.solver.problem import Problem
from warp_tiles.store import MODULE
from warp_tiles.util.threads import wait_all
from warp_tiles.util.version import __version__
from warp_tiles.util.warn import WarnedTexts, log, warn

if TYPE_CHECKING:
    from warp_tiles.build.start_list import StartModule
    from warp_tiles.compile.pool import CompilerPool
    from warp_tiles.compile.toolchain import ToolchainFacts
    from warp_tiles.plan.planner import Choose
    from warp_tiles.store.key import CacheKey

STARTED_AHEAD = 2  # compiler processes: one for the module, one for its functions
_NOT_CACHED = (
    "build it where that is allowed (`warp-tiles compile --arch {arch} -o DIR SCRIPT`, or run it with the policy auto) "
    "and copy the cache here (`warp-tiles cache export FILE` there, `warp-tiles cache import FILE` here)"
)
_COMPILING = frozenset((OwnProvider.name, CublasdxProvider.name))  # the providers that need compiler processes


# ---- the providers of a function


@dataclass(frozen=True)
class Chain:
    """The providers under some settings, in the order in which they are tried, and valid measurements, if any."""

    settings: Settings
    providers: tuple[Provider[Any], ...]
    tuned: Tuned | None = None

    @property
    def forced(self) -> bool:
        """True if only one provider is tried, and its failure is an error."""
        return self.settings.provider != "auto"

    def order(self, problem: Problem) -> tuple[Provider[Any], ...]:
        """The providers in the order in which they are tried for a problem. The fastest by measurement comes first."""
        best = self._best(problem, self.providers)
        serving = [provider for provider in self.providers if isinstance(problem, provider.serves)]
        if self.settings.own_products and isinstance(problem, GemmProblem):
            serving = [provider for provider in serving if provider.name in ("own", "scalar")]
        return tuple(sorted(serving, key=lambda provider: best is None or provider.name != best.provider))

    def _best(self, problem: Problem, providers: Sequence[Provider[Any]]) -> TunedChoice | None:
        if self.tuned is None or not isinstance(problem, GemmProblem):
            return None
        return self.tuned.best(problem, [provider.name for provider in providers])

    def offers(
        self, problem: Problem, context: ProviderContext
    ) -> Iterator[tuple[Provider[Any], tuple[Recipe, ...] | UnsupportedProblem | ToolchainError]]:
        """Each provider in order, with its recipes for a problem, best first.

        If there is none, with the reason: UnsupportedProblem, which is normal, or ToolchainError, which the user can
        remedy and the settings allow. A WorkerError is raised, since the provider may still support the problem.
        """
        for provider in self.order(problem):
            try:
                recipes = provider.recipes(problem)
                provider.require(problem, context)
            except WorkerError:
                raise
            except UnsupportedProblem as error:
                yield provider, error
            except ToolchainError as error:
                self.require_fallback(error)
                yield provider, error
            else:
                yield provider, recipes

    def require_fallback(self, missing: ToolchainError) -> None:
        """Check that the settings allow another provider in place of one without its toolchain.

        Raises LockedError under the policy ``locked``, ToolchainError under ``fast`` and for the provider ``cublasdx``.
        """
        needed = self.settings.rules.needs_toolchain
        if not needed and not (self.forced and self.settings.provider == "cublasdx"):
            return
        policy = f"{self.settings.named('policy')} is {self.settings.policy!r}"
        remedies = [missing.remedy] if missing.remedy else []
        if not self.settings.rules.builds:
            raise LockedError(
                f"{policy}, and no function can be found in the cache without the toolchain: {missing.message}",
                remedy="; ".join((*remedies, "take the versions of the machine that filled the cache")),
            ) from missing
        if not needed:
            raise missing
        raise ToolchainError(
            f"{missing.message}, and {policy}, which allows no other provider instead",
            remedy="; or ".join((*remedies, self.settings.remedy("policy", "auto"))),
            log=missing.log,
        ) from missing

    def _measurement(self, provider: Provider[Any], problem: Problem) -> TunedChoice | None:
        best = self._best(problem, self.providers)
        return best if best is None or best.provider == provider.name else self._best(problem, [provider])

    def _reason(self, provider: Provider[Any], measured: TunedChoice | None, reasons: Sequence[WarpTilesError]) -> str:
        """The reason for a provider and its tile configuration, for the plan; empty for the first provider."""
        causes = [error.message for error in reasons]
        if self.forced:
            causes.append(f"{self.settings.named('provider')} asks for it")
        if measured is not None:
            causes.append(measured.reason)
        where = "on Warp's scalar path" if provider.name == "scalar" else f"built by {provider.name}"
        if provider.in_source:
            where = "in the module's source"
        if not causes:
            return where if provider.in_source else ""
        return f"{where} ({'; '.join(dict.fromkeys(causes))})"

    def unsupported(self, problem: Problem, reasons: Sequence[WarpTilesError]) -> UnsupportedProblem:
        causes = "; ".join(dict.fromkeys(error.message for error in reasons))
        named = self.settings.named
        remedy = f"{named('provider')} is {self.settings.provider!r}"
        if self.forced:
            remedy += f", which tries no other; {self.settings.remedy('provider', 'auto')}"
        elif self.settings.rules.providers != PROVIDER_ORDER:
            remedy = f"{named('policy')} is {self.settings.policy!r}, which tries {', '.join(self.settings.providers)}"
        return UnsupportedProblem(f"no provider can build {problem.describe()}: {causes}", remedy)

    def assign(self, planned: PlannedFunction, context: ProviderContext) -> tuple[PlannedFunction, CacheKey | None]:
        """Assign a needed function the first provider that can build it. Returns the function and its cache key.

        Raises an UnsupportedProblem if no provider can serve it, Warp's own TypeError if none accumulates in bfloat16
        here, and what :meth:`require_fallback` raises.
        """
        problem = planned.problem
        assert problem is not None
        reasons: list[WarpTilesError] = []
        for provider, offer in self.offers(problem, context):
            if isinstance(offer, tuple):
                recipe, measured = offer[0], self._measurement(provider, problem)
                reason = "; ".join(filter(None, (planned.reason, self._reason(provider, measured, reasons))))
                assigned = replace(
                    planned, reason=reason, choice="tuned" if measured else "default", provider=provider.name,
                    symbol=recipe.symbol, tile_config=recipe.tile_config, in_source=provider.in_source,
                )  # fmt: skip
                return with_function(assigned), provider.key_of(recipe)
            reasons.append(offer)
        error = self.unsupported(problem, reasons)
        if isinstance(problem, GemmProblem) and problem.c.dtype == "bfloat16":
            text = BFLOAT16_OUT_ERROR if planned.role is Role.FORWARD else BFLOAT16_ADJOINT_ERROR
            raise TypeError(f"In '{planned.function}': {text} Here {error.message}.") from error
        raise error

    def choices(self) -> str:
        """The part of a fingerprint that changes while a program runs: settings, providers and tuning records."""
        parts = [f"{name}={value}" for name, value in self.settings.affecting_code().items()]
        parts.append("providers=" + " ".join(dict.fromkeys(provider.name for provider in self.providers)))
        if self.tuned is not None:
            parts.append(f"tuned={self.tuned.fingerprint}")
        return "\n".join(parts)


def with_function(planned: PlannedFunction) -> PlannedFunction:
    """A needed function with the device function of its provider. Only functions of ``own`` have a configuration."""
    problem, config, symbol = planned.problem, planned.tile_config, planned.symbol
    if problem is None or planned.provider == "scalar":
        return replace(planned, device_function=None)
    unit = unit_of(problem, config) if planned.in_source else ""
    accumulators: LoopAccumulators | Rejected = Rejected("foreign_function", (planned.provider,))
    if isinstance(problem, GemmProblem) and isinstance(config, TileConfig):  # no loop asks about solvers
        accumulators = register_accumulators(problem, symbol, config)
    return replace(planned, device_function=DeviceFunction(symbol, accumulators, unit))


def problem_text(problem: Problem, failure: WarpTilesError, instead: str) -> str:
    """The text if a function could not be built: with the first error of the log, or the missing toolchain alone."""
    if isinstance(failure, ToolchainError):
        return f"{failure.message}; using {instead}. Remedy: {failure.remedy}"
    cause = failure.message
    if failure.log:
        cause = next((line.strip() for line in failure.log.splitlines() if "error" in line), cause)
    text = f"{problem.describe()}: {cause}; using {instead}."
    if isinstance(failure, BuildError) and failure.remedy:
        text += f" To see it alone: {failure.remedy.splitlines()[0]}"
    return text


# ---- the engine


class Measurements(Protocol):
    """Measurements, and a way to add some."""

    def snapshot(self, now: Settings, facts: ToolchainFacts) -> Tuned | None:
        """The measurements that are valid under some settings; None if there are none."""

    def forget(self) -> None:
        """Read the records again at the next use."""

    def tune_launch(self, engine: Engine, now: Settings) -> None:
        """Tune the kernel that this thread is launching, if it launches one on a GPU."""


class LaunchListener(Protocol):
    """Learns of the modules of launches: the start of a program (:class:`warp_tiles.build.ahead.ProgramStart`)."""

    def note(self, module: StartModule, digest: str) -> None:
        """Notes a module that a launch needs, with its key in the cache."""

    def generate_while(self, is_waiting: Callable[[], bool]) -> None:
        """Use the time of a launch that waits."""


class Engine:
    """Plans and builds the functions of products and solvers.

    Args:
        executor: Runs the compilers in place of this package's processes.
        tuned: Measurements; None leaves every choice to the heuristics.

    Attributes:
        program_start: What launches tell of their modules; None without a start list.
    """

    def __init__(
        self,
        *,
        warp_toolkit: Version | None = None,
        executor: Executor | None = None,
        tuned: Measurements | None = None,
    ) -> None:
        self.log = BuildLog()
        self.progress = BuildProgress()
        self.tuned = tuned
        self.program_start: LaunchListener | None = None
        self.resources = Resources(warp_toolkit, functools.partial(_pool_of, executor) if executor else None)
        self._libmathdx: Libmathdx | None = None
        self._lock = threading.RLock()  # without threads, submit() does the work itself
        self._running: dict[tuple[Problem, Settings, str], Future[Artifact]] = {}
        self._warned = WarnedTexts()
        self._code: str | None = None

    def use_libmathdx(self, build: Libmathdx) -> None:
        """Use a function as the provider ``libmathdx``. It returns a function's symbol and LTO-IR."""
        self._libmathdx = build

    def build_context(self, settings: Settings) -> BuildContext:
        return BuildContext(self.resources, settings)

    def close(self) -> None:
        self.resources.close()

    def after_fork(self) -> None:
        self._lock, self._running = threading.RLock(), {}
        self.program_start = None  # the parent writes the list
        self.progress = BuildProgress()  # a thread of the parent may hold its lock
        self.resources.after_fork()

    # ---- providers

    def chain(self, resolved: Settings) -> Chain:
        """The chain of providers. Raises a SettingError if the policy forbids the provider of the settings."""
        facts = self.build_context(resolved).facts
        tuned = self.measurements(resolved)
        own = OwnProvider(facts, tuned), SolverProvider(facts)
        named: dict[str, tuple[Provider[Any], ...]] = {
            "own": (*own, *(InSourceProvider(provider, facts) for provider in own)),
            "cublasdx": (CublasdxProvider(facts),),
            "libmathdx": (LibmathdxProvider(self._libmathdx),),
            "scalar": (ScalarProvider(),),
        }
        if self._libmathdx is None and resolved.provider == "auto":
            del named["libmathdx"]
        providers = (provider for name in resolved.providers for provider in named.get(name, ()))
        return Chain(resolved, tuple(providers), tuned)

    def records_changed(self) -> None:
        """Read tuning records again, because the choices may differ now."""
        if self.tuned is not None:
            self.tuned.forget()

    def measurements(self, resolved: Settings) -> Tuned | None:
        """What a search forces, or else what was measured, which do not count in a deterministic module."""
        if self.tuned is None or (resolved.deterministic and not resolved.forced):
            return None
        return self.tuned.snapshot(resolved, self.build_context(resolved).facts)

    def tune_launch(self, resolved: Settings) -> None:
        if self.tuned is not None and not resolved.deterministic:
            self.tuned.tune_launch(self, resolved)

    def note_missed(self, plan: ModulePlan) -> None:
        """Note why a module that was built did not come from a kernel package, if one names it."""
        context = self.build_context(plan.settings)
        if plan.settings.policy == "off" or (packages := context.packages) is None:
            return
        assert plan.arch is not None
        toolchain = context.toolchain_text(MODULE) if context.try_toolchain() is not None else ""
        if reason := packages.missed(plan.name, plan.arch, plan.block_dim, toolchain):
            log.info("module %s did not come from a kernel package: %s", plan.name, reason)
            self.log.add_missed(plan, reason)

    def start_compilers(self, resolved: Settings, module: str) -> None:
        """Start compiler processes for a module whose build is certain to come, while Warp still generates its code."""
        compiles = not _COMPILING.isdisjoint(resolved.providers)
        context = self.build_context(resolved)
        if (context.remote is not None and context.remote.is_up) or context.is_packaged(module):
            return  # modules are expected there
        if compiles and resolved.rules.builds and not self.resources.closed:
            context.pool.start_processes(STARTED_AHEAD)

    # ---- planning

    def fingerprint(self, resolved: Settings | None = None) -> str:
        """Text for Warp's module hash, which distinguishes the modules of warp_tiles from those of Warp.

        It changes with the providers of the chain, their sources, the compiler and the settings. The policy counts only
        through its providers, so policies with the same providers share their modules. Raises what :meth:`chain`
        raises.
        """
        resolved = resolved or current()
        context, chain = self.build_context(resolved), self.chain(resolved)
        if self._code is None:  # it is taken once, because loaded modules do not change
            self._code = context.facts.digests.digest_many(code_files())
        trust = self.foreign_trust(resolved) or OWN
        # Warp's CUDA decides where functions stand, and compiles those in a module's source
        compiler = f"compiler of Warp={dotted(self.resources.warp_toolkit)}"
        parts = ["warp_tiles", __version__, f"store={trust}", f"code={self._code}", compiler, chain.choices()]
        for provider in chain.providers:
            try:
                parts += [f"{provider.name} {name}={value}" for name, value in provider.fingerprint().items()]
            except ToolchainError as error:
                parts.append(f"{provider.name}: {error.message}")
        if any(provider.compiles for provider in chain.providers):
            try:
                if context.toolchain().nvjitlink is not None:
                    parts.append(f"linker={context.facts.linker_digest()}")
            except ToolchainError as error:
                parts.append(f"no toolchain: {error.message}")
        return "\n".join(parts)

    def foreign_trust(self, resolved: Settings) -> str:
        """Who else may choose the code of modules: those who write the cache or sign entries; empty for nobody."""
        context = self.build_context(resolved)
        if (store := context.bundle or context.remote) is not None:
            return f"{resolved.store_trust}, signed by {' '.join(sorted(store.trusted))}"
        return "" if resolved.store_trust == OWN else resolved.store_trust

    def choices(self, resolved: Settings) -> str:
        """The part of :meth:`fingerprint` that changes while a program runs: settings, providers and tuning records."""
        return self.chain(resolved).choices()

    def device_sources(self, resolved: Settings) -> list[DeviceSource]:
        """The device sources of the providers that this machine has."""
        sources = []
        for provider in self.chain(resolved).providers:
            with contextlib.suppress(ToolchainError):
                sources += [provider.source()] if isinstance(provider, NvrtcProvider) else []
        return sources

    def chooser(self, resolved: Settings, linker_reason: str = "") -> Choose:
        """Gives needed functions their providers, keys and cache states. Raises what the chain raises."""
        context = replace(self.build_context(resolved), linker_reason=linker_reason)
        return functools.partial(self._chosen, self.chain(resolved), context)

    def _chosen(self, chain: Chain, context: BuildContext, planned: PlannedFunction) -> PlannedFunction:
        assigned, key = chain.assign(planned, context)
        if key is None:
            return assigned
        cached = context.cache.manifest(key) is not None
        if not cached:
            from warp_tiles.store.key import MissedKeys

            MissedKeys(context.root, shared=context.settings.cache_shared).add(key)
        return replace(assigned, key=key.digest, cached=cached)

    # ---- building

    def start(
        self, problems: Iterable[Problem], resolved: Settings | None = None, linker_reason: str = ""
    ) -> dict[Problem, Future[Artifact]]:
        """Start building the functions of problems. Modules that need the same function share its build."""
        context = replace(self.build_context(resolved or current()), linker_reason=linker_reason)
        return {problem: self._start(problem, context) for problem in problems}

    def _start(self, problem: Problem, context: BuildContext) -> Future[Artifact]:
        identity = (problem, context.settings, context.linker_reason)
        with self._lock:
            if (running := self._running.get(identity)) is not None:
                return _share(running)
            future = self.resources.waiters.submit(self._build, problem, context)
            self._running[identity] = future
        future.add_done_callback(lambda _: self._running.pop(identity, None))  # outside the lock: it may be done
        return future

    def start_cached(self, plan: ModulePlan) -> dict[Problem, Future[Artifact]]:
        """Look up the functions of a module under the policy ``locked``, and wait for all.

        Raises a LockedError that names each missing one with its key, or if there is no toolchain.
        """
        problems = (v.problem for v in plan.needed if v.problem is not None)
        futures = self.start(problems, plan.settings, plan.linker_reason)
        wait_all(futures.values())
        errors = (future.exception() for future in futures.values())
        missing = [error for error in errors if isinstance(error, LockedError)]
        for error in missing:
            if error.remedy:  # the toolchain is missing, and without its digest there is no key
                raise error
        if missing:
            lines = "\n".join(f"  {text}" for text in dict.fromkeys(error.message for error in missing))
            raise LockedError(
                f"{plan.settings.named('policy')} is 'locked', and module {plan.name} needs "
                f"{len(missing)} device function{'s' * (len(missing) > 1)} not in the cache:\n{lines}",
                remedy=_NOT_CACHED.format(arch=plan.arch),
            )
        return futures

    def _build(self, problem: Problem, context: BuildContext) -> Artifact:
        chain = self.chain(context.settings)
        reasons: list[WarpTilesError] = []
        failures: list[WarpTilesError] = []
        pending: list[WarpTilesError] = []  # failures whose warning waits until the replacement is known
        warned: list[str] = []
        no_toolchain = False  # if the first provider has no toolchain, no other compiling provider has one
        for number, (provider, offer) in enumerate(chain.offers(problem, context)):
            if no_toolchain and provider.compiles:
                continue
            if isinstance(offer, ToolchainError):
                no_toolchain = no_toolchain or number == 0
                failures.append(offer)
                pending.append(offer)
            elif isinstance(offer, WarpTilesError):
                reasons.append(offer)
            for recipe in offer if isinstance(offer, tuple) else ():
                warned += [self._warn_once(problem_text(problem, failure, recipe.title)) for failure in pending]
                pending = []
                try:
                    built = _retry_once(functools.partial(self._build_recipe, problem, provider, recipe, context))
                    return replace(built, warnings=tuple(warned))
                except WorkerError:
                    raise  # a crash must not choose the provider, because Warp would cache the scalar path
                except LockedError as error:
                    failures.append(error)  # another recipe of this provider may be used, another provider must not
                except (ToolchainError, BuildError) as error:
                    failures.append(error)
                    pending = [error]
                    if isinstance(error, ToolchainError):
                        chain.require_fallback(error)
                        no_toolchain = no_toolchain or number == 0
                        break
            if failures and isinstance(failures[0], LockedError):
                break
        raise failures[0] if failures else chain.unsupported(problem, reasons)

    def _warn_once(self, text: str) -> str:
        if not self.resources.closed:
            warn(text, self._warned)
        return text

    def _build_recipe(
        self, problem: Problem, provider: Provider[Any], recipe: Recipe, context: BuildContext
    ) -> Artifact:
        started = now_s()
        context = replace(context, compiled=[])
        if recipe.symbol and not context.settings.rules.builds and provider.key_of(recipe) is None:
            raise LockedError(f"{problem.describe()}: {provider.name}, its builds are not cached")
        shown = self.progress.counted(recipe.problem.describe(), context.settings.progress)
        with shown if recipe.symbol and not provider.in_source else contextlib.nullcontext():
            built = provider.build(recipe, context)
        return Artifact(
            problem, built.symbol, built.payload, provider.name, built.key, built.hit, now_s() - started,
            tile_config=recipe.tile_config, started_at_s=started, compiled=next(iter(context.compiled), None),
            in_source=provider.in_source,
        )  # fmt: skip


def _pool_of(executor: Executor, facts: ToolchainFacts, jobs: int) -> CompilerPool:
    from warp_tiles.build.executor import ExecutorPool, Installation

    return ExecutorPool(executor, Installation(facts), jobs)


def _retry_once(attempt: Callable[[], Artifact]) -> Artifact:
    try:
        return attempt()
    except RefusedWorkerError:
        raise
    except WorkerError:  # a compiler process died
        return attempt()


def _share(build: Future[Artifact]) -> Future[Artifact]:
    """A future for another caller of the same build. Its artifact counts as a hit."""
    shared: Future[Artifact] = Future()

    def pass_on(done: Future[Artifact]) -> None:
        cancelled = WorkerError("the build was cancelled: warp_tiles was disabled") if done.cancelled() else None
        error = cancelled or done.exception()
        if error is not None:
            shared.set_exception(error)
        else:
            shared.set_result(replace(done.result(), hit=True, shared=True))

    build.add_done_callback(pass_on)
    return shared
