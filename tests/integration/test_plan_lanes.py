"""Plans name statements at which the lanes of a block wait for each other forever, and no others."""

from pathlib import Path

import pytest

from tests.integration.helpers import compile_module, load
from tests.integration.plans import plan

pytestmark = pytest.mark.usefixtures("enabled")

KERNEL = """
@wp.kernel(enable_backward=False)
def edge(A: wp.array2d(dtype=float), n: int, m: int):
    task, lane = wp.tid()
    a = wp.tile_load(A, shape=(16, 16), storage="shared")
    for q in range(256 // wp.block_dim()):
        e = lane + q * wp.block_dim()
        row = e // 16
        column = e % 16
        value = a[row, column]
{body}
    wp.tile_store(A, wp.tile_matmul(a, a))
"""
STUCK = {
    "a comparison": "if row >= n:\n    a[row, column] = 0.0",
    "two comparisons": "if row >= n and column < m:\n    a[row, column] = 0.0",
    "a uniform and another": "if n > 3 or row < m:\n    a[row, column] = 0.0",
    "a negation": "if not row < n:\n    a[row, column] = 0.0",
    "the other branch": "if row < n:\n    value = 0.0\nelse:\n    a[row, column] = 0.0",
    "a branch around": "if column > 3:\n    if n > 3:\n        a[row, column] = 0.0",
    "a sum": "if row >= n:\n    a[row, column] += 1.0",
    "an element": "if value > 0.0:\n    a[row, column] = 0.0",
    "a variable of a branch": "z = 0\nif row > 3:\n    z = 1\nif z == 1:\n    a[row, column] = 0.0",
}
LOOPS = {
    "a range of lanes": "for e in range(lane, n, wp.block_dim()):\n    a[e // 16, e % 16] = 0.0",
    "a constant that the threads do not divide": "for e in range(lane, 200, wp.block_dim()):\n    a[e // 16, 1] = 0.0",
    "an end": "for e in range(lane):\n    a[e, 1] = 0.0",
    "a while loop": "e = lane\nwhile e < 200:\n    a[e // 16, 1] = 0.0\n    e += wp.block_dim()",
    "a flag": "go = row < n\nwhile go:\n    a[row, 1] = 0.0\n    row += n\n    go = row < n",
    "a break": "for q in range(n):\n    if q > row:\n        break\n    a[q, 1] = 0.0",
    "a continue": "for q in range(n):\n    if q > row:\n        continue\n    a[q, 1] = 0.0",
    "a loop inside": "for q in range(row):\n    for r in range(n):\n        a[q, r] = 0.0",
    "a product": "for q in range(row):\n    a[q, 1] += wp.tile_matmul(a, a)[1, 1]",
    "a load": "for q in range(row):\n    b = wp.tile_load(A, shape=(16, 16), storage='shared')\n    value += b[1, 1]",
}
ENDS = {
    "a range that the threads divide": "for e in range(lane, 256, wp.block_dim()):\n    a[e // 16, 1] = 0.0",
    "a range by the threads": "for e in range(lane, 4 * wp.block_dim(), wp.block_dim()):\n    a[e // 16, 1] = 0.0",
    "a while loop that all repeat": "e = lane\nwhile e < 256:\n    a[e // 16, 1] = 0.0\n    e += wp.block_dim()",
    "a loop of lanes over an array": "for e in range(lane, n, wp.block_dim()):\n    A[e, 1] = a[e // 16, 1]",
    "a break of all": "for q in range(n):\n    if q > m:\n        break\n    a[q, 1] = 0.0",
    "an inner break": "for q in range(n):\n    for r in range(row):\n        if r > 3: break\n    a[q, 1] = 0.0",
    "all lanes": "a[row, column] = value",
    "a chosen value": "if row >= n:\n    value = 0.0\na[row, column] = value",
    "a uniform branch": "if n > m:\n    a[row, column] = value",
    "the number of a block": "if task > n:\n    a[row, column] = value",
    "an array": "if row >= n:\n    A[row, column] = 0.0",
    "a uniform loop": "for k in range(n):\n    a[row, column] = value",
}


def text(body: str) -> str:
    lines = (f"        {line}" for line in body.splitlines())
    return KERNEL.format(body="\n".join(lines))


@pytest.mark.parametrize("body", [*STUCK.values(), *LOOPS.values()], ids=[*STUCK, *LOOPS])
def test_a_wait_that_only_some_lanes_reach_or_less_often_is_named(body: str) -> None:
    written = text(body)
    lines = {
        number
        for number, line in enumerate(written.splitlines(), 3)
        if line.startswith(" " * 12) and line.strip().startswith(("a[", "b = "))
    }
    found = plan(written)
    assert lines
    assert {int(place.rpartition(":")[2]) for place in found.stuck} == lines
    for place, problem in zip(found.stuck, found.launch_failures, strict=True):
        assert problem.startswith(f"{place}: only some lanes of a block come here, or less often")
        assert "wp.where" in problem
        assert problem in str(found)
    assert found.to_json()["stuck"] == list(found.launch_failures)


@pytest.mark.parametrize("name", ENDS)
def test_a_write_of_all_lanes_or_of_none_is_not(name: str) -> None:
    assert plan(text(ENDS[name])).stuck == ()


def test_the_number_of_a_block_is_no_lane() -> None:
    two = text("if row >= n:\n    a[row, column] = 0.0").replace("lane + q * wp.block_dim()", "q")
    without_tiles = text("if block > n:\n    a[row, column] = 0.0").replace(
        "e = lane + q * wp.block_dim()", "block = task // wp.block_dim()\n        e = q"
    )
    for written in (two, two.replace("row >= n", "lane >= n"), without_tiles):
        assert plan(written).stuck == ()


def test_the_cpu_has_no_lanes() -> None:
    assert plan(text(STUCK["a comparison"]), arch=None).stuck == ()


def test_a_build_warns(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="only some lanes of a block come here, or less often"):
        compile_module(load(text(STUCK["a comparison"])), tmp_path)
