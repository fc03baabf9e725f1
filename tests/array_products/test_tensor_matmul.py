"""Products by the kernel with tensor copies, without a GPU: maps, arguments, and when a loop takes over."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.nightly import some
from warp_tiles import settings
from warp_tiles.array_products import tensor_matmul
from warp_tiles.array_products.call import Bias, MatmulCall, View, contiguous
from warp_tiles.array_products.kernels import function_kernel
from warp_tiles.array_products.matmul_choice import launch_candidate
from warp_tiles.array_products.matmul_problem import Gpu, MatmulConfig, MatmulPlan
from warp_tiles.array_products.tensor_kernel import Slices, TensorKernel
from warp_tiles.array_products.tensor_matmul import TensorMap, TensorMatmul, built_kernel
from warp_tiles.array_products.workspace import Workspace
from warp_tiles.build.engine import Engine
from warp_tiles.errors import PlanError
from warp_tiles.util import warn
from warp_tiles.util.warn import WarnedTexts

A, B, C = 1 << 20, 2 << 20, 3 << 20
SHAPES = (1, 1000, 512), (1, 512, 2048), (1, 1000, 2048)
CALL = MatmulCall(*(contiguous("float16", shape) for shape in SHAPES), Bias("float32", 8), scaled=True)


class Driver:
    """Notes the maps that it encodes."""

    def __init__(self) -> None:
        self.maps: list[tuple[Any, ...]] = []
        self.refuses = False

    def call(self, function: str, found: Any, *arguments: Any) -> str:
        assert function == "cuTensorMapEncodeTiled"
        assert ctypes.addressof(found._obj) % 64 == 0
        plain = [getattr(one, "value", one) for one in arguments]
        self.maps.append(tuple(tuple(one) if isinstance(one, ctypes.Array) else one for one in plain))
        return "CUDA_ERROR_INVALID_VALUE" * self.refuses


class Kernel:
    """Notes its launches: blocks, and the arguments that follow the maps."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, dict[str, Any]]] = []
        self.clusters = 7

    def launch(self, blocks: int, parameters: Any) -> None:
        given = tensor_matmul._Arguments.from_address(parameters[3])
        self.launches.append((blocks, {name: getattr(given, name) for name, *_ in given._fields_}))


class Loop:
    """A product by a loop. Notes its runs."""

    def __init__(self) -> None:
        self.runs: list[tuple[Any, ...]] = []
        self.current = True

    def is_current(self) -> bool:
        return self.current

    def run(self, *arguments: Any) -> None:
        self.runs.append(arguments)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(tensor_matmul.driver, "call", found.call)
    monkeypatch.setattr(warn, "_once", WarnedTexts())
    monkeypatch.setattr(wp, "ScopedDevice", lambda device: warnings.catch_warnings())
    return found


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    found = Kernel()
    monkeypatch.setattr(tensor_matmul, "native_kernel", lambda kernel, alias, function: found)
    return found


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def product(driver: Driver, kernel: Kernel, loop: Loop) -> Iterator[TensorMatmul]:
    with warp_tiles.enabled():
        device = SimpleNamespace(alias="cuda:0", sm_count=7)
        launch = launch_candidate(CALL.problem, (128, 128), 1, Gpu(90, 132))
        plan = MatmulPlan(CALL.problem, launch, MatmulConfig(128, 256, 64, 256))
        yield TensorMatmul(CALL, plan, device, False, lambda: loop)


def test_maps_are_made_once_for_the_same_arrays(product: TensorMatmul, driver: Driver, kernel: Kernel) -> None:
    for _ in range(2):
        product.run(A, B, C, 64, 0.5, 0.0)
    assert [one[2:6] for one in driver.maps] == [
        (A, (512, 1000, 1), (1024, 1024000), (64, 128, 1)),
        (B, (2048, 512, 1), (4096, 2097152), (64, 64, 1)),
        (C, (2048, 1000, 1), (4096, 4096000), (64, 64, 1)),
    ]
    (blocks, given), again = kernel.launches
    assert again == (blocks, given)
    assert blocks == 7, "one for each multiprocessor"
    expected = {"m": 1000, "n": 2048, "k": 512, "batch": 1, "alpha": 0.5}
    expected |= {"bias": 64, "bias_step": 2}
    assert expected.items() <= given.items()
    product.run(A + 16, B, C, 64, 0.5, 0.0)
    assert len(driver.maps) == 6


