"""What single functions need of Warp's internals: tapes and types of values."""

import pytest
import warp as wp

from warp_tiles import UnsupportedWarpError
from warp_tiles._warp.internals import find, scalar_and_shape, without_tape


def test_a_tape_does_not_record_the_block() -> None:
    x = wp.ones(4, dtype=float, device="cpu", requires_grad=True)
    with wp.Tape() as tape:
        with without_tape():
            wp.copy(wp.zeros_like(x), x)
        assert tape.launches == []
        wp.copy(wp.zeros_like(x), x)
    assert len(tape.launches) == 1


def test_a_missing_tape_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wp.init()
    monkeypatch.delattr(find("context.runtime"), "tape")
    with pytest.raises(UnsupportedWarpError, match=r"context\.runtime\.tape"), without_tape():
        pytest.fail("the block ran")


def test_parts_of_value_types() -> None:
    assert scalar_and_shape(wp.float32) == (wp.float32, ())
    assert scalar_and_shape(wp.types.matrix((2, 3), wp.float16)) == (wp.float16, (2, 3))
