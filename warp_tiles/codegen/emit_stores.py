"""Writes the stores that compute their tile as C++: the bodies of macros.

The macros call the device functions of ``kernels/module/stores.cuh``.
"""

from __future__ import annotations

from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.macros import STATEMENT, Macros, hook_of, local_function
from warp_tiles.codegen.stores import computed_stores
from warp_tiles.codegen.trace import FunctionTrace


def emit_computed_stores(macros: Macros, function: FunctionTrace) -> None:
    """Writes the stores of a function that compute the tile themselves.

    Each statement becomes a function of its tiles. They have a block of their own, because a ``goto`` may not jump over
    a variable.
    """
    for found in computed_stores(function):
        calls = []
        for number, operation in enumerate(found.operations):
            names = [tile.name for tile in dict.fromkeys(operation.tiles)]
            start = "{ " if number == 0 else ""
            definition = local_function(f"wt_operation_{number}", names, STATEMENT)
            macros.replace(Hook.AT, hook_of(operation), start + definition)
            calls.append(f"wt_operation_{number}({', '.join(names)});")
        names = [tile.name for tile in (found.result, *found.sources, *found.intermediates)]
        store = local_function("wt_store", names[:1], STATEMENT)
        compute = local_function("wt_compute", names, " ".join(calls))
        call = f"wt_module::store_computed<{len(found.sources)}>(wt_compute, wt_store, {', '.join(names)}); }}"
        macros.replace(Hook.AT, hook_of(found.store), f"{store} {compute} {call}")
