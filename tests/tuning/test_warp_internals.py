"""What is found inside Warp."""

from __future__ import annotations

import threading
from pathlib import Path

import warp as wp

from warp_tiles._warp import find
from warp_tiles.tuning.warp_internals import share_precompiled_headers, without_tape


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
