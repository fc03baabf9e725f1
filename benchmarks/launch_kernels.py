"""Kernels that take less time than a launch: a linear model, its loss, its gradient descent, and one without work."""

# mypy: ignore-errors
# Warp reads annotations as values, so they are not types

import warp as wp


@wp.kernel
def predict(
    x: wp.array(dtype=wp.float32),
    weight: wp.array(dtype=wp.float32),
    bias: wp.array(dtype=wp.float32),
    scale: wp.float32,
    shift: wp.float32,
    y: wp.array(dtype=wp.float32),
):
    i = wp.tid()
    y[i] = scale * weight[i] * x[i] + bias[i] + shift


@wp.kernel
def squared_error(
    y: wp.array(dtype=wp.float32),
    target: wp.array(dtype=wp.float32),
    loss: wp.array(dtype=wp.float32),
):
    i = wp.tid()
    difference = y[i] - target[i]
    wp.atomic_add(loss, 0, difference * difference)


@wp.kernel(enable_backward=False)
def descend(
    weight: wp.array(dtype=wp.float32),
    gradient: wp.array(dtype=wp.float32),
    rate: wp.float32,
):
    i = wp.tid()
    weight[i] = weight[i] - rate * gradient[i]
    gradient[i] = 0.0


@wp.kernel(enable_backward=False)
def separator():
    """Marks a place among the kernels of a profile."""


@wp.func
def gelu(x: wp.float32):
    return 0.5 * x * (1.0 + wp.erf(x * 0.70710678))
