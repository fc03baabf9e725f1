"""The compile policies. docs/policy.md compares them."""

from __future__ import annotations

from dataclasses import dataclass

PROVIDER_ORDER = ("mma", "cublasdx", "libmathdx", "scalar")


@dataclass(frozen=True)
class Policy:
    """The limits of building and tuning, under one name.

    Attributes:
        name: A value of the setting ``policy``.
        providers: Providers that are tried for a variant, in this order; none if Warp builds everything.
        records: True if tuning records decide a variant's tile configuration.
        tunes: True if variants without a record are measured.
        builds: True if missing functions are built, False if they are an error.
        needs_toolchain: True if a provider without its toolchain is an error, False if the next provider is tried.
    """

    name: str
    providers: tuple[str, ...] = PROVIDER_ORDER
    records: bool = True
    tunes: bool = False
    builds: bool = True
    needs_toolchain: bool = False


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("off", (), records=False),
        Policy("scalar", ("scalar",), records=False),
        Policy("fast", ("mma", "scalar"), records=False, needs_toolchain=True),
        Policy("auto"),
        Policy("max", tunes=True),
        Policy("locked", builds=False, needs_toolchain=True),
    )
}
