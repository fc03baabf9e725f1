"""Launches that are packed once and repeated with other memory."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import warp as wp

from warp_tiles._warp.launch import PackedLaunch, pack_launch


@wp.kernel(enable_backward=False, module="unique")
def scaled(
    start: int, factor: wp.float32, x: wp.array(dtype=wp.float32, ndim=2), out: wp.array(dtype=wp.float32, ndim=2)
):
    i, j = wp.tid()
    if x:
        out[i, j] = x[i, j] * factor + wp.float32(start)
    else:
        out[i, j] = wp.float32(start)


def prepared(strides: tuple[int, int] = (16, 4), x: bool = True) -> PackedLaunch:
    def view(strides: tuple[int, int]) -> Any:
        return wp.array(ptr=None, dtype=wp.float32, shape=(3, 4), strides=strides, device="cpu")

    values = [7, 1.0, view(strides) if x else None, view((16, 4))]
    return pack_launch(scaled, values, dim=(3, 4), block_dim=64, device=wp.get_device("cpu"))


def array(values: Any) -> Any:
    return wp.array(values, dtype=wp.float32, device="cpu")


def test_each_run_has_its_own_memory_and_factor() -> None:
    launch = prepared()
    for number in range(3):
        x, out = array(np.full((3, 4), number)), array(np.zeros((3, 4)))
        launch.run_at((x.ptr, out.ptr), 2.0)
        assert np.all(out.numpy() == 2 * number + 7)


def test_strides_belong_to_the_launch() -> None:
    values, out = np.arange(12.0).reshape(4, 3), array(np.zeros((3, 4)))
    x = array(values)
    prepared(strides=(4, 12)).run_at((x.ptr, out.ptr), 1.0)
    assert np.array_equal(out.numpy(), values.T + 7)


def test_an_array_without_memory() -> None:
    out = array(np.zeros((3, 4)))
    prepared(x=False).run_at((None, out.ptr), 1.0)
    assert np.all(out.numpy() == 7)


def test_a_modified_module_is_noticed() -> None:
    launch = prepared()
    assert launch.is_current()
    scaled.module.mark_modified()
    assert not launch.is_current()
    assert prepared().is_current()


def test_no_tape_records_it() -> None:
    launch, x, out = prepared(), array(np.ones((3, 4))), array(np.zeros((3, 4)))
    with wp.Tape() as tape:
        launch.run_at((x.ptr, out.ptr), 1.0)
    assert tape.launches == []


def test_threads_share_a_launch() -> None:
    launch, wrong = prepared(), []

    def work(number: int) -> None:
        x, out = array(np.full((3, 4), number)), array(np.zeros((3, 4)))
        for _ in range(200):
            launch.run_at((x.ptr, out.ptr), float(number))
            if not np.all(out.numpy() == number * number + 7):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
