"""Loads of tiles, and the adjoints of loads, 16 bytes at a time.

Warp's ``wp.tile_load`` into shared memory waits for each 16 bytes before it asks for the next, and for each tile before
the next; the adjoint adds element by element. In functions with a product the generated source is edited: tiles that a
loop loads are loaded side by side, asynchronously, and what follows waits for them; adjoints of loads add vectors.

All functions are pure, on the text that Warp generates. ``kernels/module/tile_moves.cuh`` has the device functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from warp_tiles.flatten import flattened
from warp_tiles.loops import code_of, functions
from warp_tiles.providers.nvrtc import MODULE_HEADER, kernels_folder

_LOAD = re.compile(r"^(\s*)(var_\d+) = (wp::tile_load<[^<>,]+, \w+, \w+, \d+, \d+>\([^(),;]+, [^(),;]+, [^(),;]+\));")
_ADJOINT = re.compile(r"^(\s*)wp::adj_tile_load(\((?:[^(),;]+, ){6}[^(),;]+\);)")
_SITE = re.compile(r"\bwt_site\d+_")
# a tile with memory of its own; in registers it is read by its own thread, and may be loaded where threads diverge
SHARED = re.compile(r"^\s*wp::tile_shared_t<.* (var_\d+) = wp::tile_alloc_empty<")
_TILE = re.compile(r"^\s*(?:wp::)?tile_[^()=]*\b(var_\w+)")
_NAME = re.compile(r"\bvar_\w+")
# what may lie between two loads without a look at their tiles: arithmetic of offsets
_ARITHMETIC = re.compile(r"^\s*(?:var_\d+ = wp::(?:tuple|mul|add|sub|neg|floordiv|mod|copy)\([^();]*\);)?\s*$")
_INCLUDE = re.compile(r'^#include "[^"]+"\n', re.MULTILINE)


def move_wide(source: str) -> str:
    """Edit the source so that functions with products load tiles side by side and add gradients as vectors.

    Args:
        source: Generated source with placeholders for functions.
    """
    lines = source.splitlines()
    edited: list[str] = []
    for function in functions(lines):
        with_product = any(_SITE.search(lines[index]) for index in function)
        edited += _moved(lines, function) if with_product else (lines[index] for index in function)
        edited += lines[function.stop : function.stop + 1]  # the brace that ends it
    text = "\n".join(edited) + ("\n" if source.endswith("\n") else "")
    return _with_header(text) if text != source else source


def _moved(lines: list[str], function: range) -> Iterator[str]:
    shared = declared(SHARED, lines, function)
    tiles = shared | declared(_TILE, lines, function)
    under_way = False
    for index in function:
        line = lines[index]
        code = code_of(line)
        load = _LOAD.match(code)
        if load and load[2] in shared:
            margin, tile, what = load.groups()
            yield f"{margin}wt_module::load<{str(not under_way).lower()}>({tile}, {what});"
            under_way = True
            continue
        # a tile is copied and added by the names that numbers are
        if under_way and (not _ARITHMETIC.match(code) or not tiles.isdisjoint(_NAME.findall(code))):
            yield "        wt_module::loaded();"
            under_way = False
        yield _ADJOINT.sub(r"\1wt_module::adj_load\2", line)
    if under_way:  # the memory of the tile may be another's next
        yield "        wt_module::loaded();"


def declared(kind: re.Pattern[str], lines: list[str], function: range) -> set[str]:
    """Names of the variables and parameters that a function declares so."""
    return {match[1] for index in function if (match := kind.match(code_of(lines[index])))}


def _with_header(text: str) -> str:
    last = list(_INCLUDE.finditer(text))[-1]
    header = flattened(kernels_folder() / MODULE_HEADER, kernels_folder())
    return f"{text[: last.end()]}\n{header}\n{text[last.end() :]}"
