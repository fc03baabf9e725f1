"""What a search finds inside Warp."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import warp as wp

from warp_tiles import SeamError
from warp_tiles._warp import find
from warp_tiles._warp.searches import scalar_and_shape, share_precompiled_headers, without_tape


def test_a_tape_does_not_see_the_block() -> None:
    x = wp.ones(4, dtype=float, device="cpu", requires_grad=True)
    with wp.Tape() as tape:
        with without_tape():
            wp.copy(wp.zeros_like(x), x)
        assert tape.launches == []
        wp.copy(wp.zeros_like(x), x)
    assert len(tape.launches) == 1


def test_a_thread_gets_the_headers_of_others() -> None:
    runtime = find("context.runtime")
    folder = Path(runtime.get_clang_pch_dir())
    (folder / "builtin_test.pch").write_bytes(b"headers")
    found: list[str] = []

    def share() -> None:
        share_precompiled_headers()
        found.extend(path.name for path in Path(runtime.get_clang_pch_dir()).iterdir())

    thread = threading.Thread(target=share)
    thread.start()
    thread.join()
    (folder / "builtin_test.pch").unlink()
    assert "builtin_test.pch" in found


def test_a_warp_without_its_tape_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wp.init()
    monkeypatch.delattr(find("context.runtime"), "tape")
    with pytest.raises(SeamError, match=r"context\.runtime\.tape"), without_tape():
        pytest.fail("the block ran")


def test_a_warp_that_keeps_headers_elsewhere_costs_only_time(
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
