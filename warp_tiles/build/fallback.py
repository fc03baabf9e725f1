"""The text of a warning about a fallback: the cause, the replacement with its cost, and the remedy."""

from __future__ import annotations

from warp_tiles.errors import BuildError, ToolchainError, WarpTilesError
from warp_tiles.providers.fallbacks import COSTS
from warp_tiles.solver.variant import Variant


def toolchain_text(failure: ToolchainError, instead: str) -> str:
    """The text if a part of the toolchain is missing. It is the same for every variant.

    Args:
        failure: The missing part.
        instead: Name of the replacement.
    """
    return f"{failure.message}; using {_with_cost(instead)}. Remedy: {failure.remedy}"


def variant_text(variant: Variant, failure: WarpTilesError, instead: str) -> str:
    """The text if a variant could not be built.

    Args:
        variant: The variant.
        failure: Its error. The first error in its log is the cause.
        instead: Name of the replacement.
    """
    if isinstance(failure, ToolchainError):
        return toolchain_text(failure, instead)
    cause = failure.message
    if failure.log:
        cause = next((line.strip() for line in failure.log.splitlines() if "error" in line), cause)
    text = f"{variant.describe()}: {cause}; using {_with_cost(instead)}."
    if isinstance(failure, BuildError) and failure.remedy:
        text += f" To see it alone: {failure.remedy.splitlines()[0]}"
    return text


def _with_cost(instead: str) -> str:
    return f"{instead}, {COSTS[instead]}" if instead in COSTS else instead
