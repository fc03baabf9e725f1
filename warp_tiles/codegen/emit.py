"""Writes decisions about loops, loads and adjoints as C++: the bodies of the macros at the hooks.

The macros call the device functions of ``kernels/module``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from warp_tiles.codegen.emit_stages import emit_ring
from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.loads import Loads
from warp_tiles.codegen.loops import LoopDecision
from warp_tiles.codegen.macros import STATEMENT, Macros, hook_of, pointer
from warp_tiles.codegen.pipelines import Pipeline
from warp_tiles.codegen.sums import Accumulation
from warp_tiles.codegen.trace import FunctionTrace, ModuleTrace, Tile

_SYNC = "WP_TILE_SYNC();"
_WAIT = "wt_module::wait_for_loads();"


def emit_loads(macros: Macros, forward: Loads, replayed: Loads) -> None:
    """Writes the asynchronous loads and the waits of the program, and those of its repetition in the reverse pass."""
    for loads, at, wait in ((forward, Hook.AT, Hook.WAIT), (replayed, Hook.REPLAY, Hook.REPLAY_WAIT)):
        for number, first in loads.asynchronous.items():
            macros.replace(at, number, f"wt_module::Load<{str(first).lower()}>() << {STATEMENT}")
        for number in loads.waits:
            macros.add(wait, number, _WAIT)


def skip_replays(macros: Macros, function: FunctionTrace, sites: Collection[int]) -> None:
    """Replaces forward products in the reverse pass by a barrier, because the next statement may read their tiles."""
    for operation in function.operations():
        if operation.product is not None and operation.product.site in sites and operation.hook is not None:
            macros.replace(Hook.REPLAY, operation.hook, _SYNC)


def emit_loops(macros: Macros, module: ModuleTrace, decisions: Iterable[LoopDecision]) -> None:
    """Writes the loops of a module that keep sums in registers, and those that also load ahead."""
    decisions = tuple(decisions)
    for decision in decisions:
        if decision.instruction:
            emit_ring(macros, module.functions[decision.function], decision)
    decisions = tuple(decision for decision in decisions if not decision.instruction)
    arrays = {product.array: product for decision in decisions for product in decision.accumulations}
    for product in arrays.values():
        _emit_sums(macros, product)
    for decision in decisions:
        if decision.pipeline is None:
            for product in decision.accumulations:
                _replace_product(macros, product, f"{_add(product)} {_SYNC}")
        elif decision.loop.kind == "unrolled":
            _emit_unrolled(macros, decision.loop.hook, decision.pipeline)
        else:
            _emit_pipeline(macros, decision.loop.hook, decision.pipeline)
    # new tiles, and memory that contained buffers, are set to zeros before sums are added to them
    zeroed = {
        (product.home.hook, buffer.c.name)
        for decision in decisions
        if decision.pipeline is not None
        for buffer in decision.pipeline.buffers
        for product in decision.accumulations
        if product.c.name == buffer.c.name
    }
    zeroed |= {(product.home.hook, product.c.name) for product in arrays.values() if product.addition is not None}
    for home, c in sorted(zeroed):
        macros.add(Hook.END, home, f"wt_module::zero({c});")
    for product in arrays.values():
        finish = f"{product.sums.symbol}_finish({_sums(product)}, {pointer(product.c)});"
        macros.add(Hook.END, product.home.hook, f"{_SYNC} {finish} {_SYNC}")
        if product.addition is not None:
            macros.replace(Hook.AT, hook_of(product.addition), "")
            target = product.addition.tiles[0].name
            macros.add(Hook.END, product.home.hook, f"wp::tile_add_inplace({target}, {product.c.name});")


def _emit_sums(macros: Macros, product: Accumulation) -> None:
    name, count, ctype = _sums(product), product.sums.count, product.sums.ctype
    # declared without an initializer, because a goto may not jump over one
    zeroed = f"for (int wt_i = 0; wt_i < {count}; ++wt_i) {name}[wt_i] = {ctype}(0);"
    macros.add(Hook.BEGIN, product.home.hook, f"{ctype} {name}[{count}]; {zeroed}")


def _emit_pipeline(macros: Macros, loop: int, pipeline: Pipeline) -> None:
    """Writes a double-buffered loop. Its end jumps to the products once more, for the tiles of the last iteration."""
    state, multiply, done = f"wt_state_{loop}", f"wt_multiply_{loop}", f"wt_done_{loop}"
    names = {buffer.tile.name: f"wt_buffer_{loop}_{buffer.tile.name}" for buffer in pipeline.buffers}
    macros.add(Hook.BEGIN, loop, f"wt_module::PipelineState {state}; {state}.start();")
    begin = " ".join([_WAIT, *(f"{name}.load_next({tile});" for tile, name in names.items()), ""])
    ends = []
    for buffer in pipeline.buffers:
        name, tile = names[buffer.tile.name], buffer.tile.name
        second = f"wt_module::address({pointer(buffer.c)}) + {buffer.offset_bytes}"
        declaration = f"wt_module::DoubleBuffer<decltype({tile})> {name};"
        macros.add(Hook.BEGIN, loop, f"{declaration} {name}.start({tile}, {second});")
        ends.append(f"{name}.end({tile}, {second});")
        macros.replace(Hook.AT, hook_of(buffer.load), f"{begin}wt_module::Load<false>() << {STATEMENT}")
        begin = ""  # only the first load of an iteration waits for the loads of the iteration before
    *earlier, last = pipeline.products
    for product in earlier:
        _replace_product(macros, product, "")
    # the offset of a view is stored in each iteration, because the last iteration may skip the products
    offsets: dict[str, str] = {}
    adds = []
    for product in pipeline.products:
        a, b = (_operand(tile, names, offsets) for tile in (product.a, product.b))
        adds.append(_add(product, a, b))
    for name in offsets:
        macros.add(Hook.BEGIN, loop, f"unsigned {name};")
    stores = f" if ({state}.more) {{ {' '.join(offsets.values())} }}" if offsets else ""
    swaps = " ".join(f"{name}.swap();" for name in names.values())
    text = f"{multiply}:;{stores} if ({state}.pending) {{ {' '.join(adds)} }} {state}.pending = true; {swaps}"
    _replace_product(macros, last, f"{text} if (!{state}.more) goto {done};")
    macros.add(Hook.END, loop, f"{state}.more = false; {_WAIT} goto {multiply}; {done}:;")
    macros.add(Hook.END, loop, " ".join(ends))


def _emit_unrolled(macros: Macros, loop: int, pipeline: Pipeline) -> None:
    """Moves each product to the place of the next one, after the loads of the next one's tiles."""
    texts = [_add(product) for product in pipeline.products]
    for product, text in zip(pipeline.products, ["", *texts]):
        _replace_product(macros, product, text)
    group = -1
    for load in pipeline.loads:
        number = hook_of(load)
        own = sum(hook_of(product.operation) < number for product in pipeline.products)
        begin = f"{_WAIT} " if own != group else ""
        group = own
        macros.replace(Hook.AT, number, f"{begin}wt_module::Load<false>() << {STATEMENT}")
    macros.add(Hook.END, loop, f"{_WAIT} {texts[-1]}")


