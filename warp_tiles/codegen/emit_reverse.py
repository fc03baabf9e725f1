"""Writes the reverse passes of loops that load into stages as C++: the bodies of macros, and the types of products.

An iteration loads its tiles into one stage, and then computes the gradients of the iteration before. After the loop the
program jumps to the products once more, for the last iteration.
"""

from __future__ import annotations

from collections.abc import Iterator

from warp_tiles.codegen.emit_stages import product_type
from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.loops import LoopDecision
from warp_tiles.codegen.macros import STATEMENT, Macros, hook_of, pointer
from warp_tiles.codegen.reverse import ReverseRing, TileGradient
from warp_tiles.gemm.dtypes import DTYPES

_SYNC = "WP_TILE_SYNC();"


def reversed_types(decision: LoopDecision) -> Iterator[str]:
    """Yields the C++ types of the products of a loop's reverse pass."""
    ring = decision.reverse
    if isinstance(ring, ReverseRing):
        for gradient in ring.gradients:
            name, product = _name(ring, gradient), gradient.product
            constants = {"threads": product.variant.threads}
            flags = {
                "gradient_is_a": product.gradient_is_a,
                "in_loop": False,
                "a_transposed": False,
                "b_transposed": False,
            }
            yield product_type(name, product.variant, product.answer, constants, flags)


def emit_reverse(macros: Macros, decision: LoopDecision) -> None:
    """Writes the reverse pass of a loop, if it loads into stages."""
    ring, loop = decision.reverse, decision.loop.hook
    if not isinstance(ring, ReverseRing):
        return
    name, multiply, done = f"wt_reverse_{loop}", f"wt_reverse_multiply_{loop}", f"wt_reverse_done_{loop}"
    forward, extra, memory = ring.forward, ring.answer.extra_bytes, f"wt_reverse_memory_{loop}"
    if extra:  # declared without an initializer, because a goto may not jump over one
        macros.add(Hook.REVERSE_BEGIN, loop, f"void* {memory}; {memory} = wp::tile_shared_storage_t::alloc({extra});")
    first = pointer(ring.first) if ring.first is not None else memory
    dtype = DTYPES[forward.a.dtype].kernel_type
    kind = f"wt_module::ReverseLoop<{dtype}, {forward.m}, {forward.n}, {ring.stage_bytes}>"
    begin = f"{name}.begin(wt_module::address({first}), {ring.c.name}.grad.ptr);"
    macros.add(Hook.REVERSE_BEGIN, loop, f"{kind} {name}; {begin}")
    places = {gradient.tile.name: f"wt_places_{loop}_{gradient.tile.name}" for gradient in ring.gradients}
    last = max(ring.gradients, key=lambda gradient: hook_of(gradient.load))
    for gradient in ring.gradients:
        tile, number = gradient.tile.name, hook_of(gradient.load)
        loader, loaders = f"wt_reverse_loader_{loop}_{tile}", f"wt_module::SlotLoader<decltype({tile})>"
        declarations = f"{loaders} {loader}; {loader}.begin({gradient.array.name}); wt_module::Places {places[tile]};"
        macros.add(Hook.REVERSE_BEGIN, loop, declarations)
        target = f"{loader}, {_slot(ring, f'{name}.to', tile)}, {places[tile]}"
        commit = " wt::arch::commit_copies();" if gradient is last else ""
        load = f"wt_module::LoadPlaced<{loaders}> {{{target}}} << {STATEMENT}{commit}"
        macros.replace(Hook.REPLAY, number, load)
        macros.replace(Hook.ADJOINT, number, "")
        macros.replace(Hook.ZERO, number, "")
    for view in ring.views:  # Warp's adjoint reads and writes the tiles
        macros.replace(Hook.ADJOINT, hook_of(view), "")
    macros.replace(Hook.REPLAY, hook_of(ring.product), "")
    products = " ".join(_products(ring, name, places))
    moved = " ".join(f"{place}.next();" for place in places.values())
    turn = f"{multiply}:; if ({name}.pending) {{ {name}.wait(); {products} }} if (!{name}.more) goto {done};"
    macros.replace(Hook.ADJOINT, hook_of(ring.product), f"{turn} {name}.next(); {moved}")
    macros.add(Hook.REVERSE_END, loop, f"{name}.more = false; goto {multiply}; {done}:;")
    if extra:
        macros.add(Hook.REVERSE_END, loop, f"wp::tile_shared_storage_t::alloc(-{extra});")


def _products(ring: ReverseRing, name: str, places: dict[str, str]) -> Iterator[str]:
    """Yields the statements that compute the gradients of an iteration and add them to the arrays' gradients."""
    kinds = {gradient.tile.name: _name(ring, gradient) for gradient in ring.gradients}
    for gradient in ring.gradients:
        tile, kind = gradient.tile.name, kinds[gradient.tile.name]
        other = _slot(ring, f"{name}.from", gradient.other.name)
        yield f"{kind}::Sums wt_sums_{tile}; {name}.multiply<{kind}>(wt_sums_{tile}, {other});"
    for tile, kind in kinds.items():
        yield f"{name}.complete<{kind}>(wt_sums_{tile});"
    yield _SYNC  # all threads have read the stage
    for tile, kind in kinds.items():
        yield f"{name}.replace<{kind}, decltype({tile})>(wt_sums_{tile}, {_slot(ring, f'{name}.from', tile)});"
    yield _SYNC
    for gradient in ring.gradients:
        tile, array = gradient.tile.name, gradient.array
        arguments = f"{_slot(ring, f'{name}.from', tile)}, {array.name}, {array.adjoint}, {places[tile]}"
        yield f"wt_module::add_to_gradient<decltype({tile})>({arguments});"
    yield _SYNC  # the next iteration loads into the stage


def _slot(ring: ReverseRing, stage: str, tile: str) -> str:
    return f"{stage} + {ring.slots[tile].offset_bytes}"


def _name(ring: ReverseRing, gradient: TileGradient) -> str:
    return f"wt_gradient_{hook_of(ring.product)}_{gradient.tile.name}"
