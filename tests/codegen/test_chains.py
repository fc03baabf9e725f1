"""The stages of loops whose tiles stay in registers between their products."""

from __future__ import annotations

import pytest

from warp_tiles.codegen.chains import best_layout, stage_layouts
from warp_tiles.codegen.module_code import StageLayout


def layouts(warpgroups: int, *, loads_again: bool = True) -> set[tuple[int, int, int]]:
    found = list(stage_layouts(32768, 16384, lambda size_bytes: -size_bytes, warpgroups, loads_again=loads_again))
    assert all(layout.blocks == -layout.size_bytes for layout in found)
    return {(layout.stages, layout.copies, layout.size_bytes) for layout in found}


def test_layouts() -> None:
    """Left operands from outside lie behind all stages, which begin up to an alignment later."""
    least, stage = 16384 + 1024, 32768
    assert layouts(1) == {(1, 1, stage + least), (2, 1, 2 * stage + least)}
    assert layouts(2) == layouts(1) | {(1, 2, 2 * stage + least), (2, 2, 4 * stage + least)}


def test_mma_sync_has_two_stages_that_all_threads_load() -> None:
    assert layouts(0) == {(2, 1, 2 * 32768 + 16384 + 1024)}


def test_a_tile_that_other_products_need_is_not_loaded_again() -> None:
    assert {stages for stages, _, _ in layouts(2, loads_again=False)} == {2}


@pytest.mark.parametrize(
    ("best", "others"),
    [
        (StageLayout(1, 1, 0, blocks=2), [StageLayout(2, 1, 0, blocks=1), StageLayout(2, 2, 0, blocks=1)]),
        (StageLayout(2, 1, 0, blocks=2), [StageLayout(1, 1, 0, blocks=2), StageLayout(1, 2, 0, blocks=2)]),
        (StageLayout(2, 2, 0, blocks=1), [StageLayout(2, 1, 0, blocks=1), StageLayout(1, 2, 0, blocks=1)]),
    ],
)
def test_best_layout(best: StageLayout, others: list[StageLayout]) -> None:
    """Resident blocks count first, then two stages, then stages for each warpgroup."""
    assert best_layout([best, *others]) == best_layout([*others, best]) == best