def test_slices_get_a_workspace(product: TensorMatmul, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    @contextmanager
    def workspace(size_bytes: int, counters: int, device: Any) -> Iterator[Workspace]:
        asked.append((size_bytes, counters))
        yield Workspace(4096, 8192)
        assert len(kernel.launches) == 1, "it is freed after the launch"

    monkeypatch.setattr(tensor_matmul, "workspace", workspace)
    plan = replace(product.plan, chosen=replace(product.plan.chosen, slices=Slices(7, 1, 3)))
    TensorMatmul(CALL, plan, product.device, False, lambda: None).run(A, B, C, 64, 0.5, 0.0)
    assert asked == [(3 * 128 * 128 * 4, 1)]
    ((blocks, given),) = kernel.launches
    assert blocks == 7
    assert {"whole": 7, "slices": 3, "sums": 4096, "arrived": 8192}.items() <= given.items()


def test_copies_along_k_follow_the_sums_in_the_workspace(
    product: TensorMatmul, driver: Driver, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    order: list[Any] = []

    @contextmanager
    def workspace(size_bytes: int, counters: int, device: Any) -> Iterator[Workspace]:
        asked.append(size_bytes)
        yield Workspace(1 << 22, 8192)

    monkeypatch.setattr(tensor_matmul, "workspace", workspace)
    launch = SimpleNamespace(run_at=order.append, is_current=lambda: False)
    copy = SimpleNamespace(view=contiguous("float16", (1, 2048, 512)), size_bytes=2048 * 512 * 2, launch=launch)
    plan = replace(product.plan, chosen=replace(product.plan.chosen, slices=Slices(7, 1, 3)))
    found = TensorMatmul(CALL, plan, product.device, False, lambda: None, [(1, copy)])
    for _ in range(2):
        found.run(A, B, C, 64, 0.5, 0.0)
    sums = 3 * 128 * 128 * 4
    assert asked == [sums + copy.size_bytes] * 2
    assert order == [(B, (1 << 22) + sums)] * 2
    assert [one[2] for one in driver.maps] == [A, (1 << 22) + sums, C]
    assert driver.maps[1][3] == (512, 2048, 1)
    assert len(kernel.launches) == 2
    assert not found.is_current()


def test_copied_operands_and_results_without_a_map_may_begin_anywhere(
    product: TensorMatmul, driver: Driver, kernel: Kernel, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def workspace(size_bytes: int, counters: int, device: Any) -> Iterator[Workspace]:
        yield Workspace(1 << 22, 8192)

    monkeypatch.setattr(tensor_matmul, "workspace", workspace)
    call = replace(CALL, out=View("float16", SHAPES[2], (0, 2 * 2051, 2)))
    launch = launch_candidate(replace(call.problem, a_alignment=2), (128, 128), 1, Gpu(90, 132))
    assert launch.config.copies_a
    assert launch.kernel is not None
    assert not launch.kernel.has_map
    copy = SimpleNamespace(view=call.a, size_bytes=1024, launch=SimpleNamespace(run_at=lambda pointers: None))
    found = TensorMatmul(call, replace(product.plan, chosen=launch), product.device, False, lambda: loop, [(0, copy)])
    found.run(A + 2, B, C + 2, 64, 0.5, 0.0)
    assert [arguments[2] for arguments in driver.maps] == [1 << 22, B]
    ((_, given),) = kernel.launches
    assert {"c": C + 2, "c_row": 2051, "c_matrix": 0}.items() <= given.items()
    found.run(A, B + 2, C, 64, 0.5, 0.0)
    assert len(loop.runs) == 1


def test_clusters_share_the_boxes_of_their_copies(
    product: TensorMatmul, driver: Driver, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = launch_candidate(CALL.problem, (128, 128), 1, Gpu(90, 132), (2, 4))
    assert launch.slices.whole == 4 * 4, "clusters of 256 rows and 512 columns"
    plan = replace(product.plan, chosen=replace(launch, slices=Slices(5, 2, 3)))
    asked: list[tuple[int, ...]] = []

    @contextmanager
    def workspace(size_bytes: int, counters: int, device: Any) -> Iterator[Workspace]:
        asked.append((size_bytes, counters))
        yield Workspace(4096, 8192)

    monkeypatch.setattr(tensor_matmul, "workspace", workspace)
    TensorMatmul(CALL, plan, product.device, False, lambda: None).run(A, B, C, 64, 0.5, 0.0)
    assert [one[5] for one in driver.maps] == [(64, 32, 1), (64, 32, 1), (64, 64, 1)]
    assert asked == [(8 * 2 * 3 * 128 * 128 * 4, 8 * 2)]
    ((blocks, given),) = kernel.launches
    assert blocks == 7 * 8, "as many clusters as the GPU runs at a time"
    assert (given["whole"], given["slices"], given["group"]) == (5, 3, 4)


def test_the_kernel_without_wgmma_stores_its_result_itself(driver: Driver, kernel: Kernel, loop: Loop) -> None:
    a, b, out = (contiguous("float32", (1, *shape)) for shape in ((1000, 512), (512, 2048), (1000, 2048)))
    call = MatmulCall(a, b, out, has_beta=True)
    launch = replace(launch_candidate(call.problem, (128, 128), 1, Gpu(90, 132)), slices=Slices(128))
    plan = MatmulPlan(call.problem, launch, MatmulConfig(128, 128, 16, 256))
    with warp_tiles.enabled():
        product = TensorMatmul(call, plan, SimpleNamespace(alias="cuda:0", sm_count=7), False, lambda: loop)
        product.run(A, B, C, None, 0.1, 0.3)
        assert [(one[2], one[5], one[8]) for one in driver.maps] == [(A, (32, 128, 1), 3), (B, (32, 32, 1), 0)]
        ((blocks, given),) = kernel.launches
        assert blocks == 128, "a block computes one tile"
        assert (given["c"], given["c_row"], given["c_matrix"]) == (C, 2048, 1000 * 2048)
        product.run(A, B, C + 8, None, 0.1, 0.3)
        assert len(loop.runs) == 1, "vectors begin at multiples of 16 bytes"


def test_the_maps_of_the_last_arrays_are_kept(product: TensorMatmul, driver: Driver) -> None:
    for number in range(70):
        product.run(A + 16 * number, B, C, None, 1.0, 0.0)
    before = len(driver.maps)
    product.run(A + 16 * 10, B, C, None, 1.0, 0.0)
    assert len(driver.maps) == before
    product.run(A, B, C, None, 1.0, 0.0)
    assert len(driver.maps) == before + 3


@pytest.mark.parametrize("at", [(A + 8, B, C), (A, B + 2, C), (A, B, C + 4)], ids=["a", "b", "out"])
def test_arrays_that_copies_cannot_reach_get_the_loop(
    at: tuple[int, int, int], product: TensorMatmul, kernel: Kernel, loop: Loop
) -> None:
    product.run(*at, None, 2.0, 0.0)
    assert loop.runs == [(*at, None, 2.0, 0.0, None)]
    assert not kernel.launches


def test_a_driver_that_refuses_maps_is_said_once(
    product: TensorMatmul, driver: Driver, kernel: Kernel, loop: Loop
) -> None:
    driver.refuses = True
    with pytest.warns(
        RuntimeWarning, match="a loop computes float16 nn 1000x2048x512: the driver refuses a tensor map"
    ):
        product.run(A, B, C, None, 1.0, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        product.run(A, B, C, None, 1.0, 0.0)
    assert len(loop.runs) == 2
    assert not kernel.launches


def test_a_setting_or_a_changed_loop_makes_it_outdated(product: TensorMatmul, loop: Loop) -> None:
    assert product.is_current()
    product.run(A + 2, B, C, None, 1.0, 0.0)
    loop.current = False
    assert not product.is_current()
    loop.current = True
    assert product.is_current()
    with warp_tiles.override(async_copies=False):
        assert not product.is_current()


@wp.func
def softplus(x: float):
    return wp.log(1.0 + wp.exp(x))


@pytest.mark.usefixtures("toolchain")
@pytest.mark.parametrize("function", some([softplus, wp.tanh], 1, "slow"), ids=["of the user", "of Warp"])
def test_a_kernel_contains_the_code_of_its_function(function: Any, tmp_path: Path) -> None:
    found, definition = tensor_matmul._function_source(function, "float32")
    assert found == tensor_matmul._function_source(function, "float32")[0]
    assert f"{function.key}(" in found.code
    kernel = TensorKernel("float16", "float16", 128, 128, has_function=True)
    with settings.override(cache_dir=tmp_path):
        engine = Engine()
        try:
            code = built_kernel(engine, kernel, settings.current(), found)[0].payload
            assert kernel.name.encode() in code
            locked = replace(settings.current(), policy="locked")
            assert built_kernel(engine, kernel, locked, found)[0].payload == code
        finally:
            engine.close()
    assert definition.is_current()
    function_kernel(function, "float32")[0].module.mark_modified()
    assert not definition.is_current()


def made() -> Any:
    """A new function, with the same text in each call."""

    @wp.func
    def halved(x: float):
        return 0.5 * x

    return halved


def test_equal_functions_are_called_by_the_name_in_the_code() -> None:
    for function in (made(), made(), made()):
        found, _ = tensor_matmul._function_source(function, "float32")
        assert f"{found.name}(" in found.code


def test_functions_that_are_left_to_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp.config, "mode", "debug")
    function_kernel(softplus, "float32")[0].module.mark_modified()
    with pytest.raises(PlanError, match="left to Warp's compiler: debug builds name files of this machine"):
        tensor_matmul._function_source(softplus, "float32")


@pytest.mark.parametrize(("view", "sizes", "strides"), [
    (View("float16", (1, 1, 24), (48, 2, 2)), (24, 1, 1), (48, 48)),  # one row, whose distance says nothing
    (View("float16", (5, 10, 24), (0, 48, 2)), (24, 10, 1), (48, 480)),  # shared by the batch
    (View("float32", (5, 10, 24), (4096, 96, 4)), (24, 10, 5), (96, 4096)),
], ids=["one row", "shared", "batch"])  # fmt: skip
def test_sizes_and_strides_of_maps(
    view: View, sizes: tuple[int, ...], strides: tuple[int, ...], driver: Driver
) -> None:
    assert TensorMap.of(view, A, (32, 64), 128) is not None
    assert driver.maps[0][3:5] == (sizes, strides)
