"""Generates a small kernel in an untested Warp, and compares its product and trace with those of tested versions.

The comparison notices a change of meaning. The check of Warp's members notices only one that is missing or has changed.
"""

# mypy: disable-error-code="no-untyped-def, valid-type, misc, arg-type"
# Warp reads annotations as values, so they are not types, and the file does not import them from __future__

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import warp as wp

from warp_tiles._warp.internals import find
from warp_tiles._warp.modules import forget_modules
from warp_tiles.codegen.operations import Array, Operation, Tile, Value
from warp_tiles.codegen.trace import Loop, Node
from warp_tiles.gemm.problem import GemmProblem, Target, TileOperand, products
from warp_tiles.plan.planner import GeneratedModule

ARCH, THREADS = 90, 64
_T = 16


def _multiply(A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32)):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=(_T, _T), dtype=wp.float32)
    for k in range(A.shape[1] // _T):
        a = wp.tile_load(A, shape=(_T, _T), offset=(i * _T, k * _T))
        b = wp.tile_load(B, shape=(_T, _T), offset=(k * _T, j * _T))
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c, offset=(i * _T, j * _T))


_HALF = TileOperand("float16", (_T, _T), (_T, 1), "row_major", False)
_FLOAT = replace(_HALF, dtype="float32")
_A, _C = ("float16", (_T, _T), "shared", True, True), ("float32", (_T, _T), "shared", True, True)
_POSITION = ("array", (0, _T), (0, _T))
_LOAD = ("tile_load", "TILES", True, True, _POSITION, (_A,))
_MATMUL = ("tile_matmul", "TILES", True, True, (_A, _A, _C), ())
_FOUND = products(_HALF, _HALF, _FLOAT, precision="default", target=Target(ARCH, THREADS))
#: What tested versions of Warp make of the kernel: its product, and what is traced.
PRODUCT = (*_FOUND.problems.items(), _MATMUL, ("called", True), ("with an adjoint", True))
TRACE = (
    ("tile_zeros", "TILES", True, False, (), (_C,)),
    ("shape", "NONE", False, False, ("array",), ()),
    ("range", _LOAD, _LOAD, _MATMUL),
    ("tile_store", "WRITES", True, True, ("array", _C, (0, _T), (0, _T)), ()),
)


def generated(hooks: Any, name: str = "warp_tiles_probe") -> GeneratedModule:
    """Generates the kernel with the hooks of :class:`warp_tiles._warp.hooks.Hooks`. Nothing is planned or built."""
    context, module = find("context"), wp.get_module(name)
    try:
        kernel = wp.Kernel(_multiply, key="multiply", module=module)
        options = module.resolve_options(wp.config, block_dim=THREADS) | {"output_arch": ARCH, "block_dim": THREADS}
        hasher = module.hashers[THREADS] = context.ModuleHasher([kernel], options)
        made: GeneratedModule = hooks.generated(module, options, hasher)
        return made
    finally:
        forget_modules([name])


def product_of(made: GeneratedModule) -> tuple[Any, ...]:
    """The sites of a module. Alignments are left out, because a Warp that tells less of them is served."""
    pairs = (pair for site in made.session.sites for pair in site.problems.items())
    problems = [(role, v.without_alignment() if isinstance(v, GemmProblem) else v) for role, v in pairs]
    calls = _facts(tuple(operation for _, operation in made.trace.operations() if operation.product is not None))
    return (*problems, *calls, ("called", "wt_site0_forward" in made.source), ("with an adjoint", made.called == {0}))


def trace_of(made: GeneratedModule) -> tuple[Any, ...]:
    return tuple(fact for function in made.trace.functions.values() for fact in _facts(function.nodes))


def _facts(nodes: tuple[Node, ...]) -> Iterator[tuple[Any, ...]]:
    """Name, effect, hook, adjoint's hook, operands and results of each operation with a tile or an array."""
    for node in nodes:
        if not isinstance(node, Operation):
            yield node.kind if isinstance(node, Loop) else "branch", *_facts(node.nodes)
        elif any(isinstance(value, (Tile, Array)) for value in node.values):
            operands, results = (tuple(filter(None, map(_fact, side))) for side in (node.operands, node.results))
            yield node.name, node.effect.name, node.hook is not None, node.reverses, operands, results


def _fact(value: Value) -> Any:
    """A tile, an array or an affine offset without its names; None for another scalar."""
    if isinstance(value, Tile):
        return value.dtype, value.shape, value.storage, value.memory == {value.name}, value.dense
    if isinstance(value, Array):
        return "array"
    return None if value.offset is None else (value.offset.constant, *(factor for _, factor in value.offset.terms))


def difference(expected: Sequence[Any], actual: Sequence[Any]) -> str:
    """The first values that differ; empty if none do."""
    pairs = zip_longest(expected, actual)
    return next((f"expected {tested}, and got {new}" for tested, new in pairs if tested != new), "")
