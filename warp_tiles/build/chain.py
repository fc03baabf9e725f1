"""The chain of providers: their order for a variant, and the error if none supports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from warp_tiles.errors import LockedError, ToolchainError, UnsupportedVariant, WarpTilesError, WorkerError
from warp_tiles.gemm.dispatch import BFLOAT16_ADJOINT_ERROR, BFLOAT16_OUT_ERROR
from warp_tiles.gemm.problem import GemmProblem, Role
from warp_tiles.plan.planning import PlannedVariant
from warp_tiles.providers.base import Provider, ProviderContext, Recipe, Tuned, TunedChoice
from warp_tiles.settings import Settings
from warp_tiles.settings.policy import PROVIDER_ORDER
from warp_tiles.solver.variant import Variant


@dataclass(frozen=True)
class ProviderMatch:
    """A provider's answer to one variant.

    Attributes:
        provider: The provider.
        recipes: Its ways to build the variant, best first; empty if it cannot build it.
        reason_unsupported: The reason: UnsupportedVariant, which is normal, or ToolchainError, which the user can
            remedy. None if it can.
    """

    provider: Provider[Any]
    recipes: tuple[Recipe, ...]
    reason_unsupported: WarpTilesError | None = None


@dataclass(frozen=True)
class Chain:
    """The providers under some settings.

    Attributes:
        settings: The settings.
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
        best = self._best(variant)
        serving = (provider for provider in self.providers if isinstance(variant, provider.serves))
        return tuple(sorted(serving, key=lambda provider: best is None or provider.name != best.provider))

    def _best(self, variant: Variant) -> TunedChoice | None:
        return self._measured(variant, [provider.name for provider in self.providers])

    def _measured(self, variant: Variant, providers: Sequence[str]) -> TunedChoice | None:
        return self.tuned.best(variant, providers) if self.tuned and isinstance(variant, GemmProblem) else None

    def match(self, provider: Provider[Any], variant: Variant, context: ProviderContext) -> ProviderMatch:
        """Asks one provider of the chain to build a variant.

        Raises:
            WorkerError: A compiler process died; the provider may still support the variant.
        """
        try:
            recipes = provider.recipes(variant)
            provider.require(variant, context)
        except WorkerError:
            raise
        except (UnsupportedVariant, ToolchainError) as error:
            return ProviderMatch(provider, (), error)
        return ProviderMatch(provider, recipes)

    @property
    def replaces_missing_toolchains(self) -> bool:
        """True if the next provider replaces one without its toolchain, False if that is an error."""
        return not self.forced and not self.settings.needs_toolchain

    def require_fallback(self, missing: ToolchainError) -> None:
        """Check that the settings allow another provider in place of one without its toolchain.

        Raises:
            LockedError: The policy is ``locked``.
            ToolchainError: The policy is ``fast``, or the settings name the provider.
        """
        if self.replaces_missing_toolchains:
            return
        policy = f"{self.settings.named('policy')} is {self.settings.policy!r}"
        remedies = [missing.remedy] if missing.remedy else []
        if not self.settings.rules.builds:
            raise LockedError(
                f"{policy}, and no function can be found in the cache without the toolchain: {missing.message}",
                remedy="; ".join((*remedies, "take the versions of the machine that filled the cache")),
            ) from missing
        if self.forced:
            raise missing
        raise ToolchainError(
            f"{missing.message}, and {policy}, which allows no other provider instead",
            remedy="; or ".join((*remedies, self.settings.remedy("policy", "auto"))),
            log=missing.log,
        ) from missing

    def _measurement(self, provider: Provider[Any], variant: Variant) -> TunedChoice | None:
        best = self._best(variant)
        if best is not None and best.provider != provider.name:  # use the provider's own measurement
            best = self._measured(variant, [provider.name])
        return best

    def choice(self, provider: Provider[Any], variant: Variant) -> str:
        """What decided about a provider and its tile configuration: ``tuned`` or ``default``."""
        return "default" if self._measurement(provider, variant) is None else "tuned"

    def reason(self, provider: Provider[Any], variant: Variant, reasons: Sequence[WarpTilesError]) -> str:
        """The reason for a provider and its tile configuration, for the plan."""
        best = self._measurement(provider, variant)
        causes = [error.message for error in reasons]
        if self.forced:
            causes.append(f"{self.settings.named('provider')} names it")
        if best is not None:
            causes.append(best.reason)
        return f"{provider.name}: {'; '.join(dict.fromkeys(causes)) or 'the first provider'}"

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


def assign_provider(
    chain: Chain, planned: PlannedVariant, context: ProviderContext
) -> tuple[PlannedVariant, ProviderMatch]:
    """Assign the first provider that can build a needed variant. Returns the variant and the provider's match.

    Raises:
        LockedError, ToolchainError: See :meth:`Chain.require_fallback`.
        UnsupportedVariant: No provider can serve the variant.
        TypeError: No provider can accumulate in bfloat16 here. The message is Warp's own.
    """
    variant = planned.variant
    assert variant is not None
    reasons: list[WarpTilesError] = []
    for provider in chain.order(variant):
        match = chain.match(provider, variant, context)
        if match.reason_unsupported is None:
            recipe = match.recipes[0]
            reason = f"{planned.reason}; {chain.reason(provider, variant, reasons)}"
            found = replace(
                planned, reason=reason, provider=provider.name, symbol=recipe.symbol, tile_config=recipe.tile_config,
                choice=chain.choice(provider, variant),
            )  # fmt: skip
            return found, match
        if isinstance(match.reason_unsupported, ToolchainError):
            chain.require_fallback(match.reason_unsupported)
        reasons.append(match.reason_unsupported)
    error = chain.unsupported(variant, reasons)
    if isinstance(variant, GemmProblem) and variant.c.dtype == "bfloat16":
        text = BFLOAT16_OUT_ERROR if planned.role is Role.FORWARD else BFLOAT16_ADJOINT_ERROR
        raise TypeError(f"In '{planned.function}': {text} Here {error.message}.") from error
    raise error
