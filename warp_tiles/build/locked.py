"""The policy ``locked``: names every variant of a module that is not in the cache."""

from __future__ import annotations

from warp_tiles.build.chain import Chain
from warp_tiles.errors import LockedError, ToolchainError
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.providers.base import ProviderContext
from warp_tiles.solver.variant import Variant

REMEDY = (
    "build it where that is allowed (`warp-tiles compile --arch {arch} -o DIR SCRIPT`, or run it with the policy auto) "
    "and copy the cache here (`warp-tiles cache export FILE` there, `warp-tiles cache import FILE` here)"
)


def require_cached(plan: ModulePlan, chain: Chain, context: ProviderContext) -> None:
    """Check that the cache holds the LTO-IR of all functions of a module.

    Raises:
        LockedError: Some are missing, and the message names each of them and its key; or there is no toolchain.
    """
    needed = dict.fromkeys(planned.variant for planned in plan.needed if planned.variant is not None)
    missing = [text for variant in needed if (text := _missing(variant, chain, context))]
    if missing:
        lines = "\n".join(f"  {text}" for text in missing)
        raise LockedError(
            f"{chain.settings.named('policy')} is 'locked', and module {plan.name} needs "
            f"{len(missing)} device function{'s' * (len(missing) > 1)} not in the cache:\n{lines}",
            remedy=REMEDY.format(arch=plan.arch),
        )


def _missing(variant: Variant, chain: Chain, context: ProviderContext) -> str:
    for provider in chain.order(variant):
        match = chain.match(provider, variant, context)
        if isinstance(match.reason_unsupported, ToolchainError):  # without the compiler's digest there is no key
            chain.require_fallback(match.reason_unsupported)
        if match.reason_unsupported is not None:
            continue
        if not any(recipe.symbol for recipe in match.recipes):  # the scalar path has no function
            return ""
        keys = [provider.key_of(recipe) for recipe in match.recipes]
        if any(key is not None and context.is_cached(key) for key in keys):
            return ""
        key = keys[0].digest if keys[0] is not None else "its builds are not cached"
        return f"{variant.describe()}: {provider.name}, {key}"
    return ""  # the plan already says that no provider supports it
