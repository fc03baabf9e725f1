"""A small MLP trained with tile kernels: forward and backward, its gradients checked.

    python examples/mlp_train.py
    python examples/mlp_train.py --plot loss.png

The network learns sin(2 pi x) sin(2 pi y) on the unit square. One block of threads computes one
batch of points. Each of the two layers is a wp.tile_matmul, whose adjoints warp_tiles builds and
links. Before training, the gradients are compared with NumPy's. Without a GPU everything runs on
the CPU, and is also compiled for sm_90.
"""

import argparse
import sys
import tempfile

import numpy as np
import warp as wp

import warp_tiles

INPUTS, HIDDEN, OUTPUTS, BATCH = wp.constant(8), wp.constant(32), wp.constant(1), wp.constant(32)
BLOCKS = 8
THREADS = 64


@wp.func
def relu(x: wp.float32):
    return wp.max(x, 0.0)


@wp.func
def square(x: wp.float32):
    return x * x


@wp.kernel
def loss_of_batch(
    X: wp.array2d[wp.float32],
    Y: wp.array2d[wp.float32],
    W1: wp.array2d[wp.float32],
    W2: wp.array2d[wp.float32],
    loss: wp.array[wp.float32],
):
    block = wp.tid()
    x = wp.tile_load(X, shape=(INPUTS, BATCH), offset=(0, block * BATCH))
    y = wp.tile_load(Y, shape=(OUTPUTS, BATCH), offset=(0, block * BATCH))
    w1 = wp.tile_load(W1, shape=(HIDDEN, INPUTS))
    w2 = wp.tile_load(W2, shape=(OUTPUTS, HIDDEN))
    hidden = wp.tile_map(relu, wp.tile_matmul(w1, x))
    error = wp.tile_matmul(w2, hidden) - y
    wp.tile_atomic_add(loss, wp.tile_sum(wp.tile_map(square, error)))


def features(points: np.ndarray) -> np.ndarray:
    """Positional encoding, with which a small network can fit the waves: (8, n) from (n, 2)."""
    x, y = 2 * np.pi * points[:, 0], 2 * np.pi * points[:, 1]
    rows = [np.sin(x), np.cos(x), np.sin(y), np.cos(y), np.sin(x + y), np.cos(x + y), np.sin(x - y), np.cos(x - y)]
    return np.stack(rows).astype(np.float32)


def numpy_gradients(x, y, w1, w2):
    """Loss and gradients of both weights, in float64."""
    x, y, w1, w2 = (np.asarray(value, dtype=np.float64) for value in (x, y, w1, w2))
    before = w1 @ x
    hidden = np.maximum(before, 0.0)
    error = w2 @ hidden - y
    back = 2.0 * error
    return float(np.sum(error**2)), (w2.T @ back * (before > 0)) @ x.T, back @ hidden.T


class Mlp:
    """The weights, Adam's state, and one launch of forward and backward."""

    def __init__(self, device, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.device = device
        shapes = {"w1": (HIDDEN, INPUTS), "w2": (OUTPUTS, HIDDEN)}
        self.weights = {
            name: wp.array(
                random.normal(0, 1 / np.sqrt(shape[1]), shape), dtype=wp.float32, device=device, requires_grad=True
            )
            for name, shape in shapes.items()
        }
        self.moments = {name: (np.zeros(shape), np.zeros(shape)) for name, shape in shapes.items()}
        self.step_number = 0

    def loss_and_gradients(self, x: np.ndarray, y: np.ndarray):
        loss = wp.zeros(1, dtype=wp.float32, device=self.device, requires_grad=True)
        arrays = [wp.array(value, dtype=wp.float32, device=self.device) for value in (x, y)]
        weights = list(self.weights.values())
        with wp.Tape() as tape:
            wp.launch_tiled(
                loss_of_batch,
                dim=[x.shape[1] // BATCH],
                inputs=[*arrays, *weights, loss],
                block_dim=THREADS,
                device=self.device,
            )
        tape.backward(loss)
        gradients = {name: weight.grad.numpy().astype(np.float64) for name, weight in self.weights.items()}
        tape.zero()
        return float(loss.numpy()[0]), gradients

    def step(self, gradients, rate: float = 0.01) -> None:
        self.step_number += 1
        for name, gradient in gradients.items():
            mean, variance = self.moments[name]
            mean[:] = 0.9 * mean + 0.1 * gradient
            variance[:] = 0.999 * variance + 0.001 * gradient**2
            mean_hat = mean / (1 - 0.9**self.step_number)
            variance_hat = variance / (1 - 0.999**self.step_number)
            update = rate * mean_hat / (np.sqrt(variance_hat) + 1e-8)
            self.weights[name].assign((self.weights[name].numpy() - update).astype(np.float32))


def check_gradients(model: Mlp, x: np.ndarray, y: np.ndarray) -> float:
    """Largest relative difference from NumPy's gradients."""
    _, gradients = model.loss_and_gradients(x, y)
    _, expected_w1, expected_w2 = numpy_gradients(x, y, *(weight.numpy() for weight in model.weights.values()))
    pairs = ((gradients["w1"], expected_w1), (gradients["w2"], expected_w2))
    return max(float(np.max(np.abs(got - want)) / np.max(np.abs(want))) for got, want in pairs)


def plot(losses: list[float], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.semilogy(losses)
    axes.set(xlabel="step", ylabel="mean squared error", title="MLP with tile kernels")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--plot", metavar="PNG", help="write the loss curve to this file")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")

    warp_tiles.enable()
    device = wp.get_preferred_device()
    if not device.is_cuda and not warp_tiles.is_planning():
        with tempfile.TemporaryDirectory() as folder:
            wp.set_module_options({"block_dim": THREADS})
            wp.compile_aot_module(sys.modules[__name__], arch=90, module_dir=folder)
            print("no GPU here: compiled for sm_90, training on the CPU")

    random = np.random.default_rng(1)
    points = random.uniform(0, 1, (BLOCKS * int(BATCH), 2))
    x = features(points)
    y = (np.sin(2 * np.pi * points[:, 0]) * np.sin(2 * np.pi * points[:, 1]))[None, :].astype(np.float32)
    model = Mlp(device)
    if (
        warp_tiles.is_planning()
    ):  # under warp-tiles plan or compile nothing is computed, and one step shows every launch
        model.loss_and_gradients(x, y)
        return
    difference = check_gradients(model, x, y)
    print(f"gradients differ from NumPy's by at most {difference:.1e}")
    if not difference < 1e-4:
        sys.exit(f"the gradients are wrong: {difference:.1e} is above 1e-4")

    losses = []
    for _ in range(arguments.steps):
        loss, gradients = model.loss_and_gradients(x, y)
        losses.append(loss / x.shape[1])
        model.step(gradients)
    print(f"mean squared error on {device}: {losses[0]:.4f} -> {losses[-1]:.6f} in {arguments.steps} steps")
    if arguments.plot:
        plot(losses, arguments.plot)
        print(f"wrote {arguments.plot}")
    if arguments.steps >= 100 and not losses[-1] < 0.1 * losses[0]:
        sys.exit("the loss did not fall to a tenth")


if __name__ == "__main__":
    main()
