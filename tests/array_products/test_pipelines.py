"""What a product fixes of its loop's pipeline reaches its kernel, and neither other kernels nor the user's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.test_loops import loop_of
from warp_tiles.array_products import prepared
from warp_tiles.array_products.arguments import checked
from warp_tiles.array_products.kernels import Epilogue, TileKernel, tile_kernel
from warp_tiles.gemm.matmul_question import MatmulConfig
from warp_tiles.gemm.pipeline import PipelineOverrides

CONFIG = MatmulConfig(64, 64, 64, 128)
KEY = TileKernel("float16", "float16", (64, 64, 64), False, True, False, Epilogue("float16", bias="float16"))
STAGES = {"auto": 4, "blocks=1": 12, "blocks=2": 6, "stages=3": 3}


GPU: Any = SimpleNamespace(is_cuda=True, arch=90, sm_count=132, name="NVIDIA H200")


def main_loop() -> str:
    arrays = (wp.empty(shape, dtype=wp.float16, device="cpu") for shape in ((256, 4096), (4096, 256), (256, 256)))
    call = checked(*arrays).call
    return prepared.answered(call, GPU, CONFIG)[2].main_loop.text


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("order", [list(STAGES), list(reversed(STAGES))], ids=str)
def test_kernels_that_differ_only_in_it_have_modules_of_their_own(order: Sequence[str]) -> None:
    keys = {text: replace(KEY, main_loop=PipelineOverrides.parse(text)) for text in order}
    assert len({tile_kernel(key).module.name for key in keys.values()}) == len(STAGES)
    for text in (*order, *order):
        assert loop_of(keys[text], CONFIG.threads)["stages"] == STAGES[text], text


@pytest.mark.usefixtures("enabled")
def test_a_hash_does_not_depend_on_the_kernels_made_before() -> None:
    fresh = [replace(KEY, tile=(64, 64, 32), main_loop=PipelineOverrides.parse(text)) for text in ("blocks=1", "auto")]
    kernels = [tile_kernel(key) for order in permutations(fresh) for key in order]
    assert len({kernel.module.name for kernel in kernels}) == 2


@pytest.mark.usefixtures("enabled")
def test_a_product_of_few_blocks_asks_for_it() -> None:
    assert main_loop() == "blocks=1"


@pytest.mark.parametrize(("always_loops", "largest"), [(False, 128), (True, 64)])
def test_float64_has_smaller_tiles_if_warp_always_writes_a_loop(
    always_loops: bool, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "always_loops", lambda: always_loops)
    a = wp.empty((2048, 2048), dtype=wp.float64, device="cpu")
    out = wp.empty_like(a)
    call = checked(a, a, out).call
    config = prepared.answered(call, GPU)[2].config
    assert max(config.tile_m, config.tile_n) == largest


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("chosen", ["auto", "mma", "stages=3"])
def test_the_users_choice_counts(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with warp_tiles.override(main_loop=chosen):
        assert main_loop() == "auto"
    monkeypatch.setenv("WARP_TILES_MAIN_LOOP", chosen)
    assert main_loop() == "auto"


def test_a_product_without_enable_reads_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_TILES_PROVIDR", "own")
    a = wp.array(np.eye(8, dtype=np.float32), device="cpu")
    assert warp_tiles.matmul(a, a).numpy().trace() == 8.0
