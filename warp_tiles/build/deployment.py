"""Deployment bundles: modules that one machine builds for others that build nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from warp_tiles.errors import BundleError, LockedError, SettingError
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.remote.bundle import Bundle
from warp_tiles.remote.connect import trusted_by
from warp_tiles.settings import Settings
from warp_tiles.toolchain.recorded import ToolchainFacts
from warp_tiles.toolchain.sources import DeviceSource
from warp_tiles.toolchain.store import ToolchainStore
from warp_tiles.version import __version__

_AGAIN = "make the bundle again with `warp-tiles bundle`"


def facts_of(settings: Settings, store: ToolchainStore, sources: Iterable[DeviceSource]) -> dict[str, Any]:
    """The toolchain of the machine that built a bundle, as JSON.

    Raises:
        ToolchainError: There is no toolchain.
    """
    return {
        "toolchain": ToolchainFacts.take(store, sources).to_json(),
        "versions": _versions(),
        "settings": settings.affecting_code(),  # a bundle serves machines that agree with it
    }


def _versions() -> dict[str, str]:
    import warp

    return {"warp": warp.__version__, "warp_tiles": __version__}


def open_bundle(settings: Settings) -> Bundle:
    """Open the bundle of some settings.

    Raises:
        BundleError: It cannot be used, or was made with other versions or settings.
        SettingError: The policy is not ``locked``.
    """
    assert settings.bundle is not None
    if settings.rules.builds:
        raise SettingError(
            f"{settings.named('policy')} is {settings.policy!r}, and with a bundle nothing is built",
            remedy=settings.remedy("policy", "locked"),
        )
    bundle = Bundle(settings.bundle, trusted_by(settings))
    for name, version in _versions().items():
        made_with = bundle.facts.get("versions", {}).get(name)
        if made_with != version:
            raise BundleError(
                f"the bundle {settings.bundle} was made with {name} {made_with!s:.40}, and this is {version}",
                remedy=f"install that version, or {_AGAIN}",
            )
    for name, value in bundle.facts.get("settings", {}).items():
        if (here := settings.affecting_code().get(name, value)) != value:
            raise BundleError(
                f"the bundle {settings.bundle} was made with {name}={value!s:.40}, "
                f"and {settings.named(name)} is {here}",
                remedy=f"{settings.remedy(name, str(value))}, or {_AGAIN}",
            )
    toolchain_of(bundle)
    return bundle


def toolchain_of(bundle: Bundle) -> ToolchainFacts:
    """The toolchain of the machine that made a bundle.

    Raises:
        BundleError: The bundle does not say.
    """
    try:
        return ToolchainFacts.from_json(bundle.facts.get("toolchain"))
    except ValueError as error:
        raise BundleError(f"the bundle {bundle.path} cannot be used: {error}", remedy=_AGAIN) from error


def not_in_bundle(plan: ModulePlan, bundle: Path) -> LockedError:
    """The error for a module that a bundle lacks."""
    return LockedError(
        f"module {plan.name} for sm_{plan.arch} with {plan.block_dim} threads per block is not in the bundle {bundle}, "
        "or its source differs",
        remedy=f"{_AGAIN}, from the script as it runs here, with --arch {plan.arch}",
    )
