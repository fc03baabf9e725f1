"""cuBLASDx device code through NVRTC: the source, the options and the cache key of a variant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warp_tiles.errors import ToolchainError
from warp_tiles.toolchain import ToolchainStore
from warp_tiles.variant import DType, GemmVariant

if TYPE_CHECKING:
    from warp_tiles.cache import CacheKey
    from warp_tiles.compiler import Compiled, CompileRequest

_CXX_TYPES: dict[DType, str] = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
}
SOURCE_SCHEMA = 1


def kernels_folder() -> Path:
    """Folder of the device sources: inside the installed package, or at the top of a checkout.

    Raises:
        ToolchainError: Neither is there.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "kernels", package.parent / "kernels"):
        if (folder / "cublasdx" / "gemm.cuh").is_file():
            return folder
    raise ToolchainError(
        f"the device sources were found neither in {package / 'kernels'} nor in {package.parent / 'kernels'}",
        remedy="install warp-tiles again",
    )


def source_text(variant: GemmVariant) -> str:
    """Translation unit of a variant: macros that configure ``kernels/cublasdx/gemm.cuh``.

    Zeros for leading dimensions and alignments leave the cuBLASDx operator out, which cuBLASDx
    checks less strictly than one that repeats the default.
    """
    operands = {"A": variant.a, "B": variant.b, "C": variant.c}
    lds = (0, 0, 0) if variant.is_dense else variant.leading_dimensions
    weakest = variant.alignments == variant.element_alignments
    promised = (0, 0, 0) if weakest or not variant.is_dense else variant.alignments
    macros: dict[str, object] = {"SYMBOL": variant.symbol, "M": variant.m, "N": variant.n, "K": variant.k}
    for name, operand in operands.items():
        macros[f"{name}_DTYPE"] = _CXX_TYPES[operand.dtype]
        macros[f"{name}_ROW_MAJOR"] = int(operand.arrangement == "row_major")
    for name, ld, alignment in zip(operands, lds, promised):
        macros[f"LD{name}"] = ld
        macros[f"ALIGN_{name}"] = alignment
    macros["TF32"] = int(variant.precision == "tf32")
    macros["THREADS"] = variant.threads
    macros["SM"] = variant.arch * 10  # cuBLASDx writes sm_90 as 900
    lines = [f"#define WT_{name} {value}" for name, value in macros.items()]
    return "\n".join(["#include <cuda_fp16.h>", "#include <cuda_bf16.h>", *lines, '#include "gemm.cuh"', ""])


def options(variant: GemmVariant) -> dict[str, Any]:
    """What decides the code besides the source, as ``cuda.core.ProgramOptions`` names it.

    ``gen_opt_lto`` runs the optimizer once, when the variant is built, instead of at every link,
    and leaves a third of the bytes.
    """
    return {
        "arch": f"sm_{variant.arch}",
        "std": "c++17",
        "device_as_default_execution_space": True,
        "gen_opt_lto": True,
    }


class CublasdxProvider:
    """Builds variants from the cuBLASDx headers.

    Args:
        store: Finds the toolchain and digests its files.
    """

    name = "cublasdx"

    def __init__(self, store: ToolchainStore) -> None:
        self._store = store
        self._source = kernels_folder() / "cublasdx" / "gemm.cuh"

    def request(self, variant: GemmVariant) -> CompileRequest:
        """What to hand to the compiler.

        Raises:
            ToolchainError: There is no toolchain.
        """
        from warp_tiles.compiler import CompileRequest

        folders = [self._source.parent, *self._store.toolchain().include_dirs]
        paths = [os.fspath(folder) for folder in folders]
        return CompileRequest(
            f"{variant.symbol}.cu",
            source_text(variant),
            (*options(variant).items(), ("include_path", paths)),
            f"the cuBLASDx GEMM {variant.describe()}",
        )

    def identity(self) -> dict[str, str]:
        """What the LTO-IR depends on besides the variant.

        Raises:
            ToolchainError: There is no toolchain.
        """
        return {
            "provider": f"{self.name}/{SOURCE_SCHEMA}",
            "source": self._store.source_digest(self._source),
            "compiler": self._store.compiler_digest(),
        }

    def manifest(self, variant: GemmVariant, compiled: Compiled) -> dict[str, object]:
        """What the cache keeps beside a variant's LTO-IR."""
        return {
            "symbol": variant.symbol,
            "variant": variant.to_json(),
            "provider": self.name,
            "build_seconds": round(compiled.seconds, 3),
            "compiler": compiled.compiler,
            "mathdx": self._store.toolchain().mathdx_version,
        }

    def key(self, variant: GemmVariant) -> CacheKey:
        """Key of a variant's LTO-IR.

        Raises:
            ToolchainError: There is no toolchain.
        """
        from warp_tiles.cache import CacheKey

        fields: dict[str, str] = dict(self.identity())
        fields.update({f"variant.{name}": str(value) for name, value in variant.to_json().items()})
        fields.update({f"option.{name}": str(value) for name, value in options(variant).items()})
        fields["translation_unit"] = source_text(variant)
        return CacheKey.of(fields)
