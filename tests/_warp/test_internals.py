"""What single functions need of Warp's internals: tapes, precompiled headers and types of values."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import warp as wp

from warp_tiles import UnsupportedWarpError
from warp_tiles._warp.internals import find, scalar_and_shape, share_precompiled_headers, without_tape


def test_a_tape_does_not_record_the_block() -> None:
    x = wp.ones(4, dtype=float, device="cpu", requires_grad=True)
    with wp.Tape() as tape:
        with without_tape():
            wp.copy(wp.zeros_like(x), x)
        assert tape.launches == []
        wp.copy(wp.zeros_like(x), x)
    assert len(tape.launches) == 1


def test_a_thread_gets_each_header_of_other_threads_once() -> None:
    runtime = find("context.runtime")
    header = Path(runtime.get_clang_pch_dir()) / "builtin_bd_test.pch"
    header.write_bytes(b"headers")
    found: list[list[str]] = []

    def share() -> None:
        own = Path(runtime.get_clang_pch_dir())
        share_precompiled_headers()
        found.append([path.name for path in own.iterdir()])
        (own / header.name).unlink()  # Warp does this with headers that Clang refuses
        share_precompiled_headers()
        found.append([path.name for path in own.iterdir()])

    thread = threading.Thread(target=share)
    thread.start()
    thread.join()
    header.unlink()
    first, second = found
    assert header.name in first
    assert header.name not in second


def test_the_newest_of_several_headers_with_one_name_is_used() -> None:
    runtime, both = find("context.runtime"), threading.Barrier(2)

    def make(time_ns: int) -> Path:
        both.wait()  # a thread that has ended may leave its folder to the next one
        path = Path(runtime.get_clang_pch_dir()) / "builtin_bd_newest.pch"
        path.write_bytes(b"%d" % time_ns)
        os.utime(path, ns=(time_ns, time_ns))
        return path

    with ThreadPoolExecutor(2) as threads:
        paths = list(threads.map(make, (2, 1)))
        share_precompiled_headers()
    paths.append(Path(runtime.get_clang_pch_dir()) / "builtin_bd_newest.pch")
    assert paths[-1].read_bytes() == b"2"
    for path in paths:
        path.unlink()


def test_a_missing_tape_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wp.init()
    monkeypatch.delattr(find("context.runtime"), "tape")
    with pytest.raises(UnsupportedWarpError, match=r"context\.runtime\.tape"), without_tape():
        pytest.fail("the block ran")


def test_without_shared_headers_only_time_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wp.init()
    monkeypatch.delattr(find("context.runtime"), "_pch_dirs")
    with caplog.at_level("INFO", "warp_tiles"):
        share_precompiled_headers()
    assert "_pch_dirs" in caplog.text


def test_parts_of_value_types() -> None:
    assert scalar_and_shape(wp.float32) == (wp.float32, ())
    assert scalar_and_shape(wp.types.matrix((2, 3), wp.float16)) == (wp.float16, (2, 3))
