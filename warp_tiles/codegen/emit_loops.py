"""Assembles the loops of a module as C++: the bodies of the macros at their hooks.

Warp's statements stay where they are; a macro before, around or after each of them adds what a pipeline needs. All
loops that load ahead have one shape. A loop may end by its condition or by ``break``, so its products are written once,
and the program jumps back to them for the tiles that are left::

    WT_BEGIN     memory, stages or buffers, accumulators, loaders
    loop:
        WT_AT    tile = load           into the next stage
        WT_AT    product               multiply: if a stage is due: wait, multiply it; if draining: goto done
    WT_END       draining = true; goto multiply; done: accumulators to their destination

If statements between loads and products work on tiles, a double-buffered loop multiplies before them, and then waits.

=====================  ============================================  ========================================
pipeline               state (``kernels/module``)                    written by
=====================  ============================================  ========================================
stages                 ``Ring`` and a product (``product.cuh``)      :func:`_emit_ring`
double buffers         ``PipelineState``, ``DoubleBuffer``           :func:`_emit_double_buffers`
an unrolled loop       none: each iteration has tiles of its own     :func:`_emit_unrolled`
the reverse pass       ``ReverseLoop`` and two products              :func:`emit_reverse`
=====================  ============================================  ========================================

docs/templates.md shows the text of one loop with stages, whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from warp_tiles.codegen.emit_chains import emit_chain
from warp_tiles.codegen.macros import STATEMENT, SYNC, WAIT, Hook, Macros
from warp_tiles.codegen.module_code import (
    Accumulation,
    AccumulatorStore,
    Loads,
    LoopDecision,
    ReverseRing,
    Ring,
    TileGradient,
)
from warp_tiles.codegen.operations import Tile
from warp_tiles.gemm.hardware import LANES
from warp_tiles.gemm.pipeline import MmaPlan
from warp_tiles.gemm.problem import DTYPES, GemmProblem

_COMMIT = " wt::arch::commit_copies();"


def emit_loads(macros: Macros, forward: Loads, replayed: Loads) -> None:
    """Writes the asynchronous loads and the waits of the program, and those of its repetition in the reverse pass."""
    for loads, at, wait in ((forward, Hook.AT, Hook.WAIT), (replayed, Hook.REPLAY, Hook.REPLAY_WAIT)):
        for number, first in loads.asynchronous.items():
            macros.replace(at, number, f"wt_module::Load<{str(first).lower()}>() << {STATEMENT}")
        for number in loads.waits:
            macros.add(wait, number, WAIT)


def emit_loops(macros: Macros, decisions: Sequence[LoopDecision], ends: Collection[int] = ()) -> None:
    """Writes the loops of a module that keep accumulators in registers, and those that also load ahead."""
    for decision in decisions:
        if decision.ring is not None:
            _emit_ring(macros, decision, decision.ring)
        if decision.chain is not None:
            emit_chain(macros, decision.hook, decision.chain)
    without_stages = [decision for decision in decisions if decision.ring is None and decision.chain is None]
    arrays = {product.array: product for decision in without_stages for product in decision.accumulations}
    for product in arrays.values():
        name, count, ctype = _accumulators(product), product.accumulators.count, product.accumulators.ctype
        # declared without an initializer, because a goto may not jump over one
        macros.add(Hook.BEGIN, product.home, f"{ctype} {name}[{count}]; {_each(count, f'{name}[wt_i] = {ctype}(0);')}")
    for decision in without_stages:
        if not decision.loads_ahead:
            for product in decision.accumulations:
                _replace_product(macros, product, f"{_add(product)} {SYNC}")
        elif not decision.buffers and decision.arrival is None:
            _emit_unrolled(macros, decision)
        else:
            _emit_double_buffers(macros, decision)
    # new tiles that are written, and memory that contained buffers, are zeroed before accumulators are added to them
    zeroed = {
        (product.home, product.c.name)
        for decision in without_stages
        for product in decision.accumulations
        if product.destination is product.c
        and (product.addition is not None or product.c in [buffer.c for buffer in decision.buffers])
    }
    for home, c in sorted(zeroed):
        macros.add(Hook.END, home, f"wt_module::zero({c});")
    for product in arrays.values():
        name, plan = _accumulators(product), product.accumulators
        # a variable may be infinite, and a loop without iterations must not change C
        factor = product.factor
        unless_zero = f"if ({name}[wt_i] != {plan.ctype}(0)) " if isinstance(factor, str) else ""
        scale = f"{_each(plan.count, f'{unless_zero}{name}[wt_i] *= {plan.ctype}({factor});')} "
        operands = f"{name}, {_pointer(product.destination)}, {_recompute(product)}"
        finish = f"{scale if factor != 1 else ''}{plan.symbol}_finish({operands});"
        macros.add(Hook.END, product.home, f"{WAIT if product.home in ends else SYNC} {finish} {SYNC}")
        _emit_addition(macros, product.home, product)


def _each(count: int, statement: str) -> str:
    return f"for (int wt_i = 0; wt_i < {count}; ++wt_i) {statement}"


def _emit_double_buffers(macros: Macros, decision: LoopDecision) -> None:
    """Writes a double-buffered loop. Its end jumps to the products once more, for the tiles of the last iteration."""
    loop = decision.hook
    state, multiply, done, memory = (f"wt_{word}_{loop}" for word in ("state", "multiply", "done", "memory"))
    names = {buffer.tile.name: f"wt_buffer_{loop}_{buffer.tile.name}" for buffer in decision.buffers}
    macros.add(Hook.BEGIN, loop, f"wt_module::PipelineState {state}; {state}.start();")
    begin = " ".join([WAIT, *(f"{name}.load_next({tile});" for tile, name in names.items()), ""])
    ends = []
    if decision.extra_bytes:
        macros.add(Hook.BEGIN, loop, _reserved(memory, decision.extra_bytes))
    for buffer in decision.buffers:
        name, tile = names[buffer.tile.name], buffer.tile.name
        second = f"{_first_address(buffer.c, memory)} + {buffer.offset_bytes}"
        declaration = f"wt_module::DoubleBuffer<decltype({tile})> {name};"
        macros.add(Hook.BEGIN, loop, f"{declaration} {name}.start({tile}, {second});")
        ends.append(f"{name}.end({tile}, {second});")
    for load in decision.loads_ahead:
        macros.replace(Hook.AT, load.own_hook, f"{begin}wt_module::Load<false>() << {STATEMENT}")
        begin = ""  # only the first load of an iteration waits for the loads of the iteration before
    # the offset of a view is stored in each iteration, because the last iteration may skip the products
    offsets: dict[str, str] = {}
    adds = []
    for product in decision.accumulations:
        adds.append(_add(product, *(_operand(tile, names, offsets) for tile in (product.a, product.b))))
        _replace_product(macros, product, "")
    for name in offsets:
        macros.add(Hook.BEGIN, loop, f"unsigned {name};")
    swaps = " ".join(f"{name}.swap();" for name in names.values())
    multiplied, leave = f"if ({state}.pending) {{ {' '.join(adds)} }}", f"if (!{state}.more) goto {done};"
    if decision.arrival is None:
        stores = f" if ({state}.more) {{ {' '.join(offsets.values())} }}" if offsets else ""
        text = f"{multiply}:;{stores} {multiplied} {state}.pending = true; {swaps} {leave}"
    else:  # a jump to the next iteration leaves nothing to multiply
        arrived = f"{multiply}:; {multiplied} {state}.pending = false; {leave} {WAIT}"
        macros.add(Hook.WAIT, decision.arrival, arrived)
        text = f"{' '.join(offsets.values())} {state}.pending = true; {swaps}"
    _replace_product(macros, decision.accumulations[-1], text)
    macros.add(Hook.END, loop, f"{state}.more = false; {WAIT} goto {multiply}; {done}:;")
    macros.add(Hook.END, loop, " ".join(ends))
    if decision.extra_bytes:
        # the last products may still read it; without an addition to C here, no barrier follows
        barrier = f"{SYNC} " if any(product.home != loop for product in decision.accumulations) else ""
        macros.add(Hook.END, loop, f"{barrier}{_released(decision.extra_bytes)}")


def _emit_unrolled(macros: Macros, decision: LoopDecision) -> None:
    """Moves each product to the place of the next one, after the loads of the next one's tiles."""
    products = decision.accumulations
    texts = [_add(product) for product in products]
    for product, text in zip(products, ["", *texts]):
        _replace_product(macros, product, text)
    group = -1
    for load in decision.loads_ahead:
        number = load.own_hook
        own = sum(product.operation.own_hook < number for product in products)
        begin = f"{WAIT} " if own != group else ""
        group = own
        macros.replace(Hook.AT, number, f"{begin}wt_module::Load<false>() << {STATEMENT}")
    macros.add(Hook.END, decision.hook, f"{WAIT} {texts[-1]}")


