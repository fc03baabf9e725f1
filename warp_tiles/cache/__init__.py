"""Content-addressed cache of compiled GEMM variants (raw LTO-IR).

A key is a list of labelled inputs; a payload is stored under its SHA-256. The cache never fails a build: a folder
that cannot be used costs the caching. It does refuse a folder that others can write. See ``docs/cache.md``.
"""

from warp_tiles.cache._bundle import BundleReport
from warp_tiles.cache._explain import Difference, Explanation, explain
from warp_tiles.cache._folder import default_root
from warp_tiles.cache._key import SCHEMA_VERSION, CacheKey, KeyField
from warp_tiles.cache._maintain import CacheInfo, Finding, GcReport, Listed, VerifyReport
from warp_tiles.cache._manifest import Entry, Manifest
from warp_tiles.cache._memo import FileDigests
from warp_tiles.cache._report import Problem
from warp_tiles.cache._store import Cache, Counters

__all__ = [
    "SCHEMA_VERSION",
    "BundleReport",
    "Cache",
    "CacheInfo",
    "CacheKey",
    "Counters",
    "Difference",
    "Entry",
    "Explanation",
    "FileDigests",
    "Finding",
    "GcReport",
    "KeyField",
    "Listed",
    "Manifest",
    "Problem",
    "VerifyReport",
    "default_root",
    "explain",
]
