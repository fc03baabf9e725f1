"""Generates a small kernel in an untested Warp, and compares its product and trace with those of tested versions.

The comparison notices a change of meaning. The check of Warp's members notices only one that is missing or has changed.
"""

# mypy: disable-error-code="no-untyped-def, valid-type, misc, arg-type"
# Warp reads annotations as values, so they are not types, and the file does not import them from __future__

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import warp as wp

from warp_tiles._warp.internals import find
from warp_tiles._warp.searches import forget_modules
from warp_tiles.codegen.module import GeneratedModule
from warp_tiles.codegen.operations import Array, Operation, Tile, Value
from warp_tiles.codegen.trace import Loop, Node
from warp_tiles.gemm.problem import GemmProblem

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


#: What tested versions of Warp make of the kernel: its product, and what is traced.
PRODUCT = (
    "tile_matmul: forward, adjoint_a, adjoint_b",
    "forward: 16x16x16 float16 x float16 -> float32, 64 threads, sm_90",
    "row_major 16, row_major 16, row_major 16",
    "adjoint_a: 16x16x16 float32 x float16 -> float16, 64 threads, sm_90",
    "row_major 16, col_major 16, row_major 16",
    "adjoint_b: 16x16x16 float16 x float32 -> float16, 64 threads, sm_90",
    "col_major 16, row_major 16, row_major 16",
    "tile_matmul: hooked, reversed, TILES: float16 16x16 shared, float16 16x16 shared, float32 16x16 shared -> ",
    "called: True, with an adjoint: True",
)
TRACE = (
    "tile_zeros: hooked, TILES:  -> float32 16x16 shared",
    "shape: NONE: array -> ",
    "range loop:",
    "  tile_load: hooked, reversed, TILES: array, [0, 16], [0, 16] -> float16 16x16 shared",
    "  tile_load: hooked, reversed, TILES: array, [0, 16], [0, 16] -> float16 16x16 shared",
    "  tile_matmul: hooked, reversed, TILES: float16 16x16 shared, float16 16x16 shared, float32 16x16 shared -> ",
    "tile_store: hooked, reversed, WRITES: array, float32 16x16 shared, [0, 16], [0, 16] -> ",
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


def product_of(made: GeneratedModule) -> tuple[str, ...]:
    """The sites of a module as text."""
    lines = []
    for site in made.session.sites:
        lines.append(f"{site.call}: {', '.join(role.value for role in site.variants)}")
        for role, variant in site.variants.items():
            lines.append(f"{role.value}: {variant.describe()}")
            if isinstance(variant, GemmProblem):
                operands = (variant.a, variant.b, variant.c)
                lines.append(", ".join(f"{operand.arrangement} {operand.leading_dimension}" for operand in operands))
    for operation in (one for function in made.trace.functions.values() for one in function.operations()):
        if operation.product is not None:
            lines += _lines([operation])
    is_called = "wt_site0_forward" in made.source
    return (*lines, f"called: {is_called}, with an adjoint: {made.called == {0}}")


def trace_of(made: GeneratedModule) -> tuple[str, ...]:
    """The trace of a module as text, without the names of variables."""
    return tuple(line for function in made.trace.functions.values() for line in _lines(function.nodes))


def _lines(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        if not isinstance(node, Operation):
            yield f"{node.kind} loop:" if isinstance(node, Loop) else "branch:"
            yield from (f"  {line}" for line in _lines(node.nodes))
        elif any(isinstance(value, (Tile, Array)) for value in (*node.operands, *node.results)):
            hooked = "hooked, " * (node.hook is not None) + "reversed, " * node.reverses
            values = (", ".join(filter(None, map(_text, side))) for side in (node.operands, node.results))
            yield f"{node.name}: {hooked}{node.effect.name}: {' -> '.join(values)}"


def _text(value: Value) -> str:
    """A tile, an array or an affine offset without its names; empty for another scalar."""
    if isinstance(value, Tile):
        facts = "" if value.memory == {value.name} else " alias", "" if value.dense else " padded"
        return f"{value.dtype} {'x'.join(map(str, value.shape))} {value.storage}{''.join(facts)}"
    if isinstance(value, Array):
        return "array"
    return "" if value.offset is None else str([value.offset.constant, *(factor for _, factor in value.offset.terms)])


def difference(expected: Sequence[str], found: Sequence[str]) -> str:
    """The first line that differs; empty if none does."""
    pairs = zip_longest(expected, found, fillvalue="")
    return next((f"expected '{line}', and got '{other}'" for line, other in pairs if line != other), "")
