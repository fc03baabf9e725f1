"""Compares the bits of repeated results in deterministic mode, on one GPU and between GPUs, and what the mode costs.

    python benchmarks/determinism.py --json benchmarks/results/determinism.json

Each case runs twenty times: ten times on an idle GPU, and ten times while products run on another stream. Its digest is
that of all its results, if these are equal. The file has one row for each GPU, by the start of its UUID. `equal` says
whether all machines with as many multiprocessors, by which `matmul` chooses slices, have the same digests. The cases:

    gradients fp32, fp16   of a product of whole arrays (2048x2048x1024), in a module with Warp's option `deterministic`
    matmul, its gradients  64x4096x4096 in float16, whose last tiles have slices of K
    solve                  a system of 512 rows in float32

`cost` is the time of a graph of the backward pass of both gradients in such a module, relative to one without the
option.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import warp as wp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import warp_tiles
from benchmarks import runner
from benchmarks.machine import gpu_record
from benchmarks.speed.builds import import_kernels
from benchmarks.speed.timing import Launch, time_alternately

DEVICE = "cuda:0"
RUNS = 10  # on an idle GPU, and on a busy one
OTHER_PRODUCTS = 20  # of 2048x2048x2048 in float32, about 8 ms: what is queued before the next results
M, N, K, TILE, STEP = 2048, 2048, 1024, 64, 32
_TEXT = """import warp as wp

wp.set_module_options({{"block_dim": 128, "deterministic": {mode}}})


@wp.kernel
def multiply(a: wp.array2d(dtype=wp.{dtype}), b: wp.array2d(dtype=wp.{dtype}), c: wp.array2d(dtype=wp.float32)):
    i, j = wp.tid()
    sums = wp.tile_zeros(shape=({tile}, {tile}), dtype=wp.float32)
    for k in range(0, a.shape[1], {step}):
        left = wp.tile_load(a, shape=({tile}, {step}), offset=(i * {tile}, k))
        right = wp.tile_load(b, shape=({step}, {tile}), offset=(k, j * {tile}))
        wp.tile_matmul(left, right, sums)
    wp.tile_store(c, sums, offset=(i * {tile}, j * {tile}))
