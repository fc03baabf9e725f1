"""Finds panel steps: the loops of products and the solvers that work on one panel of a blocked factorization or solve.

All functions are pure, on a :class:`warp_tiles.codegen.trace.FunctionTrace`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from warp_tiles.codegen.operations import Operation
from warp_tiles.codegen.trace import Branch, FunctionTrace, Loop, Node, operations
from warp_tiles.gemm.pipeline import PlannedLoop
from warp_tiles.plan.planning import PanelPart, PanelStep
from warp_tiles.solver.variant import SOLVERS


def panel_steps(
    function: FunctionTrace, loops: Mapping[int, PlannedLoop], solvers: Mapping[int, tuple[str, str]]
) -> tuple[PanelStep, ...]:
    """Returns the panel steps of a function, in the order of the program. Their parts are sorted by line.

    A step is the outermost loop that contains both loops of products and solvers. A loop that only repeats whole steps,
    such as one over matrices, is not one. The body of a function is a step if it has both outside of other loops, as in
    a kernel of one panel. What lies in other functions does not count, nor does a solver in a loop of products itself.

    Args:
        loops: The decisions about loops of products, by the numbers of their hooks.
        solvers: The size and the provider of each solver, by the numbers of their sites.
    """
    parts: dict[Node, PanelPart] = {}
    inside: set[Operation] = set()  # of loops of products
    for node in _nodes(function.nodes, in_loops=True):
        if isinstance(node, Loop) and node.hook in loops:
            parts[node] = PanelPart(node.line, "products", "", loops[node.hook].describe())
            inside.update(operations(node.nodes))
        elif isinstance(node, Operation) and node.solver is not None and node not in inside:
            kind = "factor" if SOLVERS[node.name] == "cholesky" else "solve"
            parts[node] = PanelPart(node.line, kind, *solvers[node.solver])
    # Warp may unroll a loop: each iteration has the same parts, and the first one may have no products
    found = (
        (loop, tuple(sorted(dict.fromkeys(parts[node] for node in of), key=lambda part: part.line)))
        for loop, of in _steps(function.nodes, None, parts)
    )
    steps = (PanelStep("", function.file, (loop or of[0]).line, of) for loop, of in found)
    return tuple(dict.fromkeys(steps))


def _steps(
    nodes: tuple[Node, ...], around: Loop | None, parts: Mapping[Node, PanelPart]
) -> list[tuple[Loop | None, list[Node]]]:
    """Returns the steps in the body of a loop or function, each with its loop and the statements of its parts."""

    def is_step(found: Collection[Node]) -> bool:
        kinds = {parts[node].kind for node in found}
        return "products" in kinds and len(kinds) > 1

    whole: list[Node] = [node for node in _nodes(nodes, in_loops=True) if node in parts]
    if not is_step(whole):
        return []
    outermost = list(_nodes(nodes, in_loops=False))
    inner = [step for node in outermost if isinstance(node, Loop) for step in _steps(node.nodes, node, parts)]
    others = set(whole).difference(*(of for _, of in inner))
    is_one = bool(others) if around else is_step(others.intersection(outermost))
    return [(around, whole)] if is_one else inner


def _nodes(nodes: tuple[Node, ...], *, in_loops: bool) -> Iterator[Loop | Operation]:
    """Yields loops and operations in the order of the program, also those of branches."""
    for node in nodes:
        if not isinstance(node, Branch):
            yield node
        if isinstance(node, Branch) or (in_loops and isinstance(node, Loop)):
            yield from _nodes(node.nodes, in_loops=in_loops)
