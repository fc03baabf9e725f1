"""Writes the adjoints of stores of computed tiles as C++: the bodies of macros.

The macros call the device functions of ``kernels/module/adjoint_chains.cuh``.
"""

from __future__ import annotations

from collections.abc import Sequence

from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.macros import STATEMENT, Macros, hook_of, local_function
from warp_tiles.codegen.store_adjoints import ReversedStore, reversed_stores
from warp_tiles.codegen.trace import FunctionTrace, ModuleTrace, Tile


def emit_store_adjoints(macros: Macros, module: ModuleTrace, function: FunctionTrace) -> None:
    """Writes the adjoints of a function's stores that are computed in bands.

    Args:
        macros: Receives the macros.
        module: The whole module.
        function: The function.
    """
    for found in reversed_stores(module, function):
        _emit(macros, found)


def _emit(macros: Macros, found: ReversedStore) -> None:
    """Writes one adjoint.

    The reverse pass reaches the adjoint of the store first. Each statement becomes a function of its tiles. The last
    adjoint calls them, and ends their block.
    """
    computed, result = found.computed, found.computed.result
    start = f"{{ {local_function('wt_store', [result.name, result.adjoint], STATEMENT)}"
    macros.replace(Hook.ADJOINT, hook_of(computed.store), start)
    forward: list[str] = []
    reverse: list[str] = []
    for number, operation in reversed(list(enumerate(computed.operations))):
        tiles = list(dict.fromkeys(operation.tiles))
        names, both = _names(tiles), [*_names(tiles), *_adjoints(tiles)]
        forward.insert(0, f"wt_operation_{number}({', '.join(names)});")
        reverse.append(f"wt_adjoint_{number}({', '.join(both)});")
        macros.replace(Hook.REPLAY, hook_of(operation), "")
        macros.replace(Hook.RECOMPUTE, hook_of(operation), local_function(f"wt_operation_{number}", names, STATEMENT))
        adjoint = local_function(f"wt_adjoint_{number}", both, STATEMENT)
        end = f" {_call(found, forward, reverse)} }}" if number == 0 else ""
        macros.replace(Hook.ADJOINT, hook_of(operation), adjoint + end)


def _call(found: ReversedStore, forward: Sequence[str], reverse: Sequence[str]) -> str:
    computed = found.computed
    tiles = [computed.result, *computed.sources, *computed.intermediates]
    names = _names(tiles)
    functions = [
        local_function("wt_forward", names, " ".join(forward)),
        local_function("wt_reverse", [*names, *_adjoints(tiles)], " ".join(reverse)),
    ]
    pairs = ", ".join(f"wt_module::pair({tile.name}, {tile.adjoint})" for tile in tiles)
    constants = f"{len(computed.sources)}, {str(found.overlap).lower()}"
    return f"{' '.join(functions)} wt_module::reverse_store<{constants}>(wt_forward, wt_store, wt_reverse, {pairs});"


def _names(tiles: Sequence[Tile]) -> list[str]:
    return [tile.name for tile in tiles]


def _adjoints(tiles: Sequence[Tile]) -> list[str]:
    return [tile.adjoint for tile in tiles]