def _replace_product(macros: Macros, product: Accumulation, text: str) -> None:
    macros.replace(Hook.AT, hook_of(product.operation), text)


def _sums(product: Accumulation) -> str:
    return f"wt_sums_{product.array}"


def _add(product: Accumulation, a: str = "", b: str = "") -> str:
    """Returns the call that adds a product to its sums. ``a`` and ``b`` replace the pointers of its tiles."""
    operands = f"{a or pointer(product.a)}, {b or pointer(product.b)}"
    return f"{product.sums.symbol}_add({_sums(product)}, {operands});"


def _operand(tile: Tile, names: Mapping[str, str], offsets: dict[str, str]) -> str:
    """Returns the address of an operand that was loaded in the iteration before, or before the loop.

    Args:
        tile: The operand.
        names: The C++ variables of the buffers, by the tiles that are loaded into them.
        offsets: Receives the variable of a view's offset, with the statement that sets it.
    """
    buffer = next((name for root, name in names.items() if root in tile.memory), None)
    if buffer is None:
        return pointer(tile)
    if tile.name in names:
        return f"{buffer}.ready()"
    (root,) = tile.memory
    offset = f"{buffer}_{tile.name}"
    offsets[offset] = f"{offset} = {buffer}.offset({tile.name}, {root});"
    return f"{buffer}.ready({offset})"
