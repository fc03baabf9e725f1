"""Random kernels on a GPU against Warp's CPU device: exactly equal, gradients too."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

import warp_tiles
from tests.random_kernels import shared_names
from tests.random_kernels.execute import difference, execute, import_kernel, of_model
from tests.random_kernels.generate import draw
from tests.random_kernels.run import main

pytestmark = pytest.mark.gpu

COUNT = 60


def test_random_kernels_agree_with_the_cpu(gpu: str, tmp_path: Path) -> None:
    stored = tmp_path / "out.json"
    status = main(["--count", str(COUNT), "--device", gpu, "--jobs", "4", "--json", str(stored)])
    found = json.loads(stored.read_text())
    assert status == 0, found["differing"]
    assert found["done"] == COUNT
    assert found["refused"] <= 0.03 * COUNT, found["refused_by_reason"]
    assert found["with_gradients"] == sum(draw(seed).gradients for seed in range(COUNT))


def test_loops_with_the_same_names(gpu: str, tmp_path: Path) -> None:
    """Compared with the model, because the reverse pass of Warp alone fails."""
    with warp_tiles.enabled():
        for kernel in itertools.islice(shared_names.kernels(64), 8):
            found = execute(kernel, import_kernel(kernel, tmp_path), gpu)
            assert difference(found, of_model(kernel)) == "", kernel.source
