"""Deployment bundles: modules that one machine builds for others that build nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from warp_tiles.cache import CacheKey, Entry, Manifest
from warp_tiles.errors import BundleError, LockedError, SettingError
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.remote import TOOLCHAIN
from warp_tiles.remote.bundle import Bundle
from warp_tiles.remote.connect import trusted_by
from warp_tiles.settings import Settings
from warp_tiles.toolchain.recorded import RecordedStore, toolchain_facts
from warp_tiles.toolchain.sources import DeviceSource
from warp_tiles.toolchain.store import ToolchainStore
from warp_tiles.version import __version__

_FACTS_KEY = CacheKey.of({"kind": "facts about a toolchain"})
_AGAIN = "make the bundle again with `warp-tiles bundle`"


def facts_entry(settings: Settings, store: ToolchainStore, sources: Iterable[DeviceSource]) -> Entry:
    """What a bundle says about the machine that made it.

    Raises:
        ToolchainError: There is no toolchain.
    """
    facts = {
        "toolchain": toolchain_facts(store, sources),
        "versions": _versions(),
        "settings": settings.affecting_code(),  # a bundle serves machines that agree with it
    }
    data = json.dumps(facts, sort_keys=True).encode("utf-8")
    return Entry(_FACTS_KEY.digest, data, Manifest.describe(_FACTS_KEY, data, {}))


def _facts_of(bundle: Bundle) -> dict[str, Any]:
    """The facts in a bundle. Raises a BundleError if there are none that a trusted key signed."""
    payload = bundle.read(TOOLCHAIN, _FACTS_KEY.digest).payload
    try:
        facts = json.loads(payload)
    except ValueError:
        facts = None
    return facts if isinstance(facts, dict) else {}


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
    try:
        _check_facts(settings, _facts_of(bundle))
    except BaseException:
        bundle.close()
        raise
    return bundle


def _check_facts(settings: Settings, facts: dict[str, Any]) -> None:
    for name, version in _versions().items():
        made_with = facts.get("versions", {}).get(name)
        if made_with != version:
            raise BundleError(
                f"the bundle {settings.bundle} was made with {name} {made_with!s:.40}, and this is {version}",
                remedy=f"install that version, or {_AGAIN}",
            )
    for name, value in facts.get("settings", {}).items():
        if (here := settings.affecting_code().get(name, value)) != value:
            raise BundleError(
                f"the bundle {settings.bundle} was made with {name}={value!s:.40}, "
                f"and {settings.named(name)} is {here}",
                remedy=f"{settings.remedy(name, str(value))}, or {_AGAIN}",
            )


def toolchain_of(bundle: Bundle, root: Path, *, shared: bool) -> RecordedStore:
    """The toolchain of the machine that made a bundle.

    Args:
        bundle: The bundle.
        root: Folder of the cache.
        shared: Accept a root that others can write.

    Raises:
        BundleError: The bundle does not say.
    """
    try:
        return RecordedStore(_facts_of(bundle).get("toolchain"), root, "toolchain", shared=shared)
    except ValueError as error:
        raise BundleError(f"the bundle {bundle.path} cannot be used: {error}", remedy=_AGAIN) from error


def not_in_bundle(plan: ModulePlan, bundle: Path) -> LockedError:
    """The error for a module that a bundle lacks."""
    return LockedError(
        f"module {plan.name} for sm_{plan.arch} with {plan.block_dim} threads per block is not in the bundle {bundle}, "
        "or its source differs",
        remedy=f"{_AGAIN}, from the script as it runs here, with --arch {plan.arch}",
    )
