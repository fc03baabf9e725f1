"""Writes chains as C++: the bodies of macros, which call the device functions of ``chains.cuh``.

Warp's statements stay where they are. Elementwise ones become functions of their tiles, which are called with what a
lane has of them. The load of a tile becomes a function of its place, which is called for this iteration, if it is the
first one, and for the next. A block begins with the first load and ends with the last operation::

    WT_BEGIN         carried tiles to registers, or zeros there; fixed operands there (mma.sync) or behind the
                     stages (wgmma); stages
    loop:
        WT_AT        loads             wait until those of this iteration have arrived
        WT_AT        first product     meanwhile, loads
        WT_AT        operations        in registers
    WT_END           carried tiles to shared memory
    WT_AT            assignments behind the loop, in registers: then they write these tiles

With two stages, the first product starts the loads of the next iteration. With one stage, it starts the other loads of
its own iteration, which the second product awaits. The tile that it multiplies is loaded again behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from warp_tiles.codegen.macros import STATEMENT, SYNC, WAIT, Hook, Macros, local_function
from warp_tiles.codegen.module_code import Chain
from warp_tiles.codegen.operations import COPY, TILE_ASSIGN, ZEROS, Operation, Tile
from warp_tiles.gemm.hardware import LANES
from warp_tiles.gemm.pipeline import WARPGROUP
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
        memory_address = f"wt_module::address({memory})"
        for tile in chain.carried:
            begin(self._declared(tile))
        for tile in shared:
            if fill := chain.fills.get(tile.name):
                begin(f"wt_module::clear({self._name(tile)}.at);")
                self._macros.replace(Hook.AT, fill.own_hook, "")
            else:
                begin(f"wt_module::read_fragment<{rows}>({self._name(tile)}, {tile.name});")
        for tile in held:  # after all threads have read tiles that may lie there
            begin(f"wt_module::read_column<{rows}>({self._name(tile)}, {tile.name}, {memory});")
        if chain.copies_fixed:
            begin(SYNC)  # copies lie in memory that other threads may still read
        for tile in chain.fixed:
            name, (lines, columns) = self._name(tile), tile.shape
            if chain.copies_fixed:
                dtype = next(iter(chain.products.values())).a.dtype
                begin(f"wt_module::SharedOperand<{DTYPES[dtype].kernel_type}, {lines}, {columns}> {name};")
                begin(f"{name}.start({memory_address}, {self._fixed_offset(tile)}, {tile.name});")
            else:
                begin(f"unsigned {name}[{chain.rows // 16}][{columns // 16}][4];")
                begin(f"wt_module::read_operand<{rows}, {columns}>({name}, {tile.name});")
        begin(f"bool {self._first}; {self._first} = true;")
        for load in chain.loads:
            tile, name = load.tile, self._name(load.tile)
            distance = chain.stage_bytes * (chain.layout.stages - 1)
            offset = str(load.offset_bytes)
            if chain.layout.copies > 1:
                offset += f" + wt_module::warpgroup() * {chain.layout.stages * chain.stage_bytes}"
            begin(f"wt_module::ChainBuffer {name}; {name}.start({memory_address}, {offset}, {distance});")
            begin(f"{self._loader(tile)} {name}_loader;")
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
        written = [
            *(f"wt_module::write_column<{rows}>({self._name(tile)}, {tile.name}, {memory});" for tile in held),
            *(f"wt_module::write_fragment<{rows}>({self._name(tile)}, {tile.name});" for tile in shared),
            SYNC,
        ]
        for operation in chain.behind:
            for tile in (tile for tile in operation.results if isinstance(tile, Tile)):
                begin(self._declared(tile))
            text = self._operation(operation)
            if operation is chain.behind[-1]:
                text = " ".join([text, *written])
            self._macros.replace(Hook.AT, operation.own_hook, text)
        if not chain.behind:
            end(" ".join(written))

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

    @property
    def _sync(self) -> str:
        """Waits for the threads that load and multiply the same stages."""
        return SYNC if self._chain.layout.copies == 1 else "wt::arch::warpgroup_barrier(wt_module::warpgroup());"

    @property
    def _wait(self) -> str:
        return WAIT if self._chain.layout.copies == 1 else f"wt::arch::wait_for_copies(); {self._sync}"

    def _loader(self, tile: Tile) -> str:
        """The type of the loader of a tile."""
        if self._chain.layout.copies == 1:
            return f"wt_module::BufferLoader<decltype({tile.name})>"
        return f"wt_module::ThreadsLoader<decltype({tile.name}), {WARPGROUP}>"

    @property
    def _started(self) -> str:
        """The name of a function that starts the loads of the first product."""
        return f"wt_loads_{self._hook}"

    @property
    def _again(self) -> str:
        """The name of a function that loads the tile of the first product again."""
        return f"wt_again_{self._hook}"

    def _fixed_offset(self, tile: Tile) -> int:
        """Where the copy of a fixed operand begins, behind the stages."""
        chain = self._chain
        before = chain.fixed[: chain.fixed.index(tile)]
        return chain.layout.copies * chain.layout.stages * chain.stage_bytes + sum(other.size_bytes for other in before)

    def _zeros_of(self, product: Operation) -> Operation | None:
        """The operation that sets the C of a product to zeros, if nothing uses C between."""
        earlier = self._chain.operations[: self._chain.operations.index(product)]
        last = next((node for node in reversed(earlier) if product.matrices[2] in node.tiles), None)
        return last if last and last.name == ZEROS else None

    def _loaded(self, product: Operation) -> Tile:
        """The loaded tile that a product multiplies, or whose transpose it multiplies."""
        right = product.matrices[1]
        return self._chain.transposed.get(right.name, right)

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
        multiplied = self._loaded(next(iter(chain.products)))
        begin, now, rest, ahead = "", "", "", ""  # rest: the loads that only later products need, with one stage
        for load in chain.loads:
            name = self._name(load.tile)
            parameters = ["unsigned wt_to", *(f"decltype({number}) {number}" for number, _ in load.offsets)]
            target = f"wt_module::LoadBuffer<{self._loader(load.tile)}> {{{name}_loader, wt_to}}"
            text = f"const auto {name}_load = [&]({', '.join(parameters)}) {{ {target} << {STATEMENT} }};"
            offsets = [number for number, _ in load.offsets]
            later = [f"{number} + {factor} * {chain.increment}" for number, factor in load.offsets]
            begin += f"{name}_loader.begin({load.array.name}); "
            here = f"{name}_load({', '.join([f'{name}.current', *offsets])}); "
            if chain.layout.stages == 1 and load.tile != multiplied:
                rest += here
            else:
                now += here
                ahead += f"{name}_load({', '.join([f'{name}.next()', *later])}); "
            if load is chain.loads[-1]:
                text += f" if ({self._first}) {{ {begin}{now}{self._first} = false; }} {self._wait}"
                ahead = f"if ({chain.more}) {{ {ahead}}}"
                is_one = chain.layout.stages == 1
                text += f" const auto {self._started} = [&] {{ {rest if is_one else ahead} }};"
                if is_one:
                    text += f" const auto {self._again} = [&] {{ {ahead} }};"
            yield text

    def _operation(self, operation: Operation) -> str:
        if operation.product is not None:
            return self._product(operation)
        if operation.name == ZEROS:
            is_overwritten = operation in map(self._zeros_of, self._chain.products)
            return "" if is_overwritten else f"wt_module::clear({self._name(operation.tiles[0])}.at);"
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
        a, _, c = operation.matrices
        is_k_major, adds = problem.b.arrangement == "col_major", not (operation.results or self._zeros_of(operation))
        flags = ", ".join(str(flag).lower() for flag in (is_k_major, adds))
        template = f"{DTYPES[problem.a.dtype].kernel_type}, {chain.rows}, {problem.n}, {problem.k}, {flags}"
        number = list(chain.products).index(operation)
        started, before, after = f"{self._started}()" if number == 0 else "", "", ""
        if chain.layout.stages == 1 and number == 0:
            started += "; wt::arch::commit_copies()"
            after = f" {self._sync} {self._again}(); wt::arch::commit_copies();"
        elif chain.layout.stages == 1 and number == 1:
            before = f"wt::arch::wait_for_copy_groups<1>(); {self._sync} "
        operands = f"{self._name(c)}, {self._name(a)}, {self._name(self._loaded(operation))}.current"
        function = "multiply_chain_by_warpgroups" if chain.instruction == "wgmma" else "multiply_chain"
        return f"{before}wt_module::{function}<{template}>({operands}, [&] {{ {started}; }});{after}"
