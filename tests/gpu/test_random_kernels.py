"""Random kernels on a GPU against Warp's CPU device: exactly equal, gradients too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
