"""Kernels for recorded launches, and their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import warp as wp

CPU = "cpu"


@wp.struct
class Inner:
    offset: wp.vec3


@wp.struct
class Weights:
    scale: wp.float32
    values: wp.array(dtype=wp.float32)
    unused: wp.array(dtype=wp.float32)
    inner: Inner


@wp.kernel
def blend(
    a: wp.array(dtype=wp.float32),
    b: wp.array(dtype=wp.float32),
    c: wp.array(dtype=wp.float32),
    s: wp.float32,
    t: wp.float32,
    out: wp.array(dtype=wp.float32),
):
    i = wp.tid()
    out[i] = s * a[i] * b[i] + t * c[i]


@wp.kernel
def weighted(x: wp.array(dtype=wp.float32), w: Weights, shift: wp.vec3, out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = x[i] * w.values[i] * w.scale + w.inner.offset[0] + shift[1]


@wp.kernel
def twice(x: wp.array(dtype=Any), out: wp.array(dtype=Any)):
    i = wp.tid()
    out[i] = x[i] + x[i]


@wp.kernel(enable_backward=False)
def forward_only(x: wp.array(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = 3.0 * x[i]


@wp.kernel
def summed(x: wp.array2d(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    tile = wp.tile_load(x, shape=(1, 16), offset=(i, 0))
    wp.tile_atomic_add(out, wp.tile_sum(tile))


@wp.kernel
def nothing():
    wp.tid()


@wp.kernel
def gathered(x: wp.indexedarray(dtype=wp.float32), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = x[i]


def array(values: Any, *, grad: bool = True, dtype: Any = wp.float32) -> Any:
    return wp.array(values, dtype=dtype, device=CPU, requires_grad=grad)


def random(size: int = 5, seed: int = 0, *, grad: bool = True) -> Any:
    return array(np.random.default_rng(seed).normal(size=size), grad=grad)


def blend_arguments(size: int = 5, *, grad: bool = True) -> list[Any]:
    return [*(random(size, seed, grad=grad) for seed in (1, 2, 3)), 2.0, 0.5, random(size, 9, grad=grad)]


def expected_blend(arguments: list[Any]) -> np.ndarray:
    a, b, c, s, t, _ = (value.numpy() if isinstance(value, wp.array) else np.float32(value) for value in arguments)
    return np.asarray(s * a * b + t * c)


def gradients(arguments: list[Any]) -> list[np.ndarray]:
    return [value.grad.numpy().copy() for value in arguments if isinstance(value, wp.array)]


def launch_adjoint(kernel: Any, dim: Any, arguments: list[Any]) -> None:
    own = [value.grad if isinstance(value, wp.array) else None for value in arguments]
    wp.launch(kernel, dim=dim, inputs=arguments, adj_inputs=own, adjoint=True, device=CPU)


def struct_arguments() -> tuple[Any, list[Any]]:
    weights = Weights()
    weights.scale = 2.0
    weights.values = random(4, 5)
    weights.inner.offset = wp.vec3(1.0, 0.0, 0.0)
    return weights, [random(4, 6), weights, wp.vec3(0.0, 0.25, 0.0), array(np.zeros(4))]
