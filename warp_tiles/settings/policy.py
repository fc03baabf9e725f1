"""The compile policies and what each allows; docs/policy.md compares them."""

from __future__ import annotations

from dataclasses import dataclass

PROVIDER_ORDER = ("mma", "cublasdx", "libmathdx", "scalar")


@dataclass(frozen=True)
class Policy:
    """A short name for what may happen to a module.

    Attributes:
        name: A value of the setting ``policy``.
        providers: Providers that are tried for a GEMM variant, in this order; none if Warp builds everything.
        records: Whether tuning records decide about a variant's tile configuration.
        tunes: Whether variants without a record are measured.
        builds: Whether missing functions are built; otherwise they are an error.
    """

    name: str
    providers: tuple[str, ...] = PROVIDER_ORDER
    records: bool = True
    tunes: bool = False
    builds: bool = True


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("off", (), records=False),
        Policy("scalar", ("scalar",), records=False),
        Policy("fast", ("mma", "scalar"), records=False),
        Policy("auto"),
        Policy("max", tunes=True),
        Policy("locked", builds=False),
    )
}
