"""Reverse passes of loops that load into stages, decided from hand-written traces."""

from typing import Any

import pytest

from tests.codegen import traces as t
from tests.gemm.test_main_loop import problem_of
from warp_tiles.codegen.loops import decide
from warp_tiles.codegen.module_code import LoopDecision
from warp_tiles.codegen.operations import Array, Operation, Tile
from warp_tiles.codegen.pipelines import LoopTarget
from warp_tiles.codegen.trace import Node
from warp_tiles.gemm.rejected import code_of

M, N, K = 64, 64, 64
A, B, C = t.tile("a", M, K, "float16"), t.tile("b", K, N, "float16"), t.tile("c", M, N)
TARGET = LoopTarget({0: problem_of(M, N, K, 128)}, ("wgmma", "mma"))
ARRAYS = {name: Array(f"var_{name}", True, f"adj_{name}") for name in "AB"}


def load(tile: Tile, name: str, **fields: Any) -> Operation:
    return t.load(tile, ARRAYS[name], **{"reverses": True, "zeroes": True, **fields})


def body(c: Tile = C, **fields: Any) -> tuple[Operation, Operation, Operation]:
    return load(A, "A"), load(B, "B"), t.product(A, B, c, **{"reverses": True, **fields})


def loop(*nodes: Node, **fields: Any) -> Any:
    return t.loop(*nodes, **{"reverses": True, **fields})


def decided(*nodes: Node) -> LoopDecision:
    """The decision about the last loop of a kernel that has an adjoint."""
    found = t.function(*nodes, tiles=(C, A, B))
    context = t.context(found, reversed=frozenset({found.label}))
    return decide(context, t.accumulators_of(0, 1), TARGET)[-1]


# ---- loops with stages


def test_a_start_value_keeps_its_gradient() -> None:
    ring = decided(t.load(C), loop(*body())).reverse_ring
    assert ring is not None
    assert (ring.first, ring.plan.extra_bytes) == (A, ring.plan.needed_bytes + 1024 - 2 * ring.stage_bytes)


# ---- reasons for none

VIEW = t.tile("v", memory=frozenset({"a"}))
REASONS = {
    "the adjoint of a load": (loop(load(A, "A", reverses=False), *body()[1:]), "other_adjoints"),
    "gradients are set to zeros elsewhere": (loop(load(A, "A", zeroes=False), *body()[1:]), "other_adjoints"),
    "the product's adjoint": (loop(*body(reverses=False)), "other_adjoints"),
    "a loop without hooks": (loop(*body(), reverses=False), "unrolled_loop"),
    "one tile twice": (
        loop(load(A, "A"), t.product(A, t.alias(VIEW, A).results[0], C, reverses=True)),  # type: ignore[arg-type]
        "operand_not_loaded_whole",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name: str) -> None:
    node, code = REASONS[name]
    assert code_of(decided(t.zeros(C), node).reverse_pass) == code