"""


def drawn(seed: int, *shape: int, dtype: str = "float32", gradient: bool = True) -> Any:
    values = np.random.default_rng(seed).normal(size=shape).astype(dtype)
    return wp.array(values, dtype=getattr(wp, dtype), device=DEVICE, requires_grad=gradient)


class WholeProduct:
    """A recorded product of whole arrays.

    Args:
        dtype: Of A and B.
        mode: Expression of the module's option.
        folder: Of its Python file.
    """

    def __init__(self, dtype: str, mode: str, folder: Path) -> None:
        name = f"{dtype}_{mode.rpartition('.')[2].lower()}"
        path = folder / f"{name}.py"
        path.write_text(_TEXT.format(dtype=dtype, mode=mode, tile=TILE, step=STEP))
        kernel = import_kernels(path, name).multiply
        self._operands = drawn(1, M, K, dtype=dtype), drawn(2, K, N, dtype=dtype)
        self._c, self._gradient = drawn(3, M, N), drawn(4, M, N, gradient=False)
        with wp.Tape() as self._tape:
            wp.launch_tiled(kernel, dim=(M // TILE, N // TILE), inputs=[*self._operands], outputs=[self._c],
                            block_dim=128, device=DEVICE)  # fmt: skip

    def backward(self) -> None:
        wp.copy(self._c.grad, self._gradient)
        self._tape.backward()

    def launch(self) -> Launch:
        """A graph of the backward pass, whose time does not depend on the host."""
        self.backward()  # a graph builds nothing
        with wp.ScopedCapture(DEVICE) as capture:
            self.backward()
        return Launch(lambda: wp.capture_launch(capture.graph))

    def results(self) -> list[Any]:
        """The gradients of one backward pass."""
        for array in self._operands:
            array.grad.zero_()
        self.backward()
        return [array.grad for array in self._operands]


class SlicedProduct:
    """`matmul` of 64x4096x4096, whose tiles have slices of K."""

    def __init__(self) -> None:
        self._a, self._b = drawn(5, 64, 4096, dtype="float16"), drawn(6, 4096, 4096, dtype="float16")
        self._c = wp.zeros((64, 4096), dtype=wp.float16, device=DEVICE, requires_grad=True)
        self._gradient = drawn(7, 64, 4096, dtype="float16", gradient=False)

    def results(self) -> list[Any]:
        """The product and both gradients."""
        for array in (self._a, self._b):
            array.grad.zero_()
        with wp.Tape() as tape:
            warp_tiles.matmul(self._a, self._b, self._c)
        wp.copy(self._c.grad, self._gradient)
        tape.backward()
        return [self._c, self._a.grad, self._b.grad]


class Solution:
    """A system of 512 rows with eight right-hand sides."""

    def __init__(self) -> None:
        values = np.random.default_rng(8).normal(size=(512, 512)) / 512**0.5
        self._matrix = wp.array(values @ values.T + np.eye(512), dtype=wp.float32, device=DEVICE)
        self._b = drawn(9, 512, 8, gradient=False)

    def results(self) -> list[Any]:
        return [warp_tiles.solve(self._matrix, self._b)]


def digest(results: list[Any]) -> str:
    """Of the values of all arrays."""
    found = hashlib.sha256()
    for array in results:
        found.update(array.numpy().tobytes())
    return found.hexdigest()[:16]


class OtherWork:
    """Products that run on a stream of their own, without a pause, while the context is open.

    Warp frees arrays on the default stream, which waits for all others. So a long queue would end before the results
    of a call that frees arrays. This one is short, and a thread fills it.
    """

    def __init__(self) -> None:
        self._stream, a = wp.Stream(DEVICE), drawn(10, 2048, 2048, gradient=False)
        self._arrays = a, wp.empty_like(a)  # the graph refers to them
        warp_tiles.matmul(a, a, self._arrays[1])  # builds it: a graph cannot
        with wp.ScopedStream(self._stream), wp.ScopedCapture(stream=self._stream) as capture:
            for _ in range(OTHER_PRODUCTS):
                warp_tiles.matmul(a, a, self._arrays[1])
        self._graph = capture.graph
        self._stopped, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        before = None
        while not self._stopped.is_set():
            wp.capture_launch(self._graph, stream=self._stream)
            queued = self._stream.record_event()
            if before is not None:
                wp.synchronize_event(before)
                self._begun.set()
            before = queued

    def __enter__(self) -> OtherWork:
        self._thread.start()
        if not self._begun.wait(timeout=60):
            self._stopped.set()
            raise RuntimeError("the other work does not run")
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the work.

        Raises:
            RuntimeError: The work had ended before.
        """
        was_running = self._thread.is_alive()
        self._stopped.set()
        self._thread.join()
        if not was_running:
            raise RuntimeError("the other work ended before the results")


def digests(results: Callable[[], list[Any]]) -> list[str]:
    """Those that occur in all runs, idle and busy: one if all runs are equal."""
    found = {digest(results()) for _ in range(RUNS)}
    with OtherWork():
        found |= {digest(results()) for _ in range(RUNS)}
    return sorted(found)


def equal(rows: list[runner.Row]) -> runner.Row:
    """True if each result has one digest on all machines with as many multiprocessors."""
    found: dict[tuple[int, str], set[str]] = {}
    for row in rows:
        for name, digests_of in row["digests"].items():
            found.setdefault((row["multiprocessors"], name), set()).update(digests_of)
    return {"equal": all(len(one) == 1 for one in found.values())}


def main() -> int:
    options = runner.parser(__doc__, required=True).parse_args()
    warp_tiles.enable()
    run = gpu_record()
    entry: runner.Row = {"name": wp.get_device(DEVICE).uuid[:12], "digests": {}, "cost": {}}
    entry |= {key: run[key] for key in ("gpu", "multiprocessors")}
    fixed, free = (f"wp.DeterministicMode.{name}" for name in ("RUN_TO_RUN", "NOT_GUARANTEED"))
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("float32", "float16"):
            modes = {mode: WholeProduct(dtype, mode, Path(folder)) for mode in (fixed, free)}
            entry["digests"][f"gradients {dtype}"] = digests(modes[fixed].results)
            times = time_alternately({mode: product.launch() for mode, product in modes.items()}, DEVICE)
            entry["cost"][dtype] = round(times[fixed].median_us / times[free].median_us, 3)
    wp.config.deterministic = wp.DeterministicMode.RUN_TO_RUN
    entry["digests"] |= {"matmul": digests(SlicedProduct().results), "solve": digests(Solution().results)}
    record = runner.Record(options.json, run, (), equal)
    record.put(entry)
    print(json.dumps(entry | equal(record.rows)))
    return int(not equal(record.rows)["equal"])


if __name__ == "__main__":
    sys.exit(main())
