"""Options for compiling and linking a whole Warp module: Warp's own, and one more for the link.

Warp's own link has no option that drops unused variables. With the constants of the cuBLASDx
headers it takes seconds and writes cubins of megabytes. So warp_tiles compiles a module's source to
LTO-IR in parallel to the GEMM builds and links it, if every input allows it. docs/templates.md has
the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warp_tiles.toolchain.search import Toolchain, Version, dotted

# every keyword of build_cuda() in Warp 1.17 to 1.19; an unknown keyword could change the code
KNOWN_KEYWORDS = frozenset({
    "pch_dir", "config", "optimization_level", "verify_fp", "fast_math", "fuse_fp", "lineinfo", "compile_time_trace",
    "ltoirs", "fatbins", "arch_suffix", "llvm_cuda", "use_precompiled_headers", "extra_include_dirs",
})  # fmt: skip
_OFAST = {0: "max", 1: "mid", 2: "min"}


@dataclass(frozen=True)
class ModuleSource:
    """A module as Warp passes it to its compiler.

    Attributes:
        name: File name of the generated source.
        arch: Compute capability, e.g. ``90``.
        output: ``cubin`` or ``ptx``.
        native_dir: Folder of Warp's own headers.
        keywords: The keyword arguments of ``build_cuda()``.
        suffix: ``a`` if its code needs instructions of ``sm_90a`` alone, else empty.
    """

    name: str
    arch: int
    output: str
    native_dir: str
    keywords: Mapping[str, Any]
    suffix: str = ""

    @property
    def target(self) -> str:
        """``sm_90`` for a cubin, ``compute_90`` for PTX, with Warp's suffix."""
        kind = "compute" if self.output == "ptx" else "sm"
        return f"{kind}_{self.arch}{self.suffix or self.keywords.get('arch_suffix', '')}"


def module_options(module: ModuleSource, nvrtc_version: Version) -> dict[str, Any]:
    """Warp's NVRTC options for a module, as ``cuda.core.ProgramOptions`` names them.

    Source: ``wp_cuda_compile_program`` and ``append_common_nvrtc_compile_options`` of Warp's
    ``native/warp.cu``. Precompiled headers are omitted, because they change the time and not the code.
    """
    keywords = module.keywords
    level = int(keywords.get("optimization_level", 3))
    define: list[str | tuple[str, str]] = ["NDEBUG", ("WP_ENABLE_MATHDX", "1")]
    # NVRTC 12.8 and 12.9 miscompile texture sampling for these targets; this macro makes Warp's headers avoid it
    affected = module.output == "cubin" and module.arch >= 90 and (12, 8) <= nvrtc_version < (13, 0)
    if affected and (level > 0 or nvrtc_version < (12, 9)):
        define.append("WP_WORKAROUND_CUDA_TEXTURE_CUBIN")
    options: dict[str, Any] = {
        "arch": module.target,
        "include_path": [module.native_dir, *map(str, keywords.get("extra_include_dirs", ()))],
        "std": "c++17",
        "fma": bool(keywords.get("fuse_fp", True)),
        "device_as_default_execution_space": True,
        "extra_device_vectorization": True,
        "restrict": True,
        "diag_suppress": [177, 550],
    }
    if nvrtc_version >= (12, 9):
        options["ofast_compile"] = _OFAST.get(level, "0")
        if level == 0 and nvrtc_version >= (13, 1):
            options["ofast_compile"] = "mid"  # as Warp does: 13.1 and newer corrupt later builds at "max"
    if keywords.get("verify_fp"):
        define.append("WP_VERIFY_FP")
    else:
        options["undefine_macro"] = "WP_VERIFY_FP"
    if keywords.get("lineinfo"):
        options["lineinfo"] = True
    if keywords.get("fast_math"):
        options["use_fast_math"] = True
    options["define_macro"] = define
    return options


def warp_link_reason(
    module: ModuleSource,
    *,
    toolchain: Toolchain | None,
    foreign_inputs: Sequence[str],
) -> str:
    """The reason why Warp has to link a module; empty if warp_tiles can link it.

    Args:
        module: The module.
        toolchain: The toolchain of warp_tiles, or None if there is none.
        foreign_inputs: Names of inputs from another compiler than the one of ``toolchain``.
    """
    keywords = module.keywords
    if toolchain is None:
        return "there is no toolchain except Warp's"
    if not toolchain.can_link:
        found = dotted(toolchain.nvjitlink_version)
        return f"nvJitLink {found} cannot read the LTO-IR of NVRTC {dotted(toolchain.nvrtc_version)}"
    if foreign_inputs:
        return f"it also links {', '.join(foreign_inputs)}, built by Warp's newer compiler"
    if unknown := sorted(set(keywords) - KNOWN_KEYWORDS):
        return f"this Warp has unknown build options: {', '.join(unknown)}"
    if keywords.get("config") == "debug":
        return "it is a debug build"
    if keywords.get("compile_time_trace"):
        return "a compile-time trace of Warp's compiler was requested"
    if keywords.get("llvm_cuda"):
        return "LLVM compiles it"
    return ""
