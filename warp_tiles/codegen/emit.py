"""C++ at the hooks of a generated source: what was decided about loops, loads and adjoints, as macros.

``kernels/module`` has the device functions that the macros call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.loads import Loads
from warp_tiles.codegen.loops import Accumulation, LoopDecision, Pipeline, factors
from warp_tiles.codegen.trace import Branch, FunctionTrace, Node, Operation, Tile

PASSED_ON = "__VA_ARGS__"  # what a macro that changes nothing stands for
_SYNC = "WP_TILE_SYNC();"
_LOADED = "wt_module::loaded();"


class Macros:
    """The macros of one module, by name; a name that nothing decided about leaves the source as Warp wrote it."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._replaced: dict[str, str] = {}

    def add(self, hook: Hook, number: int, text: str) -> None:
        """Add a statement at a place."""
        self._texts.setdefault(hook.name_of(number), []).append(text)

    def replace(self, hook: Hook, number: int, text: str) -> None:
        """Put other code in place of a statement."""
        self._replaced[hook.name_of(number)] = text

    def definitions(self, functions: Iterable[FunctionTrace]) -> list[str]:
        """The ``#define`` of every hook of some functions."""
        lines = []
        for function in functions:
            for hook, number in _hooks(function.nodes, function.end_wait):
                name = hook.name_of(number)
                if hook.takes_statement:
                    lines.append(f"#define {name}(...) {self._replaced.get(name, PASSED_ON)}")
                else:
                    lines.append(f"#define {name} {' '.join(self._texts.get(name, ()))}".rstrip())
        return lines


def _hooks(nodes: Iterable[Node], end: int | None) -> Iterable[tuple[Hook, int]]:
    for node in nodes:
        if node.wait is not None:
            yield from ((Hook.WAIT, node.wait), (Hook.REPLAY_WAIT, node.wait))
        if isinstance(node, Operation):
            if node.hook is not None:
                yield from ((Hook.AT, node.hook), (Hook.REPLAY, node.hook))
            continue
        if isinstance(node, Branch):
            yield from _hooks(node.nodes, node.end_wait)
            continue
        yield Hook.BEGIN, node.hook
        yield from _hooks(node.nodes, node.end_wait)
        yield Hook.END, node.hook
    if end is not None:
        yield from ((Hook.WAIT, end), (Hook.REPLAY_WAIT, end))


def emit_loads(macros: Macros, forward: Loads, replayed: Loads) -> None:
    """Write asynchronous loads and waits, of the program and of its repetition in the reverse pass."""
    for loads, at, wait in ((forward, Hook.AT, Hook.WAIT), (replayed, Hook.REPLAY, Hook.REPLAY_WAIT)):
        for number, first in loads.asynchronous.items():
            macros.replace(at, number, f"wt_module::Load<{str(first).lower()}>() << {PASSED_ON}")
        for number in loads.waits:
            macros.add(wait, number, _LOADED)


def emit_unrepeated(macros: Macros, function: FunctionTrace, sites: Collection[int]) -> None:
    """Leave forward products out of the reverse pass; their tiles may be read next."""
    for operation in function.operations():
        if operation.product is not None and operation.product.site in sites and operation.hook is not None:
            macros.replace(Hook.REPLAY, operation.hook, _SYNC)


def emit_loops(macros: Macros, decisions: Iterable[LoopDecision]) -> None:
    """Write the loops whose sums stay in registers, and those that load ahead."""
    decisions = tuple(decisions)
    arrays = {one.array: one for decision in decisions for one in decision.accumulations}
    for one in arrays.values():
        _emit_sums(macros, one)
    for decision in decisions:
        if decision.pipeline is None:
            for one in decision.accumulations:
                a, b, _ = factors(one.operation)
                _replace_product(macros, one, f"{_add(one, _pointer(a), _pointer(b))} {_SYNC}")
        elif decision.loop.kind == "unrolled":
            _emit_unrolled(macros, decision.loop.hook, decision.pipeline)
        else:
            _emit_pipeline(macros, decision.loop.hook, decision.pipeline)
    # what was lent is zeros again before the first sums are added to it
    lent = {
        (one.home.hook, buffer.lender.name)
        for decision in decisions
        if decision.pipeline is not None
        for buffer in decision.pipeline.buffers
        for one in decision.accumulations
        if one.c.name == buffer.lender.name
    }
    for home, lender in sorted(lent):
        macros.add(Hook.END, home, f"wt_module::zero({lender});")
    for one in arrays.values():
        finish = f"{one.sums.symbol}_finish({_sums(one)}, {_pointer(one.c)});"
        macros.add(Hook.END, one.home.hook, f"{_SYNC} {finish} {_SYNC}")


