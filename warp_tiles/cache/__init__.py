"""Content-addressed cache of compiled GEMM variants (raw LTO-IR), and of headers that tuning keeps.

A key is a list of labelled inputs. A payload is stored under its SHA-256. The cache never fails a build: if its
folder cannot be used, only the caching is lost. It does refuse a folder that others can write. See ``docs/cache.md``.

Names are imported at their first use, because a process that builds nothing needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warp_tiles.cache._explain import explain
    from warp_tiles.cache._key import SCHEMA_VERSION, CacheKey, KeyField
    from warp_tiles.cache._maintain import EntryInfo
    from warp_tiles.cache._manifest import Entry, Manifest
    from warp_tiles.cache._paths import cache_root, default_root
    from warp_tiles.cache._store import Cache, Counters

_LAZY_NAMES = {
    "Cache": "_store",
    "CacheKey": "_key",
    "Counters": "_store",
    "Entry": "_manifest",
    "EntryInfo": "_maintain",
    "KeyField": "_key",
    "Manifest": "_manifest",
    "SCHEMA_VERSION": "_key",
    "cache_root": "_paths",
    "default_root": "_paths",
    "explain": "_explain",
}

__all__ = [
    "SCHEMA_VERSION",
    "Cache",
    "CacheKey",
    "Counters",
    "Entry",
    "EntryInfo",
    "KeyField",
    "Manifest",
    "cache_root",
    "default_root",
    "explain",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LAZY_NAMES[name]}"), name)
    globals()[name] = value
    return value
