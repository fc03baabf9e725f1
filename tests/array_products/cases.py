"""Arrays and expected results of :func:`warp_tiles.matmul`. The tests of the CPU and of GPUs use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import warp as wp

Values = npt.NDArray[np.float64]
CPU = "cpu"
# a kernel of float32 operands that are not transposed
PLAIN: dict[str, Any] = {
    "a": "float32", "b": "float32", "tile": (32, 32, 32), "a_transposed": False, "b_transposed": False, "tf32": False
}  # fmt: skip


@wp.func
def square(x: float):
    return x * x


@wp.func
def cube(x: Any):
    return x * x * x


def integers(seed: int, *shape: int, most: int = 3) -> Values:
    """Small whole numbers, whose products have exact sums in every type."""
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(float)


def on(values: Values, dtype: Any = wp.float32, device: str = CPU, **options: Any) -> Any:
    """A Warp array of values."""
    return wp.array(
        values.astype(np.float64 if dtype is wp.float64 else np.float32), dtype=dtype, device=device, **options
    )


def zeros(*shape: int, dtype: Any = wp.float32) -> Any:
    """A Warp array of zeros on the CPU."""
    return wp.zeros(shape, dtype=dtype, device=CPU)


def values_of(array: Any) -> Values:
    """The elements of an array, also of bfloat16, which NumPy lacks."""
    if array.dtype is not wp.bfloat16:
        return np.asarray(array.numpy(), dtype=np.float64)
    return (array.view(wp.uint16).numpy().astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def transposed(values: Values, dtype: Any = wp.float32, device: str = CPU, **options: Any) -> Any:
    """A Warp array whose columns are contiguous."""
    axes = (1, 0) if values.ndim == 2 else (0, 2, 1)
    return on(np.ascontiguousarray(values.transpose(axes)), dtype, device, **options).transpose(axes)


def inside(values: Values, dtype: Any = wp.float32, device: str = CPU, **options: Any) -> Any:
    """A Warp array that is a part of a larger one, whose other elements are NaN."""
    shape = (*values.shape[:-2], values.shape[-2] + 3, values.shape[-1] + 5)
    larger = np.full(shape, np.nan)
    larger[..., 1:-2, 2:-3] = values
    part = (slice(None),) * (values.ndim - 2) + (slice(1, -2), slice(2, -3))
    return on(larger, dtype, device, **options)[part]


def spread(values: Values, dtype: Any = wp.float32, device: str = CPU, **options: Any) -> Any:
    """A Warp array of every second element in both directions of a larger one."""
    shape = (*values.shape[:-2], 2 * values.shape[-2], 2 * values.shape[-1])
    larger = np.full(shape, np.nan)
    larger[..., ::2, ::2] = values
    part = (slice(None),) * (values.ndim - 2) + (slice(None, None, 2), slice(None, None, 2))
    return on(larger, dtype, device, **options)[part]


TYPES = {"float16": wp.float16, "bfloat16": wp.bfloat16, "float32": wp.float32, "float64": wp.float64}
# shapes of A and B in products of batches, of which an operand may be shared
BATCHES = [
    ((3, 33, 20), (3, 20, 18)),
    ((3, 33, 20), (20, 18)),
    ((33, 20), (3, 20, 18)),
    ((1, 33, 20), (3, 20, 18)),
    ((3, 33, 20), (1, 20, 18)),
]
LAYOUTS = {"rows": on, "columns": transposed, "inside": inside, "spread": spread}
