"""Scalars that a call or a loop changes are no constants, so views that may overlap and such factors stay Warp's."""

import re
from pathlib import Path

import pytest

import warp_tiles
from tests._warp.generate import operations_named, trace_of
from tests.integration.helpers import load
from tests.loop_forms import substitution
from warp_tiles._warp.internals import find
from warp_tiles._warp.trace_builder import changed_operands
from warp_tiles.codegen.operations import RANDOM, Scalar

pytestmark = pytest.mark.usefixtures("enabled")

FUNCTIONS = """
@wp.func
def add_rows(rows: int, row: wp.ref[int]):
    row += rows
@wp.func
def double(factor: wp.ref[float]):
    factor *= 2.0
"""
KERNEL = """
@wp.kernel(enable_backward=False)
def multiply(A: wp.array2d(dtype=float), n: int, grid: wp.uint64, C: wp.array2d(dtype=float)):
    x = wp.tile_load(A, shape=(64, 16), storage="shared")
    row = int(0)
    factor = float(1.0)
    other = float(0.0)
    {change}
    c = wp.tile_view(x, shape=(16, 16), offset=(16, 0))
    for k in range(n):
        y = wp.tile_view(x, shape=(16, 16), offset=({row}, 0))
        a = wp.tile_load(A, shape=(16, 16), offset=(k * 16, 0), storage="shared")
        wp.tile_matmul(a, y, c, alpha=factor)
    wp.tile_store(C, x)
"""
BY_REFERENCE = "add_rows(n, row)"
HASH_GRID = "query = wp.hash_grid_query(grid, wp.vec3(0.0), 1.0)\n    {}wp.hash_grid_query_next(query, row)"
VOLUMES = "query = wp.{kind}_query_aabb(grid, wp.vec3(0.0), wp.vec3(1.0))\n    wp.{kind}_query_{next}(query, row)"
CHANGES = {
    "a reference": BY_REFERENCE,
    "a query of a grid": HASH_GRID.format(""),
    "the condition of a loop": HASH_GRID.format("while ") + ":\n        done = int(1)",
    "a query of a tree": VOLUMES.format(kind="bvh", next="next"),
    "a query of a mesh": VOLUMES.format(kind="mesh", next="aabb_next"),
    "a search for a point": "wp.mesh_query_point(grid, wp.vec3(0.0), 1.0, other, row, other, other)",
    "a loop": "for k in range(n):\n        row = row + 16",
}


def text(change: str = "", row: str = "row") -> str:
    return FUNCTIONS + KERNEL.format(change=change, row=row)


def planned(source: str) -> tuple[str, ...]:
    """State and codes of the last loop."""
    loop = warp_tiles.plan(load(source), arch=90, block_dim=64).loops[-1]
    return loop.state, *loop.codes


# ---- the trace


@pytest.mark.parametrize(
    ("name", "change"), [("add_rows()", BY_REFERENCE), ("hash_grid_query_next", HASH_GRID.format(""))]
)
def test_a_number_that_a_call_changes_has_no_offset(name: str, change: str) -> None:
    """Neither the operand ``row`` of the call, nor ``row + 1`` before and after it."""
    lines = f"before = row + 1\n    {change}\n    after = row + 1\n    use = before * after"
    function = trace_of(load(text(lines)))
    (call,) = operations_named(function, name)
    row = call.operands[1]
    assert row.name in call.changed
    numbers = next(one for one in operations_named(function, "mul") if len(one.operands) == 2).operands
    assert [number.offset for number in (row, *numbers) if isinstance(number, Scalar)] == [None] * 3


def test_other_arguments_of_the_function_do_not_change() -> None:
    function = trace_of(load(text(BY_REFERENCE)))
    (call,) = operations_named(function, "add_rows()")
    assert call.changed == {call.operands[1].name}
    assert [one.offset is None for one in call.operands if isinstance(one, Scalar)] == [False, True]
    changing = {one.name for one in function.operations() if one.changed}
    assert changing == {"add_rows()"}