def _emit_sums(macros: Macros, one: Accumulation) -> None:
    name, count, ctype = _sums(one), one.sums.count, one.sums.ctype
    # declared without a value, because a goto may not jump over one
    zeroed = f"for (int wt_i = 0; wt_i < {count}; ++wt_i) {name}[wt_i] = {ctype}(0);"
    macros.add(Hook.BEGIN, one.home.hook, f"{ctype} {name}[{count}]; {zeroed}")


def _emit_pipeline(macros: Macros, loop: int, pipeline: Pipeline) -> None:
    """One turn more than there are tiles: the end of the loop jumps to the products once, for the last ones."""
    steps, multiply, done = f"wt_steps_{loop}", f"wt_multiply_{loop}", f"wt_done_{loop}"
    names = {buffer.tile.name: f"wt_buffer_{loop}_{buffer.tile.name}" for buffer in pipeline.buffers}
    macros.add(Hook.BEGIN, loop, f"wt_module::Steps {steps}; {steps}.start();")
    begin = " ".join([_LOADED, *(f"{name}.load_next({tile});" for tile, name in names.items()), ""])
    ends = []
    for buffer in pipeline.buffers:
        name, tile = names[buffer.tile.name], buffer.tile.name
        lent = f"wt_module::address({_pointer(buffer.lender)}) + {buffer.offset_bytes}"
        macros.add(Hook.BEGIN, loop, f"wt_module::DoubleBuffer<decltype({tile})> {name}; {name}.start({tile}, {lent});")
        ends.append(f"{name}.end({tile}, {lent});")
        macros.replace(Hook.AT, _hook(buffer.load), f"{begin}wt_module::Load<false>() << {PASSED_ON}")
        begin = ""  # the first load waits for those of the turn before
    *earlier, last = pipeline.products
    for one in earlier:
        _replace_product(macros, one, "")
    # taken where the view is made: an iteration that skips the products may be the last one
    offsets: dict[str, str] = {}
    adds = []
    for one in pipeline.products:
        a, b = (_operand(tile, names, offsets) for tile in factors(one.operation)[:2])
        adds.append(_add(one, a, b))
    for name in offsets:
        macros.add(Hook.BEGIN, loop, f"unsigned {name};")
    kept = f" if ({steps}.more) {{ {' '.join(offsets.values())} }}" if offsets else ""
    swaps = " ".join(f"{name}.swap();" for name in names.values())
    text = f"{multiply}:;{kept} if ({steps}.any) {{ {' '.join(adds)} }} {steps}.any = true; {swaps}"
    _replace_product(macros, last, f"{text} if (!{steps}.more) goto {done};")
    macros.add(Hook.END, loop, f"{steps}.more = false; {_LOADED} goto {multiply}; {done}:;")
    macros.add(Hook.END, loop, " ".join(ends))


def _emit_unrolled(macros: Macros, loop: int, pipeline: Pipeline) -> None:
    """Each product stands where the next one stood, behind the loads of the next one's tiles."""
    texts = [_add(one, *(_pointer(tile) for tile in factors(one.operation)[:2])) for one in pipeline.products]
    for one, text in zip(pipeline.products, ["", *texts]):
        _replace_product(macros, one, text)
    group = -1
    for load in pipeline.loads:
        assert load.hook is not None
        own = sum(_hook(one.operation) < load.hook for one in pipeline.products)
        begin = f"{_LOADED} " if own != group else ""
        group = own
        macros.replace(Hook.AT, load.hook, f"{begin}wt_module::Load<false>() << {PASSED_ON}")
    macros.add(Hook.END, loop, f"{_LOADED} {texts[-1]}")


def _hook(operation: Operation) -> int:
    assert operation.hook is not None
    return operation.hook


def _replace_product(macros: Macros, one: Accumulation, text: str) -> None:
    macros.replace(Hook.AT, _hook(one.operation), text)


def _sums(one: Accumulation) -> str:
    return f"wt_sums_{one.array}"


def _add(one: Accumulation, a: str, b: str) -> str:
    return f"{one.sums.symbol}_add({_sums(one)}, {a}, {b});"


def _pointer(tile: Tile) -> str:
    return f"{tile.name}.data.ptr"


def _operand(tile: Tile, names: Mapping[str, str], offsets: dict[str, str]) -> str:
    """Where an operand lies that was loaded in the iteration before, or before the loop.

    Args:
        tile: The operand.
        names: Buffers by the tiles that are loaded into them.
        offsets: Gains the variable of a view's offset, with the statement that sets it.
    """
    loaded = next((name for root, name in names.items() if root in tile.memory), None)
    if loaded is None:
        return _pointer(tile)
    if tile.name in names:
        return f"{loaded}.ready()"
    (root,) = tile.memory
    offset = f"{loaded}_{tile.name}"
    offsets[offset] = f"{offset} = {loaded}.offset({tile.name}, {root});"
    return f"{loaded}.ready({offset})"
