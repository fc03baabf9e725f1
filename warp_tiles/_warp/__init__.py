"""The only package that touches Warp's internals: what is hooked, how, and how it is taken back."""

from warp_tiles._warp.hooks import Hooks
from warp_tiles._warp.libmathdx import libmathdx_build
from warp_tiles._warp.modules import compile_module, rehash_modules, user_modules
from warp_tiles._warp.plans import plan_loaded_modules, plan_module
from warp_tiles._warp.seams import (
    REQUIRED,
    SUPPORTED_VERSIONS,
    check_seams,
    driver_version,
    find,
    mathdx_enabled,
    toolkit_version,
)

__all__ = [
    "REQUIRED",
    "SUPPORTED_VERSIONS",
    "Hooks",
    "check_seams",
    "compile_module",
    "driver_version",
    "find",
    "libmathdx_build",
    "mathdx_enabled",
    "plan_loaded_modules",
    "plan_module",
    "rehash_modules",
    "toolkit_version",
    "user_modules",
]
