"""An MLP trained with recorded launches: forward, adjoint and update are packed once, before the training.

    python examples/recorded_training.py
    python examples/recorded_training.py --steps 500 --device cuda:0

The network learns sin(2 pi x) sin(2 pi y) at 128 points, which one block of threads computes. Each of the two layers is
a wp.tile_matmul. First the gradients of recorded launches are compared with those of wp.Tape, bit for bit. Then the
network is trained by replaying the recorded launches. Last, a step is timed in three forms: wp.launch with a wp.Tape,
recorded pairs, and a CUDA graph captured from them. Without a GPU everything runs on the CPU.
"""

import argparse
import statistics
import sys
import time

import numpy as np
import warp as wp

import warp_tiles

INPUTS, HIDDEN, OUTPUTS, POINTS = wp.constant(8), wp.constant(32), wp.constant(1), wp.constant(128)
THREADS = 128


@wp.func
def relu(x: wp.float32):
    return wp.max(x, 0.0)


@wp.func
def square(x: wp.float32):
    return x * x


@wp.kernel
def loss_of_points(
    X: wp.array2d[wp.float32],
    Y: wp.array2d[wp.float32],
    W1: wp.array2d[wp.float32],
    W2: wp.array2d[wp.float32],
    loss: wp.array[wp.float32],
):
    x = wp.tile_load(X, shape=(INPUTS, POINTS))
    y = wp.tile_load(Y, shape=(OUTPUTS, POINTS))
    w1 = wp.tile_load(W1, shape=(HIDDEN, INPUTS))
    w2 = wp.tile_load(W2, shape=(OUTPUTS, HIDDEN))
    hidden = wp.tile_map(relu, wp.tile_matmul(w1, x))
    error = wp.tile_matmul(w2, hidden) - y
    wp.tile_atomic_add(loss, wp.tile_sum(wp.tile_map(square, error)))


@wp.kernel(enable_backward=False)
def adam(
    weights: wp.array2d[wp.float32],
    gradients: wp.array2d[wp.float32],
    moments: wp.array2d[wp.vec4],  # mean, variance, and the powers of their decays
    rate: wp.float32,
):
    i, j = wp.tid()
    gradient = gradients[i, j]
    old = moments[i, j]
    mean = 0.9 * old[0] + 0.1 * gradient
    variance = 0.999 * old[1] + 0.001 * gradient * gradient
    power_mean, power_variance = 0.9 * old[2], 0.999 * old[3]
    moments[i, j] = wp.vec4(mean, variance, power_mean, power_variance)
    scale = wp.sqrt(variance / (1.0 - power_variance)) + 1.0e-8
    weights[i, j] = weights[i, j] - rate * mean / (1.0 - power_mean) / scale
    gradients[i, j] = 0.0


def features(points: np.ndarray) -> np.ndarray:
    """Positional encoding, with which a small network can fit the waves: (8, n) from (n, 2)."""
    x, y = 2 * np.pi * points[:, 0], 2 * np.pi * points[:, 1]
    rows = [np.sin(x), np.cos(x), np.sin(y), np.cos(y), np.sin(x + y), np.cos(x + y), np.sin(x - y), np.cos(x - y)]
    return np.stack(rows).astype(np.float32)


