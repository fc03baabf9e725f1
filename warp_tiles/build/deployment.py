"""Deployment bundles: modules that one machine builds for others that build nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from warp_tiles.compile.find import Toolchain
from warp_tiles.compile.sources import DeviceSource, kernels_folder
from warp_tiles.compile.toolchain import ToolchainFacts
from warp_tiles.errors import BundleError, LockedError, SettingError, ToolchainError, shown
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.settings import Settings
from warp_tiles.store import TOOLCHAIN
from warp_tiles.store.bundle import Bundle
from warp_tiles.store.documents import DamagedError, parse_object
from warp_tiles.store.key import CacheKey, Entry, Manifest
from warp_tiles.store.keys import trusted_by
from warp_tiles.util.version import __version__

_FACTS_KEY = CacheKey.of({"kind": "facts about a toolchain"})
_SCHEMA = 1
_AGAIN = "make the bundle again with `warp-tiles bundle`"


def facts_entry(settings: Settings, here: ToolchainFacts, sources: Iterable[DeviceSource]) -> Entry:
    """What a bundle says about the machine that made it: what keys contain, without names of this machine's folders."""
    toolchain = here.toolchain()
    linker = "nvjitlink" if toolchain.nvjitlink is not None else None
    without_folders: dict[str, Any] = {"nvrtc": "nvrtc", "nvjitlink": linker, "include_dirs": [], "passed_over": []}
    facts = {
        "toolchain": {
            "schema": _SCHEMA,
            "toolchain": toolchain.to_json() | without_folders,
            "compiler": here.compiler_digest(),
            "linker": here.linker_digest(),
            "sources": {_label(source): here.source_digest(source) for source in sources},
        },
        "versions": _versions(),
        "settings": settings.affecting_code(),  # a bundle serves machines that agree with it
    }
    data = json.dumps(facts, sort_keys=True).encode("utf-8")
    return Entry(data, Manifest.describe(_FACTS_KEY, data, {}))


def _facts_of(bundle: Bundle) -> dict[str, Any]:
    """The facts in a bundle. Raises a BundleError if there are none that a trusted key signed."""
    facts = bundle.read(TOOLCHAIN, _FACTS_KEY.digest).payload
    with suppress(DamagedError):
        return parse_object(facts)
    return {}


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
        facts = _facts_of(bundle)
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
    except BaseException:
        bundle.close()
        raise
    return bundle


def not_in_bundle(plan: ModulePlan, bundle: Path) -> LockedError:
    return LockedError(
        f"module {plan.name} for sm_{plan.arch} with {plan.block_dim} threads per block is not in the bundle {bundle}, "
        "or its source differs",
        remedy=f"{_AGAIN}, from the script as it runs here, with --arch {plan.arch}",
    )


# ---- the toolchain of the machine that made a bundle


def _label(source: DeviceSource) -> str:
    return source.path.resolve().relative_to(kernels_folder().resolve()).as_posix()


class BundledFacts(ToolchainFacts):
    """The toolchain of the machine that made a bundle, known by its facts alone. Nothing can be compiled with it."""

    def __init__(self, bundle: Bundle, root: Path, *, shared: bool) -> None:
        super().__init__(root, shared=shared)
        try:
            facts = _facts_of(bundle)["toolchain"]
            if facts["schema"] != _SCHEMA:
                raise ValueError(f"facts of schema {shown(facts['schema'], 40)}")
            self._toolchain = Toolchain.from_json(facts["toolchain"])  # its paths lead nowhere
            self._compiler, self._linker = str(facts["compiler"]), str(facts["linker"])
            self._sources = {str(label): str(digest) for label, digest in facts["sources"].items()}
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            reason = f"its facts about the toolchain are no facts of this version: {shown(error, 100)}"
            raise BundleError(f"the bundle {bundle.path} cannot be used: {reason}", remedy=_AGAIN) from error

    def compiler_digest(self) -> str:
        return self._compiler

    def linker_digest(self) -> str:
        return self._linker

    def source_digest(self, source: DeviceSource) -> str:
        """See :meth:`ToolchainFacts.source_digest`. Raises a ToolchainError if the facts lack this source."""
        label = _label(source)
        if label not in self._sources:
            raise ToolchainError(
                f"the bundle was made without the device source {label}",
                remedy="make the bundle again with this version of warp_tiles",
            )
        return self._sources[label]