def test_each_builtin_that_writes_to_a_number_is_known_to() -> None:
    """Warp's headers tell the parameters that a builtin may write: references to numbers without ``const``."""
    headers = Path(find("build.warp_home"), "native").glob("*.h")
    number = r"\b(?<!const )(?:int|float|double|bool|uint32|Type) ?& ?\w+"
    parameter = re.compile(rf"inline\b[^;{{}}()]*?\b(\w+)\([^(){{}};]*{number}")
    native = {found[1] for header in headers for found in parameter.finditer(header.read_text("utf-8"))}
    writers = [
        overload
        for builtin in find("context.builtin_functions").values()
        for overload in getattr(builtin, "overloads", None) or [builtin]
        if overload.native_func in native and overload.key not in RANDOM
    ]
    quiet = set()
    for overload in writers:
        bound = {name: find("codegen.Var")(name, kind) for name, kind in overload.input_types.items()}
        if not {f"var_{name}" for name in bound} <= changed_operands(overload, bound):
            quiet.add(overload.key)
    written = {"hash_grid_query_next", "bvh_query_next", "mesh_query_next", "mesh_query_point", "quat_to_axis_angle"}
    assert written <= {one.key for one in writers} - quiet
    assert quiet <= {"tid", "tile_stack_pop"}  # the numbers are their results


# ---- the plan


@pytest.mark.parametrize("row", ["row", "row + 0"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_views_at_a_changed_place_may_overlap(change: str, row: str) -> None:
    assert planned(text(change, row)) == ("as_warp", "c_overlaps")
    assert planned(text())[0] == "register_accumulators", "at constant places"


DISJOINT = [
    ("n", "p + 16, 64"),  # steps of 1 from behind the row
    ("48, -1, -16", "p - 16, -1, -16"),
    ("0, n, 16", "64, p, -16"),  # down to the block after the row
]
OVERLAPPING = [
    ("0, n, 16", "0, p, 8"),
    ("0, n, 16", "0, p + 16, 16"),
    ("n - 16, -1, -16", "p + 8, n, 16"),
    ("0, n, 8", "0, p, 8"),  # blocks of 16 rows in steps of 8
    ("0, n, 16", "0, p + 1, 16"),
    ("0, n, 16", "p, n, 16"),
    ("0, n, 8", "0, p, 16"),  # the last block may begin 8 rows before
    ("8, n, 16", "0, p, 16"),
    ("n, 64, 16", "0, p, 16"),
    ("0, n, 16", "0, n, 16"),
    ("0, n, 16", "0, p, n"),
    ("0, n, 16", "p, 0, -16"),
]


@pytest.mark.parametrize(("rows", "blocks"), [*DISJOINT, *OVERLAPPING])
def test_blocks_that_overlap(rows: str, blocks: str) -> None:
    of_rows, of_blocks = (f"range({bounds.replace('n', 'A.shape[0]')})" for bounds in (rows, blocks))
    is_disjoint = (rows, blocks) in DISJOINT
    expected = ("register_accumulators", "moving_view") if is_disjoint else ("as_warp", "c_overlaps")
    assert planned(substitution(of_rows, of_blocks)) == expected


@pytest.mark.parametrize(("change", "state"), [("pass", "register_accumulators"), ("add_rows(16, q)", "as_warp")])
def test_a_variable_of_a_loop_that_a_call_changes(change: str, state: str) -> None:
    source = substitution("range(0, A.shape[0], 16)", "range(0, p, 16)")
    source = source.replace("            z = ", f"            {change}\n            z = ")
    source = source.replace("@wp.kernel", "@wp.kernel(enable_backward=False)")
    assert planned(FUNCTIONS + source)[0] == state


@pytest.mark.parametrize(
    "change", ["double(factor)", "wp.mesh_query_point(grid, wp.vec3(0.0), 1.0, factor, row, other, other)"]
)
def test_a_factor_that_a_call_changes_is_no_constant(change: str) -> None:
    assert planned(text(change)) == ("as_warp", "unknown_alpha")
