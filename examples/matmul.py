"""Products of whole matrices: a layer with bias and GELU, its gradient, and a batch of small matrices.

    python examples/matmul.py
    python examples/matmul.py --size 4096

warp_tiles.matmul launches ordinary Warp kernels, on a GPU or on the CPU. Each result is compared with NumPy's.
"""

import argparse
import math
import sys

import numpy as np
import warp as wp

import warp_tiles


@wp.func
def gelu(x: float):
    return 0.5 * x * (1.0 + wp.erf(x * 0.70710678))


@wp.kernel
def mean_square(y: wp.array2d[wp.float16], loss: wp.array[float]):
    i, j = wp.tid()
    wp.atomic_add(loss, 0, float(y[i, j]) * float(y[i, j]) / float(y.shape[0] * y.shape[1]))


def numpy_gelu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """GELU and its derivative."""
    cdf = 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return x * cdf, cdf + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def difference(found: wp.array, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest element."""
    return float(np.max(np.abs(found.numpy().astype(np.float64) - expected)) / np.max(np.abs(expected)))


def layer(size: int, device: wp.Device) -> dict[str, float]:
    """y = gelu(x @ w + bias) in float16, and the gradients of a loss."""
    random = np.random.default_rng(0)
    x = wp.array(random.normal(size=(size, size)), dtype=wp.float16, device=device, requires_grad=True)
    w = wp.array(
        random.normal(size=(size, size)) / math.sqrt(size), dtype=wp.float16, device=device, requires_grad=True
    )
    bias = wp.array(random.normal(size=size), dtype=float, device=device, requires_grad=True)
    loss = wp.zeros(1, dtype=float, device=device, requires_grad=True)
    with wp.Tape() as tape:
        y = warp_tiles.matmul(x, w, bias=bias, epilogue=gelu)
        wp.launch(mean_square, dim=y.shape, inputs=[y], outputs=[loss], device=device)
    tape.loss = loss
    loss.grad.fill_(1024.0)  # the gradients of a mean are small for float16
    tape.backward()
    if warp_tiles.is_planning():  # under warp-tiles plan or compile nothing was computed
        return {}
    xs, ws = x.numpy().astype(np.float64), w.numpy().astype(np.float64)
    expected, slope = numpy_gelu(xs @ ws + bias.numpy())
    g = 1024.0 * 2 * expected / expected.size * slope
    return {
        "gelu(x @ w + bias)": difference(y, expected),
        "gradient of x": difference(x.grad, g @ ws.T),
        "gradient of w": difference(w.grad, xs.T @ g),
        "gradient of bias": difference(bias.grad, g.sum(0)),
    }


def batch(device: wp.Device) -> dict[str, float]:
    """100 products of transposed matrices, added to what the result held."""
    random = np.random.default_rng(1)
    a, b, c = (random.normal(size=(100, 48, 48)).astype(np.float32) for _ in range(3))
    out = wp.array(c, device=device)
    left = wp.array(a, device=device).transpose((0, 2, 1))  # a view; nothing is copied
    warp_tiles.matmul(left, wp.array(b, device=device), out, alpha=2.0, beta=0.5)
    if warp_tiles.is_planning():
        return {}
    return {"2 a^T @ b + c / 2": difference(out, 2 * a.transpose(0, 2, 1).astype(np.float64) @ b + 0.5 * c)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=192, help="rows and columns of the layer's matrices")
    arguments = parser.parse_args()
    if arguments.size < 1:
        parser.error(f"--size must be at least 1, got {arguments.size}")

    warp_tiles.enable()
    device = wp.get_preferred_device()
    found = {**layer(arguments.size, device), **batch(device)}
    for name, error in found.items():
        print(f"{name} on {device}: differs from NumPy by {error:.1e} of the largest element")
    if any(not error < 5e-3 for error in found.values()):
        sys.exit("a result is wrong: it differs by more than 5e-3")


if __name__ == "__main__":
    main()
