"""Writes chains as C++: the bodies of macros, which call the device functions of ``chains.cuh``.

Warp's statements stay where they are. Elementwise ones become functions of their tiles, which are called with what a
lane has of them. The load of a tile becomes a function of its place, which is called for this iteration, if it is the
first one, and for the next. A block begins with the first load and ends with the last operation::

    WT_BEGIN         carried tiles and fixed operands to registers; stages
    loop:
        WT_AT        loads             the next iteration's, after those of this one have arrived
        WT_AT        operations        in registers
    WT_END           carried tiles to shared memory
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from warp_tiles.codegen.macros import STATEMENT, SYNC, WAIT, Hook, Macros, local_function
from warp_tiles.codegen.module_code import Chain
from warp_tiles.codegen.operations import COPY, TILE_ASSIGN, ZEROS, Operation, Tile
from warp_tiles.gemm.hardware import LANES
from warp_tiles.gemm.problem import DTYPES


def emit_chain(macros: Macros, hook: int, chain: Chain) -> None:
    """Writes a loop whose tiles stay in registers."""
    _Emitter(macros, hook, chain).emit()


class _Emitter:
    def __init__(self, macros: Macros, hook: int, chain: Chain) -> None:
        self._macros, self._hook, self._chain = macros, hook, chain

    def emit(self) -> None:
        chain = self._chain
        rows = f"{chain.rows}, {4 if chain.instruction == 'wgmma' else 1}"  # and the warps that compute together
        begin, end = (partial(self._macros.add, hook, self._hook) for hook in (Hook.BEGIN, Hook.END))
        shared = [tile for tile in chain.carried if tile.owner]
        held = [tile for tile in chain.carried if not tile.owner]
        memory = f"{chain.first.name}.data.ptr"
        for tile in chain.carried:
            begin(self._declared(tile))
        for tile in shared:
            begin(f"wt_module::read_fragment<{rows}>({self._name(tile)}, {tile.name});")
        for tile in held:  # after all threads have read tiles that may lie there
            begin(f"wt_module::read_column<{rows}>({self._name(tile)}, {tile.name}, {memory});")
        for tile in chain.fixed:
            name = self._name(tile)
            begin(f"unsigned {name}[{chain.rows // 16}][{tile.shape[1] // 16}][4];")
            begin(f"wt_module::read_operand<{rows}, {tile.shape[1]}>({name}, {tile.name});")
        begin(f"bool {self._first}; {self._first} = true;")
        for load in chain.loads:
            tile, name = load.tile, self._name(load.tile)
            address = f"wt_module::address({chain.first.name}.data.ptr), {load.offset_bytes}, {chain.stage_bytes}"
            begin(f"wt_module::ChainBuffer {name}; {name}.start({address});")
            begin(f"wt_module::BufferLoader<decltype({tile.name})> {name}_loader;")
        begin(SYNC)  # the stages lie in memory that other threads may still read
        texts = {load.load.own_hook: text for load, text in zip(chain.loads, self._loads())}
        computed: dict[str, Tile] = {}  # in registers of Warp's, since the last reduction
        for number, operation in enumerate(chain.operations):
            texts[operation.own_hook] = self._operation(operation)
            made = [tile for tile in operation.results if isinstance(tile, Tile)]
            changed = {tile.name: tile for tile in (*operation.changed_tiles, *made)}
            if operation.reduction:
                rounded, computed = computed, {}
            elif operation.product is not None or operation.name == ZEROS:
                continue
            else:
                computed |= {name: tile for name, tile in changed.items() if not tile.owner}
                rounded = {name: tile for name, tile in changed.items() if tile.owner}
            texts[operation.own_hook] += "".join(
                f" wt_module::keep_rounded({self._name(tile)});"
                for tile in rounded.values()
                if self._may_be_added(tile, number)
            )
        declared = " ".join(map(self._declared, chain.made))
        swaps = " ".join(f"{self._name(load.tile)}.swap();" for load in chain.loads)
        first, last = min(texts), max(texts)
        texts[first] = f"{{ {declared} {texts[first]}"
        texts[last] += f" {swaps} }}"
        for number, text in texts.items():
            self._macros.replace(Hook.AT, number, text)
        end(WAIT)  # other warps may still read a stage that lies in the memory of a carried tile
        for tile in held:
            end(f"wt_module::write_column<{rows}>({self._name(tile)}, {tile.name}, {memory});")
        for tile in shared:
            end(f"wt_module::write_fragment<{rows}>({self._name(tile)}, {tile.name});")
        end(SYNC)

    def _may_be_added(self, tile: Tile, number: int) -> bool:
        """True if an elementwise operation may add a tile after the operation of a number. Reductions do not fuse."""
        chain = self._chain
        later = chain.operations if tile in chain.carried else chain.operations[number + 1 :]
        adding = (node for node in later if node.elementwise is not None and node.elementwise.adds)
        operands = (value for node in adding for value in node.operands if isinstance(value, Tile))
        return any(chain.roots.get(value.name, value) == tile for value in operands)

    @property
    def _first(self) -> str:
        return f"wt_first_{self._hook}"

    def _name(self, tile: Tile) -> str:
        """What a lane has of a tile, or the stages of a loaded tile."""
        return f"wt_{self._hook}_{tile.name}"

    def _count(self, tile: Tile) -> int:
        """Elements that a lane has of a tile."""
        columns = tile.shape[1] if len(tile.shape) == 2 and tile.shape[1] > 1 else 0
        return self._chain.rows * columns // LANES if columns else self._chain.rows // 8

    def _declared(self, tile: Tile) -> str:
        return f"wt_module::Elements<decltype({tile.name})::Type, {self._count(tile)}> {self._name(tile)};"

    def _loads(self) -> Iterator[str]:
        """Yields the text of each load. The last one starts and awaits all."""
        chain = self._chain
        now, ahead = "", ""  # the loads of the first iteration, and those of the next
        for load in chain.loads:
            tile, name = load.tile.name, self._name(load.tile)
            parameters = ["unsigned wt_to", *(f"decltype({number}) {number}" for number, _ in load.offsets)]
            target = f"wt_module::LoadBuffer<wt_module::BufferLoader<decltype({tile})>> {{{name}_loader, wt_to}}"
            text = f"const auto {name}_load = [&]({', '.join(parameters)}) {{ {target} << {STATEMENT} }};"
            offsets = [number for number, _ in load.offsets]
            later = [f"{number} + {factor} * {chain.increment}" for number, factor in load.offsets]
            now += f"{name}_loader.begin({load.array.name}); "
            now += f"{name}_load({', '.join([f'{name}.current', *offsets])}); "
            ahead += f"{name}_load({', '.join([f'{name}.next()', *later])}); "
            if load is chain.loads[-1]:
                text += f" if ({self._first}) {{ {now}{self._first} = false; }}"
                text += f" {WAIT} if ({chain.more}) {{ {ahead}}}"
            yield text

    def _operation(self, operation: Operation) -> str:
        if operation.product is not None:
            return self._product(operation)
        if operation.name == ZEROS:
            return f"wt_module::clear({self._name(operation.tiles[0])}.at);"
        if builtin := operation.reduction:
            operand, result = operation.tiles
            template = f"{self._chain.rows}, {str(builtin == 'add').lower()}"
            called = "wt::arch::add_unfused" if builtin == "add" else f"wp::{builtin}"
            function = f"[](auto x, auto y) {{ return {called}(x, y); }}"
            return f"{self._name(result)} = wt_module::reduce_fragment<{template}>({function}, {self._name(operand)});"
        if operation.name in (COPY, TILE_ASSIGN) or operation.assigned_tile:
            source, target = operation.tiles if operation.name == COPY else reversed(operation.tiles)
            return f"{self._name(target)} = {self._value(source)};"
        tiles = list(dict.fromkeys(operation.tiles))
        views = [tile for tile in tiles if tile.name in self._chain.roots]
        made = "".join(f"auto wt_view_{tile.name} = {self._value(tile)}; " for tile in views)
        names = (f"wt_view_{tile.name}" if tile in views else self._name(tile) for tile in tiles)
        function = local_function("wt_operation", [tile.name for tile in tiles], STATEMENT)
        return f"{{ {function} {made}wt_operation({', '.join(names)}); }}"

    def _value(self, tile: Tile) -> str:
        """What a lane has of a tile or of a view of one."""
        root = self._chain.roots.get(tile.name, tile)
        if self._count(root) == self._count(tile):
            return self._name(root)
        return f"wt_module::spread_column<{self._count(tile)}>({self._name(root)})"

    def _product(self, operation: Operation) -> str:
        chain, problem = self._chain, self._chain.products[operation]
        a, b, c = operation.matrices
        loaded = chain.transposed.get(b.name, b)
        is_k_major = str(problem.b.arrangement == "col_major").lower()
        template = f"{DTYPES[problem.a.dtype].kernel_type}, {chain.rows}, {problem.n}, {problem.k}, {is_k_major}"
        clear = f"wt_module::clear({self._name(c)}.at); " if operation.results else ""
        operands = f"{self._name(c)}, {self._name(a)}, {self._name(loaded)}.current"
        function = "multiply_chain_by_warpgroups" if chain.instruction == "wgmma" else "multiply_chain"
        return f"{clear}wt_module::{function}<{template}>({operands});"
