"""Positive definite systems: a least-squares fit with its gradient, and a batch with a matrix that has no factor.

    python examples/solves.py
    python examples/solves.py --size 500

warp_tiles.solve and warp_tiles.cholesky launch ordinary Warp kernels, on a GPU or on the CPU. Results are compared with
NumPy's.
"""

import argparse
import sys

import numpy as np
import warp as wp

import warp_tiles


def difference(found: wp.array, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest element."""
    return float(np.max(np.abs(found.numpy() - expected)) / np.max(np.abs(expected)))


def fit(size: int, device: wp.Device) -> dict[str, float]:
    """x of (J^T J + I) x = J^T y, and the gradient of a sum of x with respect to y."""
    random = np.random.default_rng(0)
    jacobian, values = random.normal(size=(2 * size, size)) / size**0.5, random.normal(size=(2 * size, 1))
    j = wp.array(jacobian, dtype=wp.float64, device=device)
    y = wp.array(values, dtype=wp.float64, device=device, requires_grad=True)
    normal = wp.array(np.eye(size), dtype=wp.float64, device=device)
    warp_tiles.matmul(j.transpose(), j, normal, beta=1.0)
    with wp.Tape() as tape:
        x = warp_tiles.solve(normal, warp_tiles.matmul(j.transpose(), y))
    x.grad.fill_(1.0)
    tape.backward()
    if warp_tiles.is_planning():  # under warp-tiles plan or compile nothing was computed
        return {}
    inverse = np.linalg.inv(jacobian.T @ jacobian + np.eye(size))
    return {
        "x": difference(x, inverse @ jacobian.T @ values),
        "gradient of y": difference(y.grad, jacobian @ inverse @ np.ones((size, 1))),
    }


def batch(device: wp.Device) -> dict[str, float]:
    """100 factors. One matrix is not positive definite, and the program is told where."""
    random = np.random.default_rng(1)
    factors = np.tril(random.uniform(0.5, 1.0, (100, 12, 12)))
    a = factors @ factors.swapaxes(1, 2)
    a[42, 7, 7] = -1.0
    info = wp.zeros(100, dtype=int, device=device)
    found = warp_tiles.cholesky(wp.array(a, dtype=wp.float64, device=device), info=info)
    if warp_tiles.is_planning():
        return {}
    for number, order in enumerate(info.numpy()):
        if order:
            print(f"matrix {number} is not positive definite: its leading minor of order {order} is not positive")
    return {"L": difference(found[:42], factors[:42])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=100, help="unknowns of the fit")
    arguments = parser.parse_args()
    if arguments.size < 1:
        parser.error(f"--size must be at least 1, got {arguments.size}")

    warp_tiles.enable()
    device = wp.get_preferred_device()
    found = {**fit(arguments.size, device), **batch(device)}
    for name, error in found.items():
        print(f"{name} on {device}: differs from NumPy by {error:.1e} of the largest element")
    if any(not error < 1e-10 for error in found.values()):
        sys.exit("a result is wrong: it differs by more than 1e-10")


if __name__ == "__main__":
    main()
