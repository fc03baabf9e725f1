"""Writes the stores that compute their tile as C++: the bodies of macros.

The macros call the device functions of ``kernels/module/stores.cuh`` and ``kernels/module/sum_stores.cuh``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from warp_tiles.codegen.emit_stages import staged_name
from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.macros import STATEMENT, Macros, hook_of, local_function
from warp_tiles.codegen.stores import ComputedStore
from warp_tiles.codegen.sum_stores import SumStore
from warp_tiles.codegen.trace import Tile


def emit_computed_stores(macros: Macros, stores: Iterable[ComputedStore]) -> None:
    """Writes stores that compute the tile themselves."""
    for found in stores:
        names = _names(found.result, found.sources, found.intermediates)
        call = f"wt_module::store_computed<{len(found.sources)}>(wt_compute, wt_store, {', '.join(names)});"
        _emit(macros, found, names, call)


def emit_sum_store(macros: Macros, found: SumStore) -> None:
    """Writes a store that takes the sums of a loop from registers."""
    store, product = found.computed, found.product
    names = _names(store.result, [product.c, *found.others], store.intermediates)
    call = f"wt_module::store_sums<{len(found.others)}, {staged_name(product)}>"
    _emit(macros, store, names, f"{call}(wt_sums_{product.array}, wt_compute, wt_store, {', '.join(names)});")


def _emit(macros: Macros, found: ComputedStore, names: Sequence[str], call: str) -> None:
    """Writes the statements as functions of their tiles, and the call that uses them.

    They have a block of their own, because a ``goto`` may not jump over a variable.

    Args:
        macros: Receives the macros.
        found: The store.
        names: The stored tile, and the tiles that its operations use.
        call: The call.
    """
    calls = []
    for number, operation in enumerate(found.operations):
        tiles = [tile.name for tile in dict.fromkeys(operation.tiles)]
        start = "{ " if number == 0 else ""
        definition = local_function(f"wt_operation_{number}", tiles, STATEMENT)
        macros.replace(Hook.AT, hook_of(operation), start + definition)
        calls.append(f"wt_operation_{number}({', '.join(tiles)});")
    store = local_function("wt_store", names[:1], STATEMENT)
    if found.operations:
        compute = local_function("wt_compute", names, " ".join(calls))
    else:
        compute = "{ " + local_function("wt_compute", ("wt_result", "wt_sums"), "wt_result = wt_sums;")
        compute, store = "", f"{compute} {store}"
    macros.replace(Hook.AT, hook_of(found.store), f"{store} {compute} {call} }}")


def _names(result: Tile, sources: Iterable[Tile], intermediates: Iterable[Tile]) -> list[str]:
    return [tile.name for tile in (result, *sources, *intermediates)]