class Mlp:
    """Data, weights and Adam's state on a device, and the recorded launches of a training step."""

    def __init__(self, device, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        points = random.uniform(0, 1, (int(POINTS), 2))
        target = (np.sin(2 * np.pi * points[:, 0]) * np.sin(2 * np.pi * points[:, 1]))[None, :]
        first = random.normal(0, 1 / np.sqrt(INPUTS), (HIDDEN, INPUTS))
        second = random.normal(0, 1 / np.sqrt(HIDDEN), (OUTPUTS, HIDDEN))
        self.device = device
        self.x, self.y = (wp.array(value, dtype=wp.float32, device=device) for value in (features(points), target))
        self.weights = [
            wp.array(value, dtype=wp.float32, device=device, requires_grad=True) for value in (first, second)
        ]
        self.loss = wp.zeros(1, dtype=wp.float32, device=device, requires_grad=True)
        self.loss.grad.fill_(1.0)
        start = wp.vec4(0.0, 0.0, 1.0, 1.0)
        self.moments = [wp.full(value.shape, start, dtype=wp.vec4, device=device) for value in self.weights]

        self.arguments = [self.x, self.y, *self.weights, self.loss]
        self.updates = [
            (weight.shape, [weight, weight.grad, moments, 0.01]) for weight, moments in zip(self.weights, self.moments)
        ]
        self.pair = warp_tiles.record(
            loss_of_points, 1, self.arguments, block_dim=THREADS, tiled=True, device=self.device
        )
        self.recorded_updates = [warp_tiles.record(adam, dim, values, device=device) for dim, values in self.updates]

    def step_with_tape(self) -> None:
        self.loss.zero_()
        with wp.Tape() as tape:
            wp.launch_tiled(loss_of_points, dim=[1], inputs=self.arguments, block_dim=THREADS, device=self.device)
        tape.backward(self.loss)
        for dim, values in self.updates:
            wp.launch(adam, dim=dim, inputs=values, device=self.device)

    def step_recorded(self) -> None:
        self.loss.zero_()
        self.pair.forward()
        self.pair.adjoint()
        for update in self.recorded_updates:
            update.forward()

    def gradients(self, recorded: bool) -> list[np.ndarray]:
        """Gradients of both weights, from a tape or from recorded launches."""
        for weight in self.weights:
            weight.grad.zero_()
        self.loss.zero_()
        if recorded:
            self.pair.forward()
            self.pair.adjoint()
        else:
            with wp.Tape() as tape:
                wp.launch_tiled(loss_of_points, dim=[1], inputs=self.arguments, block_dim=THREADS, device=self.device)
            tape.backward(self.loss)
        found = [weight.grad.numpy().copy() for weight in self.weights]
        for weight in self.weights:
            weight.grad.zero_()
        return found


def host_us(step_functions, bursts: int = 30, steps: int = 20) -> dict[str, float]:
    """Median host time of each step function. They run alternately, and waiting for the device is not measured."""
    times = {name: [] for name in step_functions}
    for _ in range(bursts):
        for name, step in step_functions.items():
            wp.synchronize()
            start = time.perf_counter()
            for _ in range(steps):
                step()
            times[name].append((time.perf_counter() - start) / steps * 1e6)
    wp.synchronize()
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", help="e.g. cpu or cuda:0; default: Warp's preferred device")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")

    warp_tiles.enable()
    device = wp.get_device(arguments.device) if arguments.device else wp.get_preferred_device()
    model = Mlp(device)
    if warp_tiles.is_planning():  # under warp-tiles plan or compile nothing is computed, and these are all launches
        model.step_with_tape()
        model.step_recorded()
        return
    taped, replayed = model.gradients(recorded=False), model.gradients(recorded=True)
    if not all(np.array_equal(one, other) and np.any(one) for one, other in zip(taped, replayed)):
        sys.exit("the gradients of the recorded launches differ from those of wp.Tape")
    print("gradients of the recorded launches equal wp.Tape's bit for bit")

    model.step_recorded()
    first = float(model.loss.numpy()[0])
    for _ in range(arguments.steps - 1):
        model.step_recorded()
    last = float(model.loss.numpy()[0])
    print(f"squared error on {device}: {first / POINTS:.4f} -> {last / POINTS:.6f} in {arguments.steps} steps")
    if arguments.steps >= 100 and not last < 0.1 * first:
        sys.exit("the loss did not fall to a tenth")

    step_functions = {"wp.launch + Tape": model.step_with_tape, "recorded pairs": model.step_recorded}
    if device.is_cuda:
        with wp.ScopedCapture(device=device) as capture:
            model.step_recorded()
        step_functions["CUDA graph"] = lambda: wp.capture_launch(capture.graph)
    print(f"host time of a training step on {device}" + ("" if device.is_cuda else ", kernels included"))
    for name, us in host_us(step_functions).items():
        print(f"  {name:<18}{us:8.1f} us")
    if not device.is_cuda:
        print("  CUDA graph        not run: no GPU")


if __name__ == "__main__":
    main()