def _replace_product(macros: Macros, product: Accumulation, text: str) -> None:
    macros.replace(Hook.AT, product.operation.own_hook, text)


def _pointer(tile: Tile) -> str:
    return f"{tile.name}.data.ptr"


def _accumulators(product: Accumulation) -> str:
    return f"wt_accumulators_{product.array}"


def _add(product: Accumulation, a: str = "", b: str = "") -> str:
    """Returns the call that adds a product to its accumulators. ``a`` and ``b`` replace the pointers of its tiles."""
    operands = f"{a or _pointer(product.a)}, {b or _pointer(product.b)}, {_recompute(product)}"
    return f"{product.accumulators.symbol}_add({_accumulators(product)}, {operands});"


def _recompute(product: Accumulation) -> str:
    return str(product.recomputes).lower()


def _operand(tile: Tile, names: Mapping[str, str], offsets: dict[str, str]) -> str:
    """Returns the address of an operand that was loaded in the iteration before, or before the loop.

    ``names`` has the C++ variables of the buffers, by the tiles that are loaded into them. ``offsets`` receives the
    variable of a view's offset, with the statement that sets it.
    """
    buffer = next((name for root, name in names.items() if root in tile.memory), None)
    if buffer is None:
        return _pointer(tile)
    if tile.name in names:
        return f"{buffer}.ready()"
    (root,) = tile.memory
    offset = f"{buffer}_{tile.name}"
    offsets[offset] = f"{offset} = {buffer}.offset({tile.name}, {root});"
    return f"{buffer}.ready({offset})"


