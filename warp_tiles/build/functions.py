"""The device functions of a module: the chain of providers that may serve each, as planned and as built.

A module's hash contains the choices of its chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from warp_tiles.build.log import Artifact
from warp_tiles.codegen.module_code import DeviceFunction, LoopAccumulators
from warp_tiles.errors import BuildError, LockedError, ToolchainError, UnsupportedProblem, WarpTilesError, WorkerError
from warp_tiles.gemm.problem import BFLOAT16_ADJOINT_ERROR, BFLOAT16_OUT_ERROR, GemmProblem, Role
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.plan.planning import ModulePlan, PlannedFunction
from warp_tiles.providers.base import Provider, ProviderContext, Recipe, Tuned, TunedChoice
from warp_tiles.providers.own import register_accumulators, unit_of
from warp_tiles.settings import PROVIDER_ORDER, Settings
from warp_tiles.solver.problem import Problem, problem_from_fields

if TYPE_CHECKING:
    from warp_tiles.plan.planner import Choose
    from warp_tiles.store.key import CacheKey


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

        Raises:
            LockedError, ToolchainError: See :meth:`require_fallback`.
            UnsupportedProblem: No provider can serve the problem.
            TypeError: No provider can accumulate in bfloat16 here. The message is Warp's own.
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


# ---- as planned and as built


@dataclass(frozen=True)
class Linked:
    """What a module of warp_tiles is linked from, besides its source. Its suffix is ``a`` if loops need ``sm_90a``."""

    functions: tuple[Problem, ...]
    suffix: str
    register_limit: int | None

    @classmethod
    def from_json(cls, data: Any) -> Linked:
        """Read what ``asdict()`` has written, from untrusted JSON. Raises ValueError if a field is wrong."""
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or data.keys() != names or not isinstance(data["functions"], list):
            raise ValueError("it has other fields")
        limit = data["register_limit"]
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"register_limit is {limit!r}")
        if data["suffix"] not in ("", "a"):
            raise ValueError(f"suffix is {data['suffix']!r}")
        return cls(tuple(map(problem_from_fields, data["functions"])), data["suffix"], limit)


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
