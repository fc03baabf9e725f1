"""Flags for compiling and linking a whole Warp module: Warp's own, and one more for the link.

Warp's own link has no option that drops unused variables. With the constants of the cuBLASDx
headers it takes seconds and writes cubins of megabytes. So warp_tiles compiles a module's source to
LTO-IR in parallel to the GEMM builds and links it, if every input allows it. docs/templates.md has
the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warp_tiles.compile.search import Toolchain, Version, dotted
from warp_tiles.gemm.hardware import TEXTURE_WORKAROUND_ARCH

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
        arch: Compute capability, e.g. ``90``.
        output: ``cubin`` or ``ptx``.
        native_dir: Folder of Warp's own headers.
        suffix: ``a`` if its code needs instructions of ``sm_90a`` alone, else empty.
    """

    name: str
    arch: int
    output: str
    native_dir: str
    keywords: Mapping[str, Any]
    suffix: str = ""

    @property
    def include_dirs(self) -> tuple[str, ...]:
        """The folders of Warp's headers and those of the user."""
        return (self.native_dir, *map(str, self.keywords.get("extra_include_dirs", ())))

    @property
    def target(self) -> str:
        """``sm_90`` for a cubin, ``compute_90`` for PTX, with Warp's suffix."""
        kind = "compute" if self.output == "ptx" else "sm"
        return f"{kind}_{self.arch}{self.suffix or self.keywords.get('arch_suffix', '')}"


def module_flags(module: ModuleSource, nvrtc_version: Version) -> tuple[str, ...]:
    """Warp's flags of NVRTC for a module.

    Source: ``wp_cuda_compile_program`` and ``append_common_nvrtc_compile_options`` of Warp's
    ``native/warp.cu``. Precompiled headers are omitted, because they change the time and not the code.
    """
    keywords = module.keywords
    level = int(keywords.get("optimization_level", 3))
    flags = [
        f"-arch={module.target}", "--std=c++17", f"--fmad={str(bool(keywords.get('fuse_fp', True))).lower()}",
        "--device-as-default-execution-space", "--extra-device-vectorization", "--restrict",
        "--diag-suppress=177", "--diag-suppress=550", "--define-macro=NDEBUG", "--define-macro=WP_ENABLE_MATHDX=1",
    ]  # fmt: skip
    # NVRTC 12.8 and 12.9 miscompile texture sampling for these targets; this macro makes Warp's headers avoid it
    affected = (
        module.output == "cubin" and module.arch >= TEXTURE_WORKAROUND_ARCH and (12, 8) <= nvrtc_version < (13, 0)
    )
    if affected and (level > 0 or nvrtc_version < (12, 9)):
        flags.append("--define-macro=WP_WORKAROUND_CUDA_TEXTURE_CUBIN")
    if nvrtc_version >= (12, 9):
        is_broken = level == 0 and nvrtc_version >= (13, 1)  # as Warp does: they corrupt later builds at "max"
        flags.append(f"--Ofast-compile={'mid' if is_broken else _OFAST.get(level, '0')}")
    flags.append(f"--{'define' if keywords.get('verify_fp') else 'undefine'}-macro=WP_VERIFY_FP")
    if keywords.get("lineinfo"):
        flags.append("--generate-line-info")
    if keywords.get("fast_math"):
        flags.append("--use_fast_math")
    return tuple(flags)


def warp_link_reason(
    module: ModuleSource,
    *,
    toolchain: Toolchain | None,
    foreign_inputs: Sequence[str],
) -> str:
    """The reason why Warp has to link a module; empty if warp_tiles can link it.

    Args:
        toolchain: The toolchain of warp_tiles, or None if there is none.
        foreign_inputs: Names of inputs from another compiler than the one of ``toolchain``.
    """
    keywords = module.keywords
    if toolchain is None:
        return "there is no toolchain except Warp's: see `warp-tiles doctor`"
    if not toolchain.can_link:
        found = dotted(toolchain.nvjitlink_version)
        written = dotted(toolchain.nvrtc_version)
        return f"nvJitLink {found} cannot read the LTO-IR of NVRTC {written}: see `warp-tiles doctor`"
    if foreign_inputs:
        inputs = f"it also links {', '.join(foreign_inputs)}, built by Warp's newer compiler"
        return f"{inputs}: put kernels with such calls into another module"
    if unknown := sorted(set(keywords) - KNOWN_KEYWORDS):
        return f"this Warp has unknown build options: {', '.join(unknown)}"
    if keywords.get("config") == "debug":
        return "it is a debug build: set the module option mode to 'release'"
    if keywords.get("compile_time_trace"):
        return "a compile-time trace of Warp's compiler was requested: set wp.config.compile_time_trace to False"
    if keywords.get("llvm_cuda"):
        return "LLVM compiles it: set wp.config.llvm_cuda to False"
    return ""
