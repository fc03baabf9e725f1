"""Float32 gradients as sums of two 16-bit numbers, which tensor cores multiply with 16-bit operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warp_tiles.gemm.dtypes import DType
from warp_tiles.matmul.device_functions import types
from warp_tiles.matmul.elementwise import CHUNK, largest_kernel, parts_kernel
from warp_tiles.matmul.launches import launch, prepare
from warp_tiles.matmul.views import View, contiguous

_NUMBER = contiguous("float32", (1, 1, 1))
_Launch = tuple[Any, tuple[View, ...], tuple[int, ...], int]  # kernel, views, dimensions, and the integer argument


@dataclass(frozen=True)
class GradientLayout:
    """The gradient of a result, as an operand of its operands' gradients.

    Attributes:
        view: The array, or the first parts of its elements. The second parts lie ``batch * strides[0]`` bytes behind.
        is_in_parts: True if each element is a sum of two numbers.
        has_factor: True if each element has a factor that a kernel computes.
    """

    view: View
    is_in_parts: bool = False
    has_factor: bool = False


@dataclass(frozen=True)
class Gradient:
    """A gradient in memory.

    Attributes:
        layout: Its layout.
        array: The array.
        factor: An array with the factor, or None.
    """

    layout: GradientLayout
    array: Any
    factor: Any = None

    @property
    def factor_pointer(self) -> int | None:
        """Address of the factor; None without one."""
        return None if self.factor is None else int(self.factor.ptr)


def layout_of(view: View, operands: DType) -> GradientLayout:
    """The layout in which a gradient is multiplied.

    Args:
        view: The gradient.
        operands: Element type of the operands.
    """
    if view.dtype == operands:
        return GradientLayout(view)
    return GradientLayout(contiguous(operands, view.shape), is_in_parts=True, has_factor=operands == "float16")


def as_operand(view: View, array: Any, operands: DType, device: Any) -> Gradient:
    """A gradient in the layout in which it is multiplied. For another layout it launches one or two kernels.

    Args:
        view, array: The gradient.
        operands: Element type of the operands.
        device: Warp's device.
    """
    import warp as wp

    layout = layout_of(view, operands)
    if not layout.is_in_parts:
        return Gradient(layout, array)
    batch, rows, columns = view.shape
    (half,) = types(operands)
    parts = wp.empty((2 * batch, rows, columns), dtype=half, device=device)
    numbers = wp.zeros((2, 1, 1), dtype=float, device=device)  # the largest magnitude, and the factor
    largest, factor = numbers[0], numbers[1]
    pointers: list[tuple[int, ...]] = [(array.ptr, largest.ptr, parts.ptr, factor.ptr)]
    if layout.has_factor:
        pointers.insert(0, (array.ptr, largest.ptr))
    for (kernel, views, dim, count), addresses in zip(_launches(view, operands), pointers):
        launch(kernel, views, addresses, dim, device, count)
    return Gradient(layout, parts, factor if layout.has_factor else None)


def prepare_operand(view: View, operands: DType, device: Any) -> None:
    """Builds and loads the kernels that :func:`as_operand` launches."""
    if layout_of(view, operands).is_in_parts:
        for kernel, views, dim, count in _launches(view, operands):
            prepare(kernel, views, dim, device, count)


def _launches(view: View, operands: DType) -> list[_Launch]:
    """The launches that write a gradient in parts."""
    batch, rows, columns = view.shape
    parts = contiguous(operands, (2 * batch, rows, columns))
    halve: _Launch = (parts_kernel(operands), (view, _NUMBER, parts, _NUMBER), view.shape, batch)
    if operands != "float16":
        return [halve]
    return [(largest_kernel(), (view, _NUMBER), (batch, -(-rows // CHUNK), columns), CHUNK), halve]
