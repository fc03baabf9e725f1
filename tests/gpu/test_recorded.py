"""Recorded launches on a GPU: streams and graphs."""

from __future__ import annotations

import numpy as np
import pytest
import warp as wp

from tests.interpreter import python
from tests.recorded.recorded_kernels import arguments_on, arrays_of, launched_by_warp, weighted
from warp_tiles import record

pytestmark = pytest.mark.gpu
SIZE = 1000


@pytest.mark.parametrize("how", ["given stream", "current stream", "graph"])
def test_both_directions_equal_those_of_warp(gpu: str, how: str) -> None:
    arguments, stream = arguments_on(gpu, SIZE), wp.Stream(gpu)
    arguments[3].grad.fill_(1.0)
    given = stream if how == "given stream" else None
    pair = record(weighted, SIZE, arguments, device=gpu, stream=given, block_dim=64)
    wp.synchronize()
    if how == "graph":
        wp.capture_begin(device=gpu)
    with wp.ScopedStream(stream if how == "current stream" else None):
        pair.forward()
        pair.adjoint()
    if how == "graph":
        graph = wp.capture_end(device=gpu)
        assert not np.any(arguments[3].numpy()), "nothing is launched while a graph is captured"
        wp.capture_launch(graph)
    wp.synchronize()
    assert arrays_of(arguments) == launched_by_warp(gpu, SIZE)


def test_the_example(gpu: str) -> None:
    python("examples/recorded_training.py", "--device", gpu)  # it compares gradients with a tape's
