"""The providers that are tried for a variant, their order, and the error if none supports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from warp_tiles.errors import ToolchainError, UnsupportedVariant, WarpTilesError, WorkerError
from warp_tiles.gemm.dispatch import BFLOAT16_ADJOINT_ERROR, BFLOAT16_OUT_ERROR
from warp_tiles.gemm.variant import GemmVariant, Role
from warp_tiles.plan.planning import PlannedVariant
from warp_tiles.providers.base import Context, Provider, Recipe, Tuned, TunedChoice
from warp_tiles.settings import Settings
from warp_tiles.settings.policy import PROVIDER_ORDER


@dataclass(frozen=True)
class Offer:
    """A provider's answer to one variant.

    Attributes:
        provider: The provider that answers.
        recipes: Its ways to build the variant, best first; empty if there is an obstacle.
        obstacle: Why it cannot: UnsupportedVariant, which is normal, or ToolchainError, which the user can remedy.
    """

    provider: Provider
    recipes: tuple[Recipe, ...]
    obstacle: WarpTilesError | None = None


@dataclass(frozen=True)
class Chain:
    """The providers that a setting stands for.

    Attributes:
        settings: The settings.
        providers: In the order in which they are asked.
        tuned: Measurements; None if there are none that are valid.
    """

    settings: Settings
    providers: tuple[Provider, ...]
    tuned: Tuned | None = None

    @property
    def forced(self) -> bool:
        """Whether one provider alone is asked, and its failing is an error."""
        return self.settings.provider != "auto"

    def order(self, variant: GemmVariant) -> tuple[Provider, ...]:
        """The providers in the order in which they are asked for a variant: the one that was measured fastest first."""
        best = self._best(variant)
        return tuple(sorted(self.providers, key=lambda provider: best is None or provider.name != best.provider))

    def _best(self, variant: GemmVariant) -> TunedChoice | None:
        return self.tuned.best(variant, [provider.name for provider in self.providers]) if self.tuned else None

    def ask(self, provider: Provider, variant: GemmVariant, context: Context) -> Offer:
        """Ask one provider of the chain.

        Raises:
            WorkerError: A compiler process died; the provider may still support the variant.
        """
        try:
            recipes = provider.recipes(variant)
            provider.require(variant, context)
        except WorkerError:
            raise
        except (UnsupportedVariant, ToolchainError) as error:
            return Offer(provider, (), error)
        return Offer(provider, recipes)

    def why(self, provider: Provider, variant: GemmVariant, obstacles: Sequence[WarpTilesError]) -> str:
        """Why a provider was taken for a variant, and why it computes it as it does, for the plan."""
        best = self._best(variant)
        if best is not None and best.provider != provider.name:  # what it was measured to do itself
            best = self.tuned.best(variant, [provider.name]) if self.tuned else None
        causes = [error.message for error in obstacles]
        if self.forced:
            causes.append(f"{self.settings.named('provider')} names it")
        if best is not None:
            causes.append(best.reason)
        return f"{provider.name}: {'; '.join(dict.fromkeys(causes)) or 'the first that is asked'}"

    def unsupported(self, variant: GemmVariant, obstacles: Sequence[WarpTilesError]) -> UnsupportedVariant:
        """The error where every provider has an obstacle."""
        causes = "; ".join(dict.fromkeys(error.message for error in obstacles))
        named = self.settings.named
        remedy = f"{named('provider')} is {self.settings.provider!r}"
        if self.forced:
            remedy += f", which asks no other; {self.settings.remedy('provider', 'auto')}"
        elif self.settings.rules.providers != PROVIDER_ORDER:
            remedy = f"{named('policy')} is {self.settings.policy!r}, which asks {', '.join(self.settings.providers)}"
        return UnsupportedVariant(f"no provider can build {variant.describe()}: {causes}", remedy)


def planned_with(chain: Chain, planned: PlannedVariant, context: Context) -> tuple[PlannedVariant, Offer]:
    """A needed variant with the provider that takes it, and that provider's offer.

    Raises:
        ToolchainError: The one provider that is asked lacks something.
        UnsupportedVariant: The one provider that is asked cannot serve the variant.
        TypeError: No provider can accumulate in bfloat16 here; the message is Warp's own.
    """
    variant = planned.variant
    assert variant is not None
    obstacles: list[WarpTilesError] = []
    for provider in chain.order(variant):
        offer = chain.ask(provider, variant, context)
        if offer.obstacle is None:
            recipe = offer.recipes[0]
            reason = f"{planned.reason}; {chain.why(provider, variant, obstacles)}"
            found = replace(
                planned, reason=reason, provider=provider.name, symbol=recipe.symbol, tile_config=recipe.tile_config
            )
            return found, offer
        if chain.forced and isinstance(offer.obstacle, ToolchainError):
            raise offer.obstacle
        obstacles.append(offer.obstacle)
    error = chain.unsupported(variant, obstacles)
    if variant.c.dtype == "bfloat16":
        text = BFLOAT16_OUT_ERROR if planned.role is Role.FORWARD else BFLOAT16_ADJOINT_ERROR
        raise TypeError(f"In '{planned.function}': {text} Here {error.message}.") from error
    raise error
