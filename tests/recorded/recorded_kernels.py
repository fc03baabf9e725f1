"""A kernel for recorded launches, and its arguments."""

from typing import Any

import warp as wp


@wp.struct
class Scale:
    factor: wp.float32
    weights: wp.array(dtype=wp.float32)


@wp.kernel
def weighted(x: wp.array(dtype=wp.float32), scale: Scale, shift: wp.vec3, out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = x[i] * scale.weights[i] * scale.factor + shift[1]


def arguments_on(device: Any, size: int = 2) -> list[Any]:
    x, weights, out = (wp.full(size, value, wp.float32, device, requires_grad=True) for value in (3.0, 5.0, 0.0))
    scale = Scale()
    scale.factor, scale.weights = 2.0, weights
    return [x, scale, wp.vec3(0.0, 0.5, 0.0), out]


def arrays_of(arguments: list[Any]) -> list[list[float]]:
    """Values and gradients of the arrays."""
    x, scale, _, out = arguments
    return [part.numpy().tolist() for array in (x, scale.weights, out) for part in (array, array.grad)]


def launched_by_warp(device: Any, size: int = 2) -> list[list[float]]:
    """The arrays after a launch of Warp and its adjoint, with gradients of 1."""
    arguments = arguments_on(device, size)
    with wp.Tape() as tape:
        wp.launch(weighted, size, inputs=arguments, device=device)
    tape.backward(grads={arguments[3]: wp.ones_like(arguments[3])})
    return arrays_of(arguments)
