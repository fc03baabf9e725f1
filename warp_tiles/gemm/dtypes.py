"""The element types of products and their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DType = Literal["float16", "bfloat16", "float32", "float64"]


@dataclass(frozen=True)
class DTypeInfo:
    """One element type.

    Attributes:
        name: Its name in Warp's Python API, e.g. ``float16``.
        code: Its name in the symbols of device functions.
        letter: Its name in tables of variants.
        warp_type: Its C++ type in the source that Warp generates.
        cuda_type: Its C++ type in CUDA's headers, which cuBLASDx uses.
        roundoff: Unit roundoff, https://en.wikipedia.org/wiki/Machine_epsilon.
    """

    name: DType
    size_bytes: int
    code: str
    letter: str
    kernel_type: str
    warp_type: str
    cuda_type: str
    roundoff: float


DTYPES: dict[DType, DTypeInfo] = {
    info.name: info
    for info in (
        DTypeInfo("float16", 2, "f16", "h", "wt::f16", "wp::float16", "__half", 2.0**-11),
        DTypeInfo("bfloat16", 2, "bf16", "b", "wt::bf16", "wp::bfloat16", "__nv_bfloat16", 2.0**-8),
        DTypeInfo("float32", 4, "f32", "f", "float", "wp::float32", "float", 2.0**-24),
        DTypeInfo("float64", 8, "f64", "d", "double", "wp::float64", "double", 2.0**-53),
    )
}
DTYPE_BYTES: dict[DType, int] = {name: info.size_bytes for name, info in DTYPES.items()}
