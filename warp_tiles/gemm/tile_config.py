"""The answer: how this project's own templates compute a GEMM variant.

A :class:`TileConfig` holds every choice that ``kernels/gemm`` leaves open. :func:`warp_tiles.gemm.choose.choose`
chooses one for a variant. Any field can be replaced; :func:`warp_tiles.gemm.limits.check` raises an error if the
result cannot be built.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Instruction = Literal["mma_m16n8k16", "mma_m16n8k8", "mma_m8n8k4", "fma"]
_FORMER_NAMES = {f"rotation_{operand}": f"swizzle_{operand}" for operand in "abc"}  # in JSON of version 0.1


@dataclass(frozen=True)
class TileConfig:
    """The tiling and the memory accesses with which a block computes C.

    C is cut into warp tiles. Warp w computes tiles w, w + warps, w + 2 * warps, ... With ``warps_k`` above 1 (split-K),
    that many warps compute one warp tile. Each sums an equal slice of K, and they add their results to C one by one.

    Attributes:
        instruction: ``mma_*`` multiplies on tensor cores, ``fma`` in each lane.
        tile_m, tile_n: Rows and columns of a warp tile, which a warp holds in registers.
        lanes_m, lanes_n, lanes_k: The grid of the 32 lanes along M, N and K with ``fma``; 1 with ``mma_*``.
        warps_k: Split-K: the number of warps that share the sum over K of one warp tile; 1 without split-K.
        k_vector: Contiguous elements of K that a lane reads at a time.
        k_unroll: Unrolled steps over K.
        swizzle_a, swizzle_b, swizzle_c: The number of XOR patterns with which lanes permute their accesses to avoid
            bank conflicts: 1 (none), 2 or 4.
        transposed: Compute ``C^T = B^T A^T``, which exchanges rows and columns.
        c_first: Read C before the products instead of after them.
    """

    instruction: Instruction
    tile_m: int
    tile_n: int
    lanes_m: int = 1
    lanes_n: int = 1
    lanes_k: int = 1
    warps_k: int = 1
    k_vector: int = 1
    k_unroll: int = 1
    swizzle_a: int = 1
    swizzle_b: int = 1
    swizzle_c: int = 1
    transposed: bool = False
    c_first: bool = False

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> TileConfig:
        """The configuration in JSON of :meth:`to_json`, of this version or an earlier one.

        Raises:
            ValueError: A field is missing, unknown or of another type.
        """
        kinds = {item.name: {"int": int, "bool": bool}.get(str(item.type), str) for item in fields(cls)}
        values: dict[str, Any] = {}
        if isinstance(data, dict):
            values = {_FORMER_NAMES.get(str(name), str(name)): value for name, value in data.items()}
        if not isinstance(data, dict) or len(values) != len(data) or set(values) != set(kinds):
            raise ValueError(f"not a tile configuration, which has the fields {', '.join(kinds)}: {data!r}")
        if any(type(values[name]) is not kind for name, kind in kinds.items()):
            raise ValueError(f"not a tile configuration, a field has another type: {data!r}")
        if values["instruction"] not in get_args(Instruction):
            raise ValueError(f"not a tile configuration, instruction is {values['instruction']!r}")
        return cls(**values)

    def describe(self) -> str:
        """A short text for tables, e.g. ``mma_m16n8k16 32x64``."""
        lanes = f", lanes {self.lanes_m}x{self.lanes_n}x{self.lanes_k}" if self.instruction == "fma" else ""
        warps = f", {self.warps_k} warps along K" if self.warps_k > 1 else ""
        return f"{self.instruction} {self.tile_m}x{self.tile_n}{lanes}{warps}"
