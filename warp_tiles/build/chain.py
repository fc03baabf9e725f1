"""The chain of providers: their order for a variant, warnings, and the choices that a module's hash contains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from warp_tiles.errors import BuildError, LockedError, ToolchainError, UnsupportedVariant, WarpTilesError, WorkerError
from warp_tiles.gemm.dispatch import BFLOAT16_ADJOINT_ERROR, BFLOAT16_OUT_ERROR
from warp_tiles.gemm.problem import GemmProblem, Role
from warp_tiles.plan.planning import PlannedVariant
from warp_tiles.providers.base import Provider, ProviderContext, Recipe, Tuned, TunedChoice
from warp_tiles.providers.fallbacks import COSTS
from warp_tiles.settings import PROVIDER_ORDER, Settings
from warp_tiles.solver.variant import Variant


@dataclass(frozen=True)
class Chain:
    """The providers under some settings.

    Attributes:
        providers: The providers, in the order in which they are tried.
        tuned: Measurements; None if there are no valid ones.
    """

    settings: Settings
    providers: tuple[Provider[Any], ...]
    tuned: Tuned | None = None

    @property
    def forced(self) -> bool:
        """True if only one provider is tried, and its failure is an error."""
        return self.settings.provider != "auto"

    def order(self, variant: Variant) -> tuple[Provider[Any], ...]:
        """The providers in the order in which they are tried for a variant. The fastest by measurement comes first."""
        best = self._best(variant, self.providers)
        serving = (provider for provider in self.providers if isinstance(variant, provider.serves))
        return tuple(sorted(serving, key=lambda provider: best is None or provider.name != best.provider))

    def _best(self, variant: Variant, providers: Sequence[Provider[Any]]) -> TunedChoice | None:
        """The fastest function of these providers by measurement."""
        if self.tuned is None or not isinstance(variant, GemmProblem):
            return None
        return self.tuned.best(variant, [provider.name for provider in providers])

    @staticmethod
    def match(
        provider: Provider[Any], variant: Variant, context: ProviderContext
    ) -> tuple[Recipe, ...] | UnsupportedVariant | ToolchainError:
        """Asks one provider to build a variant. Returns its ways, best first.

        If it cannot, returns the reason: UnsupportedVariant, which is normal, or ToolchainError, which the user can
        remedy.

        Raises:
            WorkerError: A compiler process died; the provider may still support the variant.
        """
        try:
            recipes = provider.recipes(variant)
            provider.require(variant, context)
        except WorkerError:
            raise
        except (UnsupportedVariant, ToolchainError) as error:
            return error
        return recipes

    def require_fallback(self, missing: ToolchainError) -> None:
        """Check that the settings allow another provider in place of one without its toolchain.

        Raises:
            LockedError: The policy is ``locked``.
            ToolchainError: The policy is ``fast``, or the settings name the provider ``cublasdx``.
        """
        needed = self.settings.needs_toolchain
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

    def _measurement(self, provider: Provider[Any], variant: Variant) -> TunedChoice | None:
        best = self._best(variant, self.providers)
        return best if best is None or best.provider == provider.name else self._best(variant, [provider])

    def choice(self, provider: Provider[Any], variant: Variant) -> str:
        """What decided about a provider and its tile configuration: ``tuned`` or ``default``."""
        return "default" if self._measurement(provider, variant) is None else "tuned"

    def reason(self, provider: Provider[Any], variant: Variant, reasons: Sequence[WarpTilesError]) -> str:
        """The reason for a provider and its tile configuration, for the plan; empty for the first provider."""
        best = self._measurement(provider, variant)
        causes = [error.message for error in reasons]
        if self.forced:
            causes.append(f"{self.settings.named('provider')} asks for it")
        if best is not None:
            causes.append(best.reason)
        where = "on Warp's scalar path" if provider.name == "scalar" else f"built by {provider.name}"
        if provider.in_source:
            where = "in the module's source"
        if not causes:
            return where if provider.in_source else ""
        return f"{where} ({'; '.join(dict.fromkeys(causes))})"

    def unsupported(self, variant: Variant, reasons: Sequence[WarpTilesError]) -> UnsupportedVariant:
        """The error if no provider can build a variant."""
        causes = "; ".join(dict.fromkeys(error.message for error in reasons))
        named = self.settings.named
        remedy = f"{named('provider')} is {self.settings.provider!r}"
        if self.forced:
            remedy += f", which tries no other; {self.settings.remedy('provider', 'auto')}"
        elif self.settings.rules.providers != PROVIDER_ORDER:
            remedy = f"{named('policy')} is {self.settings.policy!r}, which tries {', '.join(self.settings.providers)}"
        return UnsupportedVariant(f"no provider can build {variant.describe()}: {causes}", remedy)

    def assign(self, planned: PlannedVariant, context: ProviderContext) -> tuple[PlannedVariant, Provider[Any], Recipe]:
        """Assign the first provider that can build a needed variant. Returns it, the provider and its recipe.

        Raises:
            LockedError, ToolchainError: See :meth:`require_fallback`.
            UnsupportedVariant: No provider can serve the variant.
            TypeError: No provider can accumulate in bfloat16 here. The message is Warp's own.
        """
        variant = planned.variant
        assert variant is not None
        reasons: list[WarpTilesError] = []
        for provider in self.order(variant):
            match = self.match(provider, variant, context)
            if isinstance(match, tuple):
                recipe = match[0]
                reason = "; ".join(filter(None, (planned.reason, self.reason(provider, variant, reasons))))
                found = replace(
                    planned, reason=reason, provider=provider.name, symbol=recipe.symbol,
                    tile_config=recipe.tile_config, choice=self.choice(provider, variant), in_source=provider.in_source,
                )  # fmt: skip
                return found, provider, recipe
            if isinstance(match, ToolchainError):
                self.require_fallback(match)
            reasons.append(match)
        error = self.unsupported(variant, reasons)
        if isinstance(variant, GemmProblem) and variant.c.dtype == "bfloat16":
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


def variant_text(variant: Variant, failure: WarpTilesError, instead: str) -> str:
    """The text if a variant could not be built. It is the same for every variant if the toolchain is missing.

    Args:
        failure: Its error. The first error in its log is the cause.
        instead: Name of the replacement.
    """
    if isinstance(failure, ToolchainError):
        return f"{failure.message}; using {_with_cost(instead)}. Remedy: {failure.remedy}"
    cause = failure.message
    if failure.log:
        cause = next((line.strip() for line in failure.log.splitlines() if "error" in line), cause)
    text = f"{variant.describe()}: {cause}; using {_with_cost(instead)}."
    if isinstance(failure, BuildError) and failure.remedy:
        text += f" To see it alone: {failure.remedy.splitlines()[0]}"
    return text


def _with_cost(instead: str) -> str:
    return f"{instead}, {COSTS[instead]}" if instead in COSTS else instead
