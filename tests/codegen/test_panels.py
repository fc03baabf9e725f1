"""Panel steps of hand-written traces: what belongs together, and what does not."""

from __future__ import annotations

import pytest

from tests.codegen import traces as t
from tests.codegen.decisions import TARGET, C, body
from warp_tiles.codegen.loops import decide
from warp_tiles.codegen.operations import Operation
from warp_tiles.codegen.panels import panel_steps
from warp_tiles.codegen.trace import FunctionTrace, Loop, Node

SOLVERS = {7: ("cholesky 16x16", "mma"), 8: ("lower_solve 16x16, 1 column", "scalar")}


def products(line: int) -> Loop:
    """A loop of products."""
    return t.loop(*body(), line=line)


def factor(line: int) -> Operation:
    return t.operation("tile_cholesky_inplace", C, line=line, solver=7)


def solve(line: int) -> Operation:
    return t.operation("tile_lower_solve_inplace", C, line=line, solver=8)


def steps(*nodes: Node, others: tuple[FunctionTrace, ...] = ()) -> list[tuple[int, list[tuple[int, str]]]]:
    """The lines of the panel steps of a function, each with the lines and kinds of its parts."""
    function = t.function(*nodes)
    decisions = decide(t.context(function, *others), t.accumulators_of(0), TARGET)
    found = panel_steps(function, {one.hook: one.planned for one in decisions}, SOLVERS)
    assert {(step.kernel, step.file) for step in found} <= {("", "file.py")}
    return [(step.line, [(part.line, part.kind) for part in step.parts]) for step in found]


def panel(line: int) -> tuple[Node, ...]:
    """One panel of a blocked factorization."""
    rows = t.loop(t.branch(products(line + 3)), solve(line + 4), line=line + 2)
    return t.branch(products(line)), factor(line + 1), rows


def parts(line: int) -> list[tuple[int, str]]:
    return [(line, "products"), (line + 1, "factor"), (line + 3, "products"), (line + 4, "solve")]


FIRST = t.loop(products(11), solve(12), line=10)  # as in a blocked solve
SECOND = t.loop(products(21), solve(22), line=20)
BOTH = [(10, [(11, "products"), (12, "solve")]), (20, [(21, "products"), (22, "solve")])]
FOUND: dict[str, tuple[tuple[Node, ...], list[tuple[int, list[tuple[int, str]]]]]] = {
    "a blocked factorization": ((t.loop(*panel(11), line=10),), [(10, parts(11))]),
    "a kernel of one panel": (panel(11), [(11, parts(11))]),
    "a kernel of one panel without a loop of rows": (
        (products(11), t.branch(factor(12))),
        [(11, [(11, "products"), (12, "factor")])],
    ),
    "two loops": ((FIRST, t.branch(SECOND)), BOTH),
    "a loop over matrices": ((t.loop(FIRST, SECOND, line=1),), BOTH),
    "a loop over matrices that Warp unrolls": ((t.loop(FIRST, SECOND, FIRST, SECOND, kind="unrolled"),), BOTH),
    "panels that Warp unrolls": ((t.loop(*panel(11), *panel(11), kind="unrolled", line=10),), [(10, parts(11))]),
    "products that follow their factor": (
        (t.loop(factor(11), t.loop(solve(13), line=12), t.loop(products(15), line=14), line=10),),
        [(10, [(11, "factor"), (13, "solve"), (15, "products")])],
    ),
    "products and a solver beside a step": ((FIRST, products(30)), BOTH[:1]),
    "a product beside a solver": ((*body(), factor(12)), []),
    "one product for each solver": ((t.loop(*body(), factor(12)),), []),
    "the same in a loop": ((t.loop(t.loop(*body(), factor(12)), line=1),), []),
    "panels that Warp unrolls, the first without products": (
        (t.loop(factor(12), products(11), factor(12), kind="unrolled", line=10),),
        [(10, [(11, "products"), (12, "factor")])],
    ),
    "products behind a step": (
        (t.loop(FIRST, products(30), line=1),),
        [(1, [(11, "products"), (12, "solve"), (30, "products")])],
    ),
    "products alone": ((t.loop(products(11)),), []),
    "solvers alone": ((t.loop(factor(11), t.loop(solve(12))),), []),
    "products and solvers in loops of their own": ((products(11), t.loop(factor(12))), []),
}


@pytest.mark.parametrize("name", FOUND)
def test_steps(name: str) -> None:
    nodes, expected = FOUND[name]
    assert steps(*nodes) == expected


def test_a_solver_of_another_function_does_not_count() -> None:
    assert steps(t.loop(products(11), t.call("helper", C)), others=(t.function(factor(1), label="helper"),)) == []


def test_parts_say_what_computes_them() -> None:
    function = t.function(t.loop(t.zeros(C), products(11), factor(12), solve(13), line=10))
    decisions = decide(t.context(function), t.accumulators_of(0), TARGET)
    (step,) = panel_steps(function, {one.hook: one.planned for one in decisions}, SOLVERS)
    assert [part.describe() for part in step.parts] == [
        f"11 products: {decisions[0].planned.describe()}",
        "12 factor, cholesky 16x16: mma",
        "13 solve, lower_solve 16x16, 1 column: scalar",
    ]