# ---- stages


def staged_types(decision: LoopDecision) -> Iterator[str]:
    if (ring := decision.ring) is None:
        return
    for staged in ring.firsts:
        product = staged.accumulation
        a, b = (ring.buffer_of(tile).transposed for tile in (product.a, product.b))
        flags = {"in_loop": True, "a_transposed": a, "b_transposed": b}
        yield _product_type(staged_name(product), staged.problem, staged.plan, {}, flags)


def _product_type(
    name: str, problem: GemmProblem, plan: MmaPlan, sizes: Mapping[str, int], flags: Mapping[str, bool]
) -> str:
    """C++ of the type of a product of tiles in stage buffers.

    Sizes and flags are further constants of its problem (``kernels/module/staged_accumulators.cuh``).
    """
    template = {"wgmma": "WarpgroupProduct", "fma": "FmaProduct"}.get(plan.instruction, "WarpProduct")
    if plan.through_registers:
        template = "WarpgroupRegisterProduct"
    grid = {"m": problem.m, "n": problem.n, "k": problem.k, "warps_m": plan.warps_m, "warps_n": plan.warps_n}
    if plan.lanes_m:
        grid |= {"lanes_m": plan.lanes_m, "lanes_n": LANES // plan.lanes_m}
    majors = {"a_k_major": problem.a.arrangement == "row_major", "b_k_major": problem.b.arrangement == "col_major"}
    if template == "WarpgroupProduct":
        majors["swapped"] = plan.swapped
    integers = ", ".join(f"{key} = {value}" for key, value in {**grid, **sizes}.items())
    booleans = ", ".join(f"{key} = {str(value).lower()}" for key, value in {**majors, **flags}.items())
    return (
        f"struct {name}_problem {{\n"
        f"    using T = {DTYPES[problem.a.dtype].kernel_type};\n"
        f"    static constexpr int {integers};\n"
        f"    static constexpr bool {booleans};\n"
        f"}};\nusing {name} = wt_module::Product<wt_module::{template}<{name}_problem>>;"
    )


def _emit_ring(macros: Macros, decision: LoopDecision, ring: Ring) -> None:
    """Writes a loop that loads into stages.

    An iteration loads its tiles into one stage, and multiplies those of an earlier iteration before that, so that
    tensor cores work while the loads are issued. Products by mma.sync issue the copies themselves
    (:func:`_is_interleaved`). After the loop the program jumps to the products until no stage is left.
    """
    pipeline, loop = ring.plan.loop, decision.hook
    name, multiply, drain, load, memory = (
        f"wt_{word}_{loop}" for word in ("ring", "multiply", "drain", "load", "memory")
    )
    begin, products = partial(macros.add, Hook.BEGIN, loop), decision.accumulations
    if pipeline.extra_bytes:
        begin(_reserved(memory, pipeline.extra_bytes))
    reads_c = any(product.has_start for product in ring.products) and not ring.adds_starts
    if reads_c:  # before the barrier in begin(), because the stages may lie in C's memory
        _emit_starts(macros, loop, ring)
    kind = f"wt_module::Ring<{pipeline.stages}, {pipeline.in_flight}, {pipeline.stage_bytes}>"
    begin(_begun(kind, name, _first_address(ring.first, memory)))
    if not reads_c:  # zeros come after it: the other order gives loops of wgmma machine code that nobody has timed
        _emit_starts(macros, loop, ring)
    loaders = {tile: f"wt_loader_{loop}_{tile}" for tile in ring.buffers}
    interleaved = _is_interleaved(ring)
    copies = ", ".join(["", f"{name}.requested", *loaders.values()]) if interleaved else ""
    adds = " ".join(
        f"{staged_name(product)}::add({_accumulators(product)}, "
        f"{', '.join(f'{name}.from + {ring.buffer_of(tile).offset_bytes}' for tile in (product.a, product.b))}"
        f"{copies if product is products[0] else ''});"
        for product in products
    )
    groups = " + ".join(f"{staged_name(product)}::GROUPS" for product in products)
    wait, due = f"{name}.wait<({groups})>();", f"if ({name}.due())"
    after_loop = f"{name}.more = false; {drain}:;"
    multiplied = f"{adds} {name}.multiplied(); if (!{name}.more) goto {drain}; }} "
    if interleaved:  # a hot iteration has one condition after its products
        arrays = {tile: buffer.array.name for tile, buffer in ring.buffers.items() if buffer.array}
        loads = " ".join(f"{loaders[tile]}.load_requested({array});" for tile, array in arrays.items())
        before_loads = f"{name}.requested = {name}.is_full(); "
        after_loads = (
            f"if (!{name}.is_full()) goto {load}; {multiply}:; {adds} {name}.advance(); if (!{name}.requested) {{ "
            f"if (!{name}.more) goto {drain}; {load}:; {loads} {name}.loaded_alone(); }}"
        )
        after_loop = f"{name}.finish_loads(); if (false) {{ {drain}:; --{name}.pending; }}"
    elif pipeline.in_flight:  # products in flight keep tensor cores busy while the loads are issued
        before_loads = f"{due} {wait} "
        after_loads = f"{multiply}:; {due} {{ if (!{name}.more) {wait} {multiplied}{name}.loaded();"
    else:
        before_loads, after_loads = f"{multiply}:; {due} {{ {wait} {multiplied}", f"{name}.loaded();"
    last = max(buffer.load.own_hook for buffer in ring.buffers.values())
    for tile, buffer in ring.buffers.items():
        to = f"{name}.to + {buffer.offset_bytes}"
        template = f"wt_module::{'TransposingBufferLoader' if buffer.transposed else 'BufferLoader'}"
        target = f"wt_module::LoadBufferOnce<{template}> {{{to}}}"
        if buffer.array is not None:
            kind, loader = f"{template}<decltype({tile})>", loaders[tile]
            begin(_begun(kind, loader, buffer.array.name))
            target = f"wt_module::LoadBuffer<{kind}> {{{loader}, {to}}}"
            if interleaved:
                target = f"wt_module::RequestBuffer<{kind}> {{{loader}, {to}, {name}.requested}}"
        commit = _COMMIT if buffer.load.own_hook == last and not interleaved else ""
        macros.replace(Hook.AT, buffer.load.own_hook, f"{before_loads}{target} << {STATEMENT}{commit}")
        before_loads = ""
    for product in products:
        _replace_product(macros, product, "")
    _replace_product(macros, products[-1], after_loads)
    end = partial(macros.add, Hook.END, loop)
    end(f"{after_loop} if ({name}.pending) goto {multiply};")
    completions = " ".join(
        f"{staged_name(product)}::complete({_accumulators(product)});{_scale(product)}"
        for product in (staged.accumulation for staged in ring.firsts)
    )
    end(f"{completions} {SYNC}")
    if pipeline.extra_bytes:
        end(_released(pipeline.extra_bytes))
    if not isinstance(decision.accumulator_store, AccumulatorStore):
        _emit_results(macros, loop, ring)
    for fill in ring.fills:  # the loop overwrites C
        macros.replace(Hook.AT, fill.own_hook, "")


def _is_interleaved(ring: Ring) -> bool:
    """True if products issue the copies of an iteration between their instructions."""
    uses_mma = ring.products[0].plan.instruction not in ("wgmma", "fma")
    return uses_mma and all(buffer.array for buffer in ring.buffers.values())


def _emit_starts(macros: Macros, loop: int, ring: Ring) -> None:
    """Writes the accumulators before the loop: zeros, or the start value of C in the first array of this C."""
    started: set[str] = set()
    for staged in ring.firsts:
        product = staged.accumulation
        kind, accumulators, start = staged_name(product), _accumulators(product), ""
        if staged.has_start and not ring.adds_starts and product.c.name not in started:
            macros.add(Hook.BEGIN, loop, SYNC)
            start = f", {_pointer(product.c)}"
        started.add(product.c.name)
        begin = f"{kind}::Accumulators {accumulators}; {kind}::start({accumulators}{start});"
        macros.add(Hook.BEGIN, loop, f"{begin}{_scale(product)}" if start else begin)


def _scale(product: Accumulation) -> str:
    """Multiplies accumulators by their factor. It also divides a start value by alpha, which is 1 or -1 then."""
    if product.factor == 1:
        return ""
    kind = staged_name(product)
    factor = f"{kind}::Sum({product.factor})"
    if isinstance(product.factor, str):
        factor = f"wt_module::RuntimeFactor<{kind}::Sum> {{{factor}}}"
    return f" {kind}::scale({_accumulators(product)}, {factor});"


def _emit_results(macros: Macros, loop: int, ring: Ring) -> None:
    """Writes the accumulators to their destination after the loop, or adds them to what it holds."""
    written: set[str] = set()
    for staged in ring.firsts:
        product = staged.accumulation
        to = product.destination
        adds = str((staged.has_start and ring.adds_starts) or to is not product.c or to.name in written).lower()
        written.add(to.name)
        finish = f"{staged_name(product)}::finish<{adds}>({_accumulators(product)}, {_pointer(to)});"
        macros.add(Hook.END, loop, f"{finish} {SYNC}")
    for staged in ring.products:
        _emit_addition(macros, loop, staged.accumulation)


def _emit_addition(macros: Macros, loop: int, product: Accumulation) -> None:
    """Moves the addition of a new tile C behind the loop, or removes it if the accumulators are added in its place."""
    addition = product.addition
    if addition is None:
        return
    for statement in addition.statements:
        if statement.hook is not None:  # a reshape of C stays where it is
            macros.replace(Hook.AT, statement.hook, "")
    if product.destination is product.c:
        c, added = product.c.name, addition.added.name
        # without an iteration, the loop does not make the reshape
        reshape = "" if added == c else f"{added} = wp::tile_reshape<decltype({added})>({c}); "
        name = "add" if addition.sign == 1 else "sub"
        macros.add(Hook.END, loop, f"{reshape}wp::tile_{name}_inplace({addition.target.name}, {added});")


def staged_name(product: Accumulation) -> str:
    """The name of the C++ type of a product of tiles in stage buffers."""
    return f"wt_staged_{product.array}"


# Variables are declared without an initializer, because a goto may not jump over one.


def _begun(kind: str, name: str, argument: str) -> str:
    return f"{kind} {name}; {name}.begin({argument});"


def _reserved(memory: str, size: int) -> str:
    return f"void* {memory}; {memory} = wp::tile_shared_storage_t::alloc({size});"


def _released(size: int) -> str:
    return f"wp::tile_shared_storage_t::alloc(-{size});"


def _first_address(tile: Tile | None, memory: str) -> str:
    """C++ of the address of the stages, in the memory of a tile or in memory that was reserved."""
    return f"wt_module::address({_pointer(tile) if tile is not None else memory})"


# ---- the reverse pass


def reversed_types(decision: LoopDecision) -> Iterator[str]:
    if (ring := decision.reverse_ring) is not None:
        for gradient in ring.gradients:
            name, product = _gradient_name(ring, gradient), gradient.product
            flags = {"gradient_is_a": product.gradient_is_a}
            flags |= {"in_loop": False, "a_transposed": False, "b_transposed": False}
            yield _product_type(name, product.problem, product.plan, {"threads": product.problem.threads}, flags)


def emit_reverse(macros: Macros, decision: LoopDecision) -> None:
    """Writes the reverse pass of a loop, if it loads into stages.

    An iteration loads its tiles into one stage, and then computes the gradients of the iteration before. After the loop
    the program jumps to the products once more, for the last iteration.
    """
    ring, loop = decision.reverse_ring, decision.hook
    if ring is None:
        return
    name, multiply, done = f"wt_reverse_{loop}", f"wt_reverse_multiply_{loop}", f"wt_reverse_done_{loop}"
    forward, extra, memory = ring.forward, ring.plan.extra_bytes, f"wt_reverse_memory_{loop}"
    begin, end = (partial(macros.add, hook, loop) for hook in (Hook.REVERSE_BEGIN, Hook.REVERSE_END))
    if extra:
        begin(_reserved(memory, extra))
    dtype = DTYPES[forward.a.dtype].kernel_type
    kind = f"wt_module::ReverseLoop<{dtype}, {forward.m}, {forward.n}, {ring.stage_bytes}>"
    gradient_of_c = f"{ring.product.matrices[2].name}.grad.ptr"
    begin(_begun(kind, name, f"{_first_address(ring.first, memory)}, {gradient_of_c}, {ring.alpha}"))
    positions = {gradient.tile.name: f"wt_places_{loop}_{gradient.tile.name}" for gradient in ring.gradients}
    last = max(buffer.load.own_hook for buffer in ring.buffers.values())
    for gradient in ring.gradients:
        tile = gradient.tile.name
        number = ring.buffers[tile].load.own_hook
        loader, loaders = f"wt_reverse_loader_{loop}_{tile}", f"wt_module::BufferLoader<decltype({tile})>"
        begin(f"{_begun(loaders, loader, gradient.array.name)} wt_module::Places {positions[tile]};")
        target = f"{loader}, {_address(ring, f'{name}.to', tile)}, {positions[tile]}"
        commit = _COMMIT if number == last else ""
        macros.replace(Hook.REPLAY, number, f"wt_module::LoadPlaced<{loaders}> {{{target}}} << {STATEMENT}{commit}")
        macros.replace(Hook.ADJOINT, number, "")
        macros.replace(Hook.ZERO, number, "")
    for view in ring.views:  # Warp's adjoint reads and writes the tiles
        macros.replace(Hook.ADJOINT, view.own_hook, "")
    macros.replace(Hook.REPLAY, ring.product.own_hook, "")
    products = " ".join(_gradients(ring, name, positions))
    moved = " ".join(f"{position}.next();" for position in positions.values())
    turn = f"{multiply}:; if ({name}.pending) {{ {name}.wait(); {products} }} if (!{name}.more) goto {done};"
    macros.replace(Hook.ADJOINT, ring.product.own_hook, f"{turn} {name}.next(); {moved}")
    end(f"{name}.more = false; goto {multiply}; {done}:;")
    if extra:
        end(_released(extra))


def _gradients(ring: ReverseRing, name: str, positions: dict[str, str]) -> Iterator[str]:
    """Yields the statements that compute the gradients of an iteration and add them to the arrays' gradients."""
    kinds = {gradient.tile.name: _gradient_name(ring, gradient) for gradient in ring.gradients}
    for gradient, (tile, kind) in zip(ring.gradients, kinds.items()):
        factor = _address(ring, f"{name}.from", gradient.other.name)
        yield f"{kind}::Accumulators wt_accumulators_{tile}; {name}.multiply<{kind}>(wt_accumulators_{tile}, {factor});"
    for tile, kind in kinds.items():
        yield f"{name}.complete<{kind}>(wt_accumulators_{tile});"
    yield SYNC  # all threads have read the stage
    for tile, kind in kinds.items():
        address = _address(ring, f"{name}.from", tile)
        yield f"{name}.replace<{kind}, decltype({tile})>(wt_accumulators_{tile}, {address});"
    yield SYNC
    for gradient in ring.gradients:
        tile, array = gradient.tile.name, gradient.array
        arguments = f"{_address(ring, f'{name}.from', tile)}, {array.name}, {array.adjoint}, {positions[tile]}"
        yield f"wt_module::add_to_gradient<decltype({tile})>({arguments});"
    yield SYNC  # the next iteration loads into the stage


def _address(ring: ReverseRing, stage: str, tile: str) -> str:
    return f"{stage} + {ring.buffers[tile].offset_bytes}"


def _gradient_name(ring: ReverseRing, gradient: TileGradient) -> str:
    return f"wt_gradient_{ring.product.own_hook}_{gradient.tile.name}"
