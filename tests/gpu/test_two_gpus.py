"""What belongs to a device, on the second of two GPUs and on both at once."""

# kernels use arguments of their function as types, so annotations are not postponed here

import threading
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import integers, on, values_of
from tests.gpu.test_tuned_kernels import tuned
from tests.recorded.recorded_kernels import arguments_on, arrays_of, weighted
from tests.tuning.fake_stores import MemoryStore
from warp_tiles import record

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("enabled")]

SPLIT = 64, 64, 8192  # one tile, so K is split and the slices meet in a workspace
SIZE = 256


@pytest.fixture
def gpus() -> tuple[Any, Any]:
    """Two GPUs. Without them, the test is skipped."""
    wp.init()
    devices = wp.get_cuda_devices()
    if len(devices) < 2:
        pytest.skip("it needs two GPUs")
    return devices[0], devices[1]


class Product:
    """One product of whole arrays on one GPU, whose result is exact."""

    def __init__(self, device: Any, shape: tuple[int, int, int], seed: int = 1) -> None:
        m, n, k = shape
        self.a, self.b = integers(seed, m, k, most=1), integers(seed + 1, k, n, most=1)
        alias = device.alias
        self.x, self.y = (on(values, wp.float16, alias, requires_grad=True) for values in (self.a, self.b))
        self.out = wp.zeros((m, n), dtype=wp.float32, device=device, requires_grad=True)

    def run(self) -> None:
        warp_tiles.matmul(self.x, self.y, self.out)

    def check(self) -> None:
        np.testing.assert_array_equal(self.out.numpy(), self.a @ self.b)


def make_kernel(tile: int) -> Any:
    """A kernel with a loop over K. Each size of a tile has a module of its own."""

    @wp.kernel(module="unique")
    def multiply(a: wp.array2d(dtype=wp.float16), b: wp.array2d(dtype=wp.float16), c: wp.array2d(dtype=wp.float32)):
        i, j = wp.tid()
        out = wp.tile_zeros(shape=(tile, tile), dtype=wp.float32)
        for step in range(a.shape[1] // tile):
            x = wp.tile_load(a, shape=(tile, tile), offset=(i * tile, step * tile))
            y = wp.tile_load(b, shape=(tile, tile), offset=(step * tile, j * tile))
            wp.tile_matmul(x, y, out)
        wp.tile_store(c, out, offset=(i * tile, j * tile))

    return multiply


def launch(kernel: Any, device: Any, tile: int) -> Product:
    product = Product(device, (SIZE, SIZE, SIZE))
    arrays = [product.x, product.y, product.out]
    wp.launch_tiled(kernel, dim=(SIZE // tile,) * 2, inputs=arrays, block_dim=64, device=device)
    return product


@pytest.mark.parametrize("shape", [SPLIT, (512, 384, 256), (333, 517, 100)], ids=["split", "tiles", "copies"])
def test_a_product_and_its_gradient_on_the_second_gpu(gpus: tuple[Any, Any], shape: tuple[int, int, int]) -> None:
    first, second = gpus
    product = Product(second, shape)
    with wp.ScopedDevice(first), wp.Tape() as tape:  # the arrays decide, not the current device
        product.run()
    product.check()
    product.out.grad.fill_(1.0)
    tape.backward()
    ones = np.ones(product.out.shape)
    assert np.array_equal(values_of(product.x.grad), values_of(on(ones @ product.b.T, wp.float16)))
    assert np.array_equal(values_of(product.y.grad), values_of(on(product.a.T @ ones, wp.float16)))


def test_graphs_of_both_gpus_at_once(gpus: tuple[Any, Any]) -> None:
    products, graphs = [Product(device, SPLIT, seed) for seed, device in enumerate(gpus)], []
    for product, device in zip(products, gpus):
        product.run()  # loads the module
        with wp.ScopedCapture(device=device) as capture:
            product.run()
        graphs.append(capture.graph)
        product.out.zero_()
    for _ in range(100):
        for graph in graphs:
            wp.capture_launch(graph)
    for product in products:
        product.check()


def test_a_thread_for_each_gpu(gpus: tuple[Any, Any]) -> None:
    kernel, failures = make_kernel(32), []

    def work(device: Any, seed: int) -> None:
        try:
            with wp.ScopedDevice(device):
                product = Product(device, SPLIT, seed)
                for _ in range(50):
                    product.out.zero_()
                    product.run()
                    product.check()
                launch(kernel, device, 32).check()  # both threads may load the module
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(device, seed)) for seed, device in enumerate(gpus)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_module_is_built_once_for_both(gpus: tuple[Any, Any]) -> None:
    kernel = make_kernel(64)
    for device in gpus:
        launch(kernel, device, 64).check()
    rows = [row for row in warp_tiles.report()["modules"] if row["name"] == kernel.module.name and "linker" in row]
    assert len({row["arch"] for row in rows}) == len({device.arch for device in gpus})
    assert len(rows) == len({device.arch for device in gpus})


def test_gpus_of_different_architectures(gpus: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one poses as an A100, so it gets PTX for ``sm_80``, which newer GPUs run too."""
    monkeypatch.setattr(gpus[1], "arch", 80)
    monkeypatch.setattr(gpus[1], "is_cubin_supported", False)
    kernel = make_kernel(16)
    for device in gpus:
        launch(kernel, device, 16).check()
    rows = [row for row in warp_tiles.report()["modules"] if row["name"] == kernel.module.name and "linker" in row]
    assert {(row["arch"], row["output"].rpartition(".")[2]) for row in rows} == {(gpus[0].arch, "cubin"), (80, "ptx")}
    for device in gpus:
        product = Product(device, SPLIT)
        product.run()
        product.check()


def test_a_recorded_launch_on_the_second_gpu(gpus: tuple[Any, Any]) -> None:
    found = []
    for device in gpus:
        arguments = arguments_on(device, SIZE)
        pair = record(weighted, SIZE, arguments, device=device)
        arguments[3].grad.fill_(1.0)
        with wp.ScopedDevice(gpus[0]):
            pair.forward()
            pair.adjoint()
        found.append(arrays_of(arguments))
    assert found[0] == found[1]


def test_both_gpus_measure_and_one_record_serves_them(gpus: tuple[Any, Any]) -> None:
    if gpus[0].name != gpus[1].name:
        pytest.skip("the two GPUs are of different models")
    store = MemoryStore()
    copy = tuned(store, 8, 16, 32, 64, devices=[device.alias for device in gpus])
    for device in gpus:
        a = wp.array(np.random.default_rng(0).uniform(-1, 1, (512, 512)), dtype=float, device=device)
        c = wp.zeros_like(a)
        copy.launch(inputs=[a], outputs=[c], device=device)
        np.testing.assert_array_equal(c.numpy(), a.numpy())
        searches = len(store.records)
        assert searches == 1, "the record of the first GPU serves the second"
