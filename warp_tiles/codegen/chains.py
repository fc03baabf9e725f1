"""Loops that multiply what they compute from a product, such as attention: a chain, whose tiles stay in registers.

The C of a product goes through elementwise operations and reductions of rows to the A of the next one. Warp keeps each
of these tiles in shared memory, or copies it there. If each warp has whole rows of all of them, a lane can hold its
elements over the loop's body, in the places that the instruction gives them (``kernels/module/chains.cuh``). Tiles that
live over the iterations, such as a sum, stay in registers over the loop, and for assignments behind it. The operands
of an iteration are loaded during the first product of the one before, into one or two stages, which each warpgroup may
have for itself. The stages, and behind them copies of operands that the loop does not load, lie in the memory of these
tiles.

All functions are pure, on a :class:`warp_tiles.codegen.trace.ModuleTrace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from warp_tiles.codegen.module_code import Chain, ChainLoad, StageLayout
from warp_tiles.codegen.operations import (
    COPY,
    JUMPS,
    LOAD,
    RESHAPES,
    TILE_ASSIGN,
    TRANSPOSE,
    UNREAD_ASSIGN,
    ZEROS,
    Array,
    Effect,
    Operation,
    Scalar,
    Tile,
)
from warp_tiles.codegen.pipelines import LoopTarget, fill_before, runs_of, stage_buffers
from warp_tiles.codegen.stores import has_whole_parts
from warp_tiles.codegen.trace import Context, Loop, changed_names, numbers_of, operations, own_operations, path_to
from warp_tiles.gemm.hardware import ASYNC_COPIES_ARCH, LANES, has_wgmma, multiprocessor, resident_blocks
from warp_tiles.gemm.pipeline import STAGE_ALIGNMENT, WARPGROUP, LoopInstruction
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.rejected import accepted, given, refuse, rejectable

_HALVES = ("float16", "bfloat16")
_ROWS = 16  # of an instruction
# that matrices take in a thread; others need the rest. wgmma reads left operands from outside in shared memory
_MOST_REGISTERS: dict[LoopInstruction, int] = {"wgmma": 192, "mma_m16n8k16": 176}
_OTHER_REGISTERS: dict[LoopInstruction, int] = {"wgmma": 56, "mma_m16n8k16": 96}  # of a thread, by estimate
_BROADCAST = "tile_broadcast"


def is_chain(loop: Loop, products: Sequence[Operation]) -> bool:
    """True if some products of a loop multiply tiles that elementwise operations in it compute, and others do not."""
    computed = {
        tile.name
        for node in own_operations(loop)
        if node.elementwise
        for tile in node.results
        if isinstance(tile, Tile)
    }
    multiplied = [product.matrices[0].name in computed for product in products]
    return any(multiplied) and not all(multiplied)


@rejectable
def plan_chain(context: Context, loop: Loop, products: Sequence[Operation], target: LoopTarget) -> Chain:
    """Returns how a loop keeps its tiles in registers, or the reason why it does not."""
    accepted(target.no_stages)
    refuse(not target.ahead, "async_copies_off")
    accepted(target.forbidden)
    refuse(loop.kind != "range" or not loop.iterator, f"{'unrolled' if loop.kind == 'unrolled' else 'while'}_loop")
    problems = [target.problems.get(product.site) for product in products]
    refuse(None in problems, "no_function")
    walk = _Walk(context, loop, {product: problem for product, problem in zip(products, problems) if problem})
    for node in loop.nodes:
        refuse(not isinstance(node, Operation), "chain_with_branches")  # a `break` may protect the loads ahead
        assert isinstance(node, Operation)
        accepted(walk.visit(node), at=node.line)
    return walk.chain(target)


def stage_layouts(
    stage_bytes: int, fixed_bytes: int, blocks_of: Callable[[int], int], warpgroups: int, *, loads_again: bool
) -> Iterator[StageLayout]:
    """The stages that a chain may have.

    Args:
        fixed_bytes: Memory of left operands behind them.
        blocks_of: Returns the resident blocks for so many bytes of stages and left operands.
        warpgroups: Those that multiply by ``wgmma``; 0 if ``mma.sync`` multiplies, always from two stages.
        loads_again: True if the first product's tile may be loaded again while others are multiplied.
    """
    for stages in (1, 2) if warpgroups and loads_again else (2,):
        for copies in {1, max(warpgroups, 1)}:
            size_bytes = copies * stages * stage_bytes + fixed_bytes + STAGE_ALIGNMENT  # they may begin later
            yield StageLayout(stages, copies, size_bytes, blocks_of(size_bytes))


def best_layout(layouts: Iterable[StageLayout]) -> StageLayout:
    """The layout with most resident blocks, then with two stages, then with stages for each warpgroup.

    On an H200, a second block made attention 1.5 times as fast, and one stage took 1.1 times as long as two
    (docs/experiments.md). Warpgroups with stages of their own do not wait for each other.
    """
    return max(layouts, key=lambda layout: (layout.blocks, layout.stages, layout.copies))


@dataclass
class _Walk:
    """Follows the body of a loop.

    Attributes:
        products: The products with their problems.
        loads: The loads by tile; views: their transposes.
        made: The tiles of the chain that the body makes; carried: those that live over the iterations.
        roots: The tile of the chain of which a tile is a view.
    """

    context: Context
    loop: Loop
    products: Mapping[Operation, GemmProblem]
    loads: dict[str, ChainLoad] = field(default_factory=dict)
    views: dict[str, Tile] = field(default_factory=dict)
    made: dict[str, Tile] = field(default_factory=dict)
    carried: dict[str, Tile] = field(default_factory=dict)
    roots: dict[str, Tile] = field(default_factory=dict)
    fixed: dict[str, Tile] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows of all matrices."""
        return next(iter(self.products.values())).m

    @rejectable
    def visit(self, operation: Operation) -> None:
        """Adds an operation, or refuses the chain."""
        refuse(operation.name in JUMPS, "chain_with_branches")
        if operation.name == UNREAD_ASSIGN or (operation.effect is Effect.NONE and not operation.tiles):
            return
        if operation.name == LOAD:
            refuse(any(earlier.product is not None for earlier in self.operations), "load_after_product")
            self._load(operation)
            return
        refuse(operation.effect is Effect.WRITES, "writes_array", operation.name)
        refuse(operation.effect is Effect.UNKNOWN or not operation.tiles, "unknown_effects", operation.name)
        if operation.effect is Effect.ALIAS:
            self._view(operation)
            return
        refuse(operation.hook is None or bool(operation.callee), "not_in_chain", operation.name)
        if operation.product is not None:
            self._product(operation)
        elif operation.name == ZEROS:
            self._make(operation)
        elif operation.reduction:
            (operand,) = (value for value in operation.operands if isinstance(value, Tile))
            axis = operation.operands[-1]
            refuse(not isinstance(axis, Scalar) or axis.constant != 1, "not_in_chain", operation.name)
            reduced = self._operand(operand, views=False)
            refuse(not has_whole_parts(reduced), "chain_reduction", operation.name, reduced.shape)
            self._make(operation)
        elif operation.name == COPY:
            self._operand(operation.tiles[0])
            self._make(operation)
        elif operation.name == TILE_ASSIGN or operation.assigned_tile:
            target, *others = operation.operands
            refuse(len(others) != 1 or not isinstance(others[0], Tile), "not_in_chain", operation.name)
            source = others[0]
            assert isinstance(target, Tile)
            assert isinstance(source, Tile)
            refuse((target.shape, target.dtype) != (source.shape, source.dtype), "not_in_chain", operation.name)
            self._operand(source)
            self._operand(target, views=False)
        else:
            refuse(operation.elementwise is None, "not_in_chain", operation.name)
            for tile in (value for value in operation.operands if isinstance(value, Tile)):
                self._operand(tile, views=tile not in operation.changed_tiles)
            self._make(operation)
        self.operations.append(operation)

    def _load(self, operation: Operation) -> None:
        (tile,) = operation.tiles
        refuse(operation.hook is None or not tile.owner, "loaded_to_registers")
        is_stage = tile.dtype in _HALVES and len(tile.shape) == 2 and all(size % _ROWS == 0 for size in tile.shape)
        refuse(not is_stage, "chain_tile", tile.shape, tile.dtype)
        arrays = [value for value in operation.operands if isinstance(value, Array)]
        refuse(len(arrays) != 1 or not self._is_constant(arrays[0]), "arrays_change")
        self.loads[tile.name] = ChainLoad(operation, arrays[0], tuple(dict(self._offsets(operation)).items()))

    def _offsets(self, load: Operation) -> Iterator[tuple[str, int]]:
        """Yields the numbers in a load's place that the loop changes, with what an increment of its variable adds."""
        changed = changed_names(self.loop)
        for number in numbers_of(self.context.function, load):
            offset = given(number.offset, "unknown_range", number.name)
            refuse(bool((offset.variables - {self.loop.variable}) & changed), "unknown_range", number.name)
            if factor := dict(offset.terms).get(self.loop.variable, 0):
                yield number.name, factor

    def _is_constant(self, array: Array) -> bool:
        """True if each iteration has the same array: one from outside, or a view that it makes of one."""
        changed = changed_names(self.loop)
        if array.name not in changed:
            return True
        makers = [maker for maker in operations(self.loop.nodes) if array in maker.results]
        operands = makers[0].operands if len(makers) == 1 and makers[0].name == "view" else ()
        return bool(operands) and all(
            self._is_constant(value)
            if isinstance(value, Array)
            else isinstance(value, Scalar) and value.name not in changed
            for value in operands
        )

    def _view(self, operation: Operation) -> None:
        operand, *_ = operation.tiles
        result = next(value for value in operation.results if isinstance(value, Tile))
        if operand.name in self.loads and operation.name == TRANSPOSE:
            self.views[result.name] = operand
            return
        root = self._operand(operand)
        refuse(not self._is_spread_column(operation, operand, self.roots), "not_in_chain", operation.name)
        self.roots[result.name] = root

    def _is_spread_column(self, operation: Operation, operand: Tile, roots: Mapping[str, Tile]) -> bool:
        """True for a view of a column that is a column or has equal columns."""
        # a broadcast of one dimension gives equal rows, and not equal columns
        is_view = operation.name in RESHAPES or (operation.name == _BROADCAST and operand.shape == (self.rows, 1))
        results = [tile for tile in operation.results if isinstance(tile, Tile)]
        return is_view and self._is_column(roots.get(operand.name, operand)) and all(map(self._fits, results))

    def _product(self, operation: Operation) -> None:
        problem = self.products[operation]
        a, b, c = operation.matrices
        assert operation.product is not None
        is_plain = operation.alpha == 1 and (bool(operation.results) or operation.product.beta == 1)
        refuse(not is_plain, "has_factors")
        refuse(problem.m != self.rows or problem.c.dtype != "float32", "chain_tile", c.shape, c.dtype)
        refuse(problem.a.dtype not in _HALVES or problem.a.dtype != problem.b.dtype, "two_dtypes")
        loaded = self.views.get(b.name, b)
        refuse(loaded.name not in self.loads, "operand_not_loaded_whole", operation.line)
        if a.name in self.made:
            self._operand(a, views=False)
        else:
            is_fixed = a.owner and a.dense and a.name not in self.loads and a.name not in self.carried
            refuse(not is_fixed, "operand_not_loaded_whole", operation.line)
            self.fixed[a.name] = a
        if operation.results:
            self._make(operation)
        else:
            self._operand(c, views=False)

    def _operand(self, tile: Tile, *, views: bool = True) -> Tile:
        """The tile of the chain that an operand is, or is a view of."""
        root = self.roots.get(tile.name, tile)
        refuse(root is not tile and not views, "view", tile.name)
        refuse(
            not self._fits(root) or root.name in self.loads or root.name in self.views,
            "chain_tile",
            tile.shape,
            tile.dtype,
        )
        if root.name not in self.made and root.name not in self.carried:
            is_held = (root.owner and root.dense) or (root.is_intermediate and self._is_column(root))
            is_held = is_held and root.dtype == "float32"
            refuse(not is_held, "chain_tile", tile.shape, tile.dtype)
            self.carried[root.name] = root
        return root

    def _make(self, operation: Operation) -> None:
        for tile in (value for value in operation.results if isinstance(value, Tile)):
            refuse(not self._fits(tile) or tile.name in self.carried, "chain_tile", tile.shape, tile.dtype)
            self.made[tile.name] = tile

    def _fits(self, tile: Tile) -> bool:
        is_matrix = len(tile.shape) == 2 and tile.shape[1] % _ROWS == 0
        return not tile.parameter and tile.shape[0] == self.rows and (is_matrix or self._is_column(tile))

    def _is_column(self, tile: Tile) -> bool:
        return tile.shape in ((self.rows,), (self.rows, 1))

    # ---- the whole chain

    def chain(self, target: LoopTarget) -> Chain:
        """The chain, if its tiles are not used otherwise, and registers and memory hold them."""
        first = next(iter(self.products.values()))
        warps, left = divmod(first.threads, LANES)
        refuse(first.arch < ASYNC_COPIES_ARCH, "no_async_copies", first.arch)
        has_groups = "wgmma" in target.families and has_wgmma(first.arch) and first.threads % WARPGROUP == 0
        refuse(not has_groups and "mma" not in target.families, "no_tensor_core_grid", first.threads, first.size)
        instruction: LoopInstruction = "wgmma" if has_groups else "mma_m16n8k16"
        refuse(bool(left) or self.rows % (_ROWS * warps) != 0, "chain_rows", self.rows, warps, _ROWS)
        refuse(len({problem.a.dtype for problem in self.products.values()}) > 1, "two_dtypes")
        inside = set(operations(self.loop.nodes))
        own = {*self.made, *self.loads}
        for operation in self.context.function.operations():
            used = {name for tile in operation.tiles for name in (tile.name, *tile.memory)} & own
            refuse(operation not in inside and bool(used), "used_outside", operation.line)
        sums = {product.matrices[2].name: product.matrices[2] for product in self.products}.values()
        accumulators = sum(tile.shape[1] for tile in sums) * self.rows // first.threads
        matrices, fixed_bytes = accumulators, 0
        if instruction == "wgmma":  # of registers, nvJitLink 13.0 overwrites those of the next iteration
            fixed_bytes = sum(tile.size_bytes for tile in self.fixed.values())
        else:
            matrices += sum(tile.shape[1] for tile in self.fixed.values()) * self.rows // first.threads // 2
        most = _MOST_REGISTERS[instruction]
        refuse(matrices > most, "chain_registers", matrices, most)
        idle = [tile for tile in (*self.made.values(), *self.carried.values()) if tile.owner]
        buffers, stage_bytes = stage_buffers([load.load for load in self.loads.values()])
        runs = runs_of(self.context.function, {tile.name for tile in idle} | self.loads.keys())
        run = max(runs, key=lambda run: runs[run])
        loads = tuple(replace(load, offset_bytes=buffers[name].offset_bytes) for name, load in self.loads.items())
        registers = matrices + _OTHER_REGISTERS[instruction]
        registers = min(registers, multiprocessor(first.arch).thread_registers)
        memory = sum(dict(self.context.function.frame).values()) + self.context.bytes_around()
        groups = first.threads // WARPGROUP if instruction == "wgmma" else 0

        def blocks_of(size_bytes: int) -> int:
            shared = memory - self._spared_bytes(run, size_bytes)
            return resident_blocks(first.arch, first.threads, shared_bytes=shared, registers=registers)

        layouts = list(stage_layouts(stage_bytes, fixed_bytes, blocks_of, groups, loads_again=self._loads_again()))
        least = min(layout.size_bytes for layout in layouts)
        refuse(least > runs[run], "chain_memory", least, runs[run])
        layout = best_layout(layout for layout in layouts if layout.size_bytes <= runs[run])
        behind = self._behind()
        loop = self.loop
        fills = {name: fill_before(self.context, loop, tile) for name, tile in self.carried.items() if tile.owner}
        more, increment = f"iter_cmp({loop.iterator}) != 0", f"{loop.iterator}.step"
        if loop.steps is not None:
            _, end, step = loop.steps
            more, increment = f"{loop.iterator} {'<' if step > 0 else '>'} {end}", str(step)
        return Chain(
            more,
            increment,
            instruction,
            self.rows // warps,
            loads,
            stage_bytes,
            layout,
            next(tile for tile in (*idle, *(load.tile for load in loads)) if tile.name == run[0]),
            self._spared_bytes(run, layout.size_bytes),
            tuple(self.operations),
            behind,
            tuple(self.carried.values()),
            {name: fill for name, fill in fills.items() if fill},
            tuple(self.made.values()),
            tuple(self.fixed.values()),
            dict(self.roots),
            dict(self.views),
            dict(self.products),
            accumulators,
            registers,
        )

    def _loads_again(self) -> bool:
        """True if the tile that the first product multiplies may be loaded again behind it: no other multiplies it."""
        loaded = [self.views.get(tile.name, tile) for tile in (product.matrices[1] for product in self.products)]
        return loaded.count(loaded[0]) == 1

    def _behind(self) -> tuple[Operation, ...]:
        """The operations behind the loop that compute carried tiles from carried tiles, such as a division of sums.

        Nothing else uses what they compute. They add nothing, so Warp's compiler fuses nothing with them.
        """
        block, index = path_to(self.context.function.nodes, self.loop)[-1]
        roots, made, found = dict(self.roots), dict[str, Operation](), list[Operation]()

        def is_held(tile: Tile) -> bool:
            return roots.get(tile.name, tile).name in (*self.carried, *made) and self._fits(roots.get(tile.name, tile))

        for node in block[index + 1 :]:
            if not isinstance(node, Operation) or node.name in JUMPS:
                break
            if not node.tiles and node.effect in (Effect.NONE, Effect.ALIAS):
                continue
            results = [tile for tile in node.results if isinstance(tile, Tile)]
            operands = [tile for tile in node.tiles if tile not in results]
            if not all(map(is_held, operands)):
                break
            if node.effect is Effect.ALIAS and len(operands) == len(results) == 1:
                if not self._is_spread_column(node, operands[0], roots):
                    break
                roots[results[0].name] = roots.get(operands[0].name, operands[0])
                continue
            if node.hook is None or node.callee:
                break
            if node.name == TILE_ASSIGN and len(node.operands) == 2 and len(operands) == 2:
                target, source = operands
                if target.name not in self.carried or (target.shape, target.dtype) != (source.shape, source.dtype):
                    break
            elif node.elementwise and node.elementwise.on_elements and not node.elementwise.adds:
                (result,) = results
                if not self._fits(result):
                    break
                made[result.name] = node
            else:
                break
            found.append(node)
        while found and (found[-1].name != TILE_ASSIGN or self._is_used_elsewhere(found, made)):
            found.pop()
        self.roots |= roots if found else {}
        return tuple(found)

    def _is_used_elsewhere(self, found: Sequence[Operation], made: Mapping[str, Operation]) -> bool:
        own = {name for name, maker in made.items() if maker in found}
        return any(
            node not in found and not own.isdisjoint(name for tile in node.tiles for name in (tile.name, *tile.memory))
            for node in self.context.function.operations()
            if node.effect is not Effect.ALIAS
        )

    def _spared_bytes(self, run: Sequence[str], needed: int) -> int:
        """Bytes at the end of a kernel's tiles that nothing uses, behind the stages in a run of tiles."""
        if self.context.calls():
            return 0
        sizes, spared = dict(self.context.function.frame), 0
        stages = dict.fromkeys(run, 0)  # bytes of stages in each tile
        for name in run:
            stages[name] = min(needed, sizes[name])
            needed -= stages[name]
        for name, size in reversed(sizes.items()):
            if name not in self.made and name not in self.loads:
                break
            spared += size - stages.get(name, 0)
            if stages.get(name):
                break
        return spared
