"""Writes loops that load into stages as C++: the bodies of their macros, and the types of their products.

An iteration loads its tiles into one stage, and multiplies those of an earlier iteration before that, so that tensor
cores work while the loads are issued. After the loop the program jumps to the products until no stage is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.loops import LoopDecision
from warp_tiles.codegen.macros import STATEMENT, Macros, hook_of, pointer
from warp_tiles.codegen.stages import Ring, Slot, constant_arrays
from warp_tiles.codegen.sums import Accumulation
from warp_tiles.codegen.trace import Array, FunctionTrace, Tile
from warp_tiles.gemm.dtypes import DTYPES
from warp_tiles.gemm.hardware import LANES
from warp_tiles.gemm.pipeline import MmaPlan
from warp_tiles.gemm.problem import GemmProblem

_SYNC = "WP_TILE_SYNC();"


def staged_types(decision: LoopDecision) -> Iterator[str]:
    """Yields the C++ types of the products of a loop with stages."""
    if decision.pipeline is None or (ring := decision.pipeline.ring) is None:
        return
    for product, variant, answer in zip(decision.pipeline.products, ring.variants, ring.products):
        if product.array == hook_of(product.operation):  # the first one of those that share sums
            a, b = (_slot(ring, tile).transposed for tile in (product.a, product.b))
            flags = {"in_loop": True, "a_transposed": a, "b_transposed": b}
            yield product_type(staged_name(product), variant, answer, flags=flags)


def product_type(
    name: str,
    variant: GemmProblem,
    answer: MmaPlan,
    sizes: Mapping[str, int] = MappingProxyType({}),
    flags: Mapping[str, bool] = MappingProxyType({}),
) -> str:
    """C++ of the type of a product of tiles in slots.

    Args:
        name: Its name.
        variant: The product, with its operands as they lie in slots.
        answer: How a block computes it.
        sizes, flags: Further constants of its problem (``kernels/module/staged_sums.cuh``).
    """
    template = {"wgmma": "WarpgroupProduct", "fma": "FmaProduct"}.get(answer.instruction, "WarpProduct")
    if answer.through_registers:
        template = "WarpgroupRegisterProduct"
    grid = {"m": variant.m, "n": variant.n, "k": variant.k, "warps_m": answer.warps_m, "warps_n": answer.warps_n}
    if answer.lanes_m:
        grid |= {"lanes_m": answer.lanes_m, "lanes_n": LANES // answer.lanes_m}
    majors = {"a_k_major": variant.a.arrangement == "row_major", "b_k_major": variant.b.arrangement == "col_major"}
    if template == "WarpgroupProduct":
        majors["swapped"] = answer.swapped
    integers = ", ".join(f"{key} = {value}" for key, value in {**grid, **sizes}.items())
    booleans = ", ".join(f"{key} = {str(value).lower()}" for key, value in {**majors, **flags}.items())
    return (
        f"struct {name}_problem {{\n"
        f"    using T = {DTYPES[variant.a.dtype].kernel_type};\n"
        f"    static constexpr int {integers};\n"
        f"    static constexpr bool {booleans};\n"
        f"}};\nusing {name} = wt_module::{template}<{name}_problem>;"
    )


def emit_ring(macros: Macros, function: FunctionTrace, decision: LoopDecision) -> None:
    """Writes a loop of a function that loads into stages."""
    pipeline = decision.pipeline
    assert pipeline is not None
    assert pipeline.ring is not None
    ring, found, loop = pipeline.ring, pipeline.ring.loop, decision.loop.hook
    name, multiply, drain = f"wt_ring_{loop}", f"wt_multiply_{loop}", f"wt_drain_{loop}"
    extra = found.extra_bytes
    memory = f"wt_memory_{loop}"
    if extra:  # declared without an initializer, because a goto may not jump over one
        macros.add(Hook.BEGIN, loop, f"void* {memory}; {memory} = wp::tile_shared_storage_t::alloc({extra});")
    reads_c = any(ring.starts) and not ring.adds_starts
    if reads_c:  # before the barrier in begin(), because the stages may lie in C's memory
        _emit_starts(macros, loop, pipeline.products, ring)
    first = pointer(ring.first) if ring.first is not None else memory
    kind = f"wt_module::Ring<{found.stages}, {found.in_flight}, {found.per_barrier}, {found.stage_bytes}>"
    macros.add(Hook.BEGIN, loop, f"{kind} {name}; {name}.begin(wt_module::address({first}));")
    if not reads_c:  # zeros come after it: the other order gives loops of wgmma machine code that nobody has timed
        _emit_starts(macros, loop, pipeline.products, ring)
    constant = constant_arrays(function, decision.loop)
    adds = " ".join(_add(ring, product, name) for product in pipeline.products)
    groups = " + ".join(f"{staged_name(product)}::GROUPS" for product in pipeline.products)
    wait = f"{name}.wait<({groups})>();"
    # Products in flight keep tensor cores busy while the loads are issued. Without them the products come first.
    if found.in_flight:
        begin = f"if ({name}.due()) {wait} "
        before = f"{multiply}:; if ({name}.due()) {{ if (!{name}.more) {wait}"
    else:
        begin, before = "", f"{multiply}:; if ({name}.due()) {{ {wait}"
    multiplied = f"{before} {adds} {name}.multiplied(); if (!{name}.more) goto {drain}; }} "
    if not found.in_flight:
        begin, multiplied = multiplied, ""
    for load in pipeline.loads:
        (tile,) = (value for value in load.results if isinstance(value, Tile))
        place = ring.slots[tile.name]
        slot = f"{name}.to + {place.offset_bytes}"
        template = f"wt_module::{'TransposingSlotLoader' if place.transposed else 'SlotLoader'}"
        array = next((value for value in load.operands if isinstance(value, Array) and value.name in constant), None)
        target = f"wt_module::LoadSlotOnce<{template}> {{{slot}}}"
        if array is not None:
            loader = f"wt_loader_{loop}_{tile.name}"
            kind = f"{template}<decltype({tile.name})>"
            macros.add(Hook.BEGIN, loop, f"{kind} {loader}; {loader}.begin({array.name});")
            target = f"wt_module::LoadSlot<{kind}> {{{loader}, {slot}}}"
        commit = " wt::arch::commit_copies();" if load is pipeline.loads[-1] else ""
        macros.replace(Hook.AT, hook_of(load), f"{begin}{target} << {STATEMENT}{commit}")
        begin = ""
    *earlier, last = pipeline.products
    for product in earlier:
        macros.replace(Hook.AT, hook_of(product.operation), "")
    macros.replace(Hook.AT, hook_of(last.operation), f"{multiplied}{name}.loaded();")
    macros.add(Hook.END, loop, f"{name}.more = false; {drain}:; if ({name}.turns) goto {multiply};")
    summed = {product.array: product for product in pipeline.products}
    completions = " ".join(f"{staged_name(product)}::complete(wt_sums_{number});" for number, product in summed.items())
    macros.add(Hook.END, loop, f"{completions} {_SYNC}")
    if extra:
        macros.add(Hook.END, loop, f"wp::tile_shared_storage_t::alloc(-{extra});")
    if isinstance(decision.sum_store, str):
        _emit_results(macros, loop, pipeline.products, ring)
    for fill in ring.fills:  # the loop overwrites C
        macros.replace(Hook.AT, hook_of(fill), "")


def _emit_starts(macros: Macros, loop: int, products: tuple[Accumulation, ...], ring: Ring) -> None:
    """Writes the sums before the loop: zeros, or the start value of C in the first array of sums of this C."""
    started: set[str] = set()
    arrays: set[int] = set()
    for product, has_start in zip(products, ring.starts):
        if product.array in arrays:
            continue
        arrays.add(product.array)
        kind, sums, start = staged_name(product), f"wt_sums_{product.array}", ""
        if has_start and not ring.adds_starts and product.c.name not in started:
            macros.add(Hook.BEGIN, loop, _SYNC)
            start = f", {pointer(product.c)}"
        started.add(product.c.name)
        macros.add(Hook.BEGIN, loop, f"{kind}::Sums {sums}; {kind}::start({sums}{start});")


def _emit_results(macros: Macros, loop: int, products: tuple[Accumulation, ...], ring: Ring) -> None:
    """Writes the sums to C after the loop, or adds them to its start value or to those of an earlier array."""
    written: set[str] = set()
    arrays: set[int] = set()
    for product, has_start in zip(products, ring.starts):
        if product.array not in arrays:
            arrays.add(product.array)
            adds = str((has_start and ring.adds_starts) or product.c.name in written).lower()
            written.add(product.c.name)
            finish = f"{staged_name(product)}::finish<{adds}>(wt_sums_{product.array}, {pointer(product.c)});"
            macros.add(Hook.END, loop, f"{finish} {_SYNC}")
    for product in products:
        if product.addition is not None:
            macros.replace(Hook.AT, hook_of(product.addition), "")
            target = product.addition.tiles[0].name
            macros.add(Hook.END, loop, f"wp::tile_add_inplace({target}, {product.c.name});")


def _add(ring: Ring, product: Accumulation, name: str) -> str:
    slots = (f"{name}.from + {_slot(ring, tile).offset_bytes}" for tile in (product.a, product.b))
    return f"{staged_name(product)}::add(wt_sums_{product.array}, {', '.join(slots)});"


def _slot(ring: Ring, tile: Tile) -> Slot:
    """The slot of a loaded tile, or of its transpose."""
    return next(slot for root, slot in ring.slots.items() if root in tile.memory)


def staged_name(product: Accumulation) -> str:
    """C++ of the type of a product of tiles in slots."""
    return f"wt_staged_{product.array}"
