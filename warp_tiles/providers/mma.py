"""The provider of this project's own device code, compiled with NVRTC.

The chooser is imported when a variant is planned. A process that finds all modules in Warp's cache does not need it.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from warp_tiles.compile.toolchain import ToolchainStore
from warp_tiles.errors import UnsupportedVariant
from warp_tiles.gemm.problem import DTYPE_BYTES, DTYPES, GemmProblem
from warp_tiles.gemm.tile_config import TileConfig, accumulators_per_thread, computes_in_double
from warp_tiles.providers.base import Recipe, Tuned
from warp_tiles.providers.nvrtc import OwnProvider, constants, unique_name

if TYPE_CHECKING:
    from warp_tiles.codegen.answers import LoopAccumulators

SOURCE = "gemm/block_gemm.cuh"  # below kernels/


def problem_struct(variant: GemmProblem) -> str:
    """C++ structure of the variant for ``kernels/gemm/problem.cuh``."""
    operands = {"a": variant.a, "b": variant.b, "c": variant.c}
    types = " ".join(
        f"using {name.upper()} = {DTYPES[operand.dtype].kernel_type};" for name, operand in operands.items()
    )
    sizes = {"m": variant.m, "n": variant.n, "k": variant.k}
    sizes |= {f"ld{name}": operand.leading_dimension for name, operand in operands.items()}
    flags = {f"{name}_row_major": operand.arrangement == "row_major" for name, operand in operands.items()}
    return "\n".join(
        [
            "struct Problem {",
            f"    {types}",
            constants("int", sizes),
            constants("int", {f"align_{name}": operand.alignment for name, operand in operands.items()}),
            constants("bool", {**flags, "tf32": variant.precision == "tf32"}),
            constants("int", {"threads": variant.threads, "sm": variant.arch}),
            "};",
        ]
    )


def config_struct(config: TileConfig) -> str:
    """C++ structure of the tile configuration."""
    values = config.to_json()
    instruction = f"    static constexpr wt::Instruction instruction = wt::Instruction::{values.pop('instruction')};"
    flags = {name: value for name, value in values.items() if isinstance(value, bool)}
    numbers = {name: value for name, value in values.items() if name not in flags}
    return "\n".join(
        [
            "struct Config {",
            instruction,
            constants("int", numbers),
            constants("bool", flags),
            "};",
        ]
    )


def translation_unit(variant: GemmProblem, config: TileConfig) -> str:
    """The translation unit of the variant's device function. Both structures lie in one with a unique name."""
    structs = f"{problem_struct(variant)}\n{config_struct(config)}"
    unique = unique_name(variant.symbol, structs)
    return f"""#include "{SOURCE}"

struct {unique} {{
{structs}
}};

extern "C" __device__ void {variant.symbol}(void* alpha, void* a, void* b, void* beta, void* c)
{{
    wt::block_gemm<{unique}>(alpha, a, b, beta, c);
}}
{_loop_functions(variant, config, unique)}"""


def _loop_functions(variant: GemmProblem, config: TileConfig, unique: str) -> str:
    if isinstance(register_accumulators(variant, variant.symbol, config), str):
        return ""
    # must be inlined, or the compiler keeps the accumulators, an array of the caller, in local memory
    return f"""
extern "C" __device__ __attribute__((always_inline)) void {variant.symbol}_add(void* accumulators, void* a, void* b)
{{
    wt::block_gemm_add<{unique}>(accumulators, a, b);
}}

extern "C" __device__ __attribute__((always_inline)) void {variant.symbol}_finish(void* accumulators, void* c)
{{
    wt::block_gemm_finish<{unique}>(accumulators, c);
}}
"""


def register_accumulators(variant: GemmProblem, symbol: str, config: TileConfig) -> LoopAccumulators | str:
    """The accumulators that a loop keeps in registers, or the reason why there are none."""
    from warp_tiles.codegen.answers import LoopAccumulators

    if DTYPE_BYTES[variant.c.dtype] < 4:
        return f"each product is rounded to {variant.c.dtype}, the dtype of C: use a C of float32"
    if not (count := accumulators_per_thread(variant, config)):
        return "registers do not hold the accumulators of its tile: use smaller tiles or more threads"
    accumulators = DTYPES["float64" if computes_in_double(variant) else "float32"]
    return LoopAccumulators(symbol, accumulators.warp_type, count)


@functools.lru_cache(maxsize=4096)
def _chosen(variant: GemmProblem) -> TileConfig:
    from warp_tiles.gemm.choose import choose

    return choose(variant)


class MmaProvider(OwnProvider[GemmProblem]):
    """Builds GEMM variants from the templates in ``kernels/gemm``.

    Args:
        store: Finds the compiler and digests files.
        tuned: Measurements. With None, the heuristics make every choice.
    """

    schema = 1
    header = SOURCE

    def __init__(self, store: ToolchainStore, tuned: Tuned | None = None) -> None:
        super().__init__(store)
        self._tuned = tuned

    def text(self, recipe: Recipe) -> str:
        """See :class:`NvrtcProvider`."""
        assert isinstance(recipe.variant, GemmProblem)
        assert isinstance(recipe.tile_config, TileConfig)
        return translation_unit(recipe.variant, recipe.tile_config)

    def recipes(self, variant: GemmProblem) -> tuple[Recipe, ...]:
        """See :meth:`Provider.recipes`. The first recipe is the fastest measured one, the second the chooser's."""
        try:
            config = _chosen(variant)
        except UnsupportedVariant as error:
            raise UnsupportedVariant(f"{self.name} cannot serve {error.message}") from error
        chosen = Recipe("the provider mma", variant, variant.symbol, config)
        tuned = self._tuned.best(variant, (self.name,)) if self._tuned else None
        if tuned is None or tuned.tile_config == config:
            return (chosen,)
        return (replace(chosen, title="the provider mma as tuned", tile_config=tuned.tile_config), chosen)
