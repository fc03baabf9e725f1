"""Writes stores that compute their tile, their adjoints, and reductions of rows, as C++: the bodies of macros.

The macros call the device functions of ``stores.cuh``, ``accumulator_stores.cuh``, ``adjoint_chains.cuh`` and
``reductions.cuh``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from warp_tiles.codegen.emit_loops import staged_name
from warp_tiles.codegen.macros import STATEMENT, Hook, Macros, local_function
from warp_tiles.codegen.module_code import AccumulatorStore, ComputedStore, ReversedStore, RowReduction
from warp_tiles.codegen.operations import Tile


def emit_computed_stores(macros: Macros, stores: Iterable[ComputedStore]) -> None:
    """Writes stores that compute the tile themselves."""
    for computed in stores:
        counts = f"{len(computed.sources)}, {len(computed.loads)}"
        _emit(macros, computed, computed.sources, f"wt_module::store_computed<{counts}>(wt_compute, wt_store")


def emit_accumulator_store(macros: Macros, accumulator_store: AccumulatorStore) -> None:
    """Writes a store that takes the accumulators of a loop from registers."""
    store, product = accumulator_store.computed, accumulator_store.product
    counts = f"{len(accumulator_store.others)}, {len(store.loads)}"
    arguments = f"wt_accumulators_{product.array}, wt_compute, wt_store"
    call = f"wt_module::store_accumulators<{counts}, {staged_name(product)}>({arguments}"
    _emit(macros, store, [product.c, *accumulator_store.others], call)


def _emit(macros: Macros, computed: ComputedStore, sources: Iterable[Tile], call: str) -> None:
    """Writes the statements as functions of their tiles, and the call that uses them.

    They have a block of their own, because a ``goto`` may not jump over a variable. ``call`` has no closing
    parenthesis: the tiles are appended to its arguments.
    """
    texts: dict[int, str] = {}
    for number, (load, tile) in enumerate(zip(computed.loads, computed.loaded)):
        name = tile.name
        statement = local_function(f"wt_load_{number}", [name], STATEMENT)
        texts[load.own_hook] = (
            f"{statement} const auto wt_tile_{number} = wt_module::loaded_tile(wt_load_{number}, {name});"
        )
    calls = []
    for number, operation in enumerate(computed.operations):
        tiles = [tile.name for tile in dict.fromkeys(operation.tiles)]
        texts[operation.own_hook] = local_function(f"wt_operation_{number}", tiles, STATEMENT)
        calls.append(f"wt_operation_{number}({', '.join(tiles)});")
    names = [tile.name for tile in (computed.result, *sources, *computed.loaded, *computed.intermediates)]
    held = {tile.name: f"wt_tile_{number}" for number, tile in enumerate(computed.loaded)}
    store = local_function("wt_store", names[:1], STATEMENT)
    if computed.operations:
        compute = local_function("wt_compute", names, " ".join(calls))
    else:
        compute = local_function("wt_compute", ("wt_result", "wt_accumulators"), "wt_result = wt_accumulators;")
    end = f"{store} {compute} {call}, {', '.join(held.get(name, name) for name in names)}); }}"
    texts[computed.store.own_hook] = end
    for position, (hook, text) in enumerate(sorted(texts.items())):
        macros.replace(Hook.AT, hook, text if position else "{ " + text)


def emit_reductions(macros: Macros, reductions: Iterable[RowReduction]) -> None:
    for reduction in reductions:
        tile, result = reduction.operation.tiles
        function = f"[](auto x, auto y) {{ return wp::{reduction.builtin}(x, y); }}"
        text = f"{result.name} = wt_module::reduce_rows({function}, {tile.name});"
        macros.replace(Hook.AT, reduction.operation.own_hook, text)


# ---- adjoints


def emit_store_adjoint(macros: Macros, reversed_store: ReversedStore) -> None:
    """Writes the adjoint of a store that is computed in bands.

    The reverse pass reaches the adjoint of the store first. Each statement becomes a function of its tiles. The last
    adjoint calls them, and ends their block.
    """
    computed, result = reversed_store.computed, reversed_store.computed.result
    start = f"{{ {local_function('wt_store', [result.name, result.adjoint], STATEMENT)}"
    macros.replace(Hook.ADJOINT, computed.store.own_hook, start)
    forward: list[str] = []
    reverse: list[str] = []
    for number, operation in reversed(list(enumerate(computed.operations))):
        tiles = list(dict.fromkeys(operation.tiles))
        names, both = _names(tiles), [*_names(tiles), *_adjoints(tiles)]
        forward.insert(0, f"wt_operation_{number}({', '.join(names)});")
        reverse.append(f"wt_adjoint_{number}({', '.join(both)});")
        macros.replace(Hook.REPLAY, operation.own_hook, "")
        macros.replace(Hook.RECOMPUTE, operation.own_hook, local_function(f"wt_operation_{number}", names, STATEMENT))
        adjoint = local_function(f"wt_adjoint_{number}", both, STATEMENT)
        end = f" {_call(reversed_store, forward, reverse)} }}" if number == 0 else ""
        macros.replace(Hook.ADJOINT, operation.own_hook, adjoint + end)


def _call(reversed_store: ReversedStore, forward: Sequence[str], reverse: Sequence[str]) -> str:
    computed = reversed_store.computed
    tiles = [computed.result, *computed.sources, *computed.intermediates]
    names = _names(tiles)
    functions = [
        local_function("wt_forward", names, " ".join(forward)),
        local_function("wt_reverse", [*names, *_adjoints(tiles)], " ".join(reverse)),
    ]
    pairs = ", ".join(f"wt_module::pair({tile.name}, {tile.adjoint})" for tile in tiles)
    constants = f"{len(computed.sources)}, {str(reversed_store.overlap).lower()}"
    return f"{' '.join(functions)} wt_module::reverse_store<{constants}>(wt_forward, wt_store, wt_reverse, {pairs});"


def _names(tiles: Sequence[Tile]) -> list[str]:
    return [tile.name for tile in tiles]


def _adjoints(tiles: Sequence[Tile]) -> list[str]:
    return [tile.adjoint for tile in tiles]
