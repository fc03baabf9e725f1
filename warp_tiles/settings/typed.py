"""The types of the keywords of ``configure()`` and ``override()``, for type checkers. No program imports this module.

A test compares the names and words with the settings themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os import PathLike
from typing import Generic, Literal, TypeVar

if sys.version_info >= (3, 11):
    from typing import TypedDict
else:
    from typing_extensions import TypedDict  # typing's own cannot be generic

Removed = TypeVar("Removed")  # None where a setting can be removed, else Never
Folder = str | PathLike[str]


class Keywords(TypedDict, Generic[Removed], total=False):
    """Every setting with the type of its values. See :class:`warp_tiles.Settings`."""

    provider: Literal["auto", "own", "cublasdx", "libmathdx", "scalar"] | Removed
    mathdx_opt_out: Literal["auto", "own", "warp"] | Removed
    linker: Literal["auto", "own", "warp"] | Removed
    cache_dir: Folder | Removed
    cache_max_bytes: int | str | Removed
    cache_shared: bool | Removed
    build_wait_s: float | Removed
    trusted_project_dirs: Sequence[Folder] | Removed
    modules: Literal["auto", "tiles", "all"] | Removed
    remote: str | Removed
    remote_push: bool | Removed
    remote_wait_s: float | Removed
    bundle: Folder | Removed
    kernel_packages: str | Sequence[str] | Removed
    signing_key: Folder | Removed
    trusted_keys: Sequence[str] | Removed
    jobs: int | Removed
    progress: Literal["auto", "on", "off"] | Removed
    register_accumulators: bool | Removed
    gemm_gradients: Literal["auto", "always", "off"] | Removed
    solver_gradients: Literal["warp", "own"] | Removed
    main_loop: str | Removed
    async_copies: bool | Removed
    policy: Literal["off", "scalar", "fast", "auto", "max", "locked"] | Removed
    record_paths: Sequence[Folder] | Removed
    record_driver_mismatch: Literal["reuse", "retune"] | Removed
    target_gpu: str | Removed
    tune_budget_s: float | Removed
