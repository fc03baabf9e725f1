"""Loops that load the next tiles while they multiply the last ones.

A loop whose sums stay in registers (:mod:`warp_tiles.codegen.loops`) leaves the memory of C idle until it ends. If C holds
zeros before, that memory serves as a second pair of buffers for A and B: each turn starts to load its tiles into one
pair and multiplies those of the turn before, from the other. C is zeroed again behind the loop.

All functions are pure, on source that :func:`warp_tiles.codegen.loops.keep_sums` and :func:`warp_tiles.codegen.tile_moves.move_wide`
have edited. ``kernels/module/tile_moves.cuh`` has the device functions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from warp_tiles.codegen.loops import code_of, enclosing_loop, functions, joined, mentions
from warp_tiles.gemm.variant import DTYPE_BYTES

_ADD = re.compile(
    r"^\s*(?P<call>\w+_add\((?P<sums>wt_sums_(?P<number>\d+)), )(?P<a>var_\d+)\.data\.ptr, (?P<b>var_\d+)\.data\.ptr\);"
)
_FINISH = re.compile(r"^\s*WP_TILE_SYNC\(\); \w+_finish\((?P<sums>wt_sums_\d+), (?P<c>var_\d+)\.data\.ptr\);")
_LOADED = "wt_module::loaded();"
_LOAD = r"^\s*wt_module::load<\w+>\({},"
_ZEROS = r"^\s*{} = wp::tile_zeros<"
_DECLARATION = re.compile(
    r"^\s*wp::tile_shared_t<wp::(\w+),\s*wp::tile_layout_strided_t<wp::tile_shape_t<(\d+),\s*(\d+)>"
    r".* = wp::tile_alloc_empty<"
)
_CONDITION = re.compile(r"if \((iter_cmp\(\w+\)) == 0\) (goto \w+;)")
# what a turn may do besides: arithmetic of numbers, and reads. A write could reach an array while its tile is loaded.
_PURE = re.compile(
    r"^\s*(?:var_\w+ = (?:wp::(?:abs|add|address|bool|clamp|copy|div|extract|float(?:16|32|64)|floordiv|iter_next"
    r"|load|max|min|mod|mul|neg|sub|tuple|u?int(?:8|16|32|64)|where)|&|)\([^();]*\);|wp::assign\([^();]*\);)?\s*$"
)
_BRANCH = re.compile(r"\bgoto\b|:;|[{}]|\b(?:if|return|continue)\b")
_ALIGNMENT = 16  # bytes, of a buffer


@dataclass(frozen=True)
class _Loop:
    """A loop that can be pipelined: its tiles, pieces of its code, and numbers of lines."""

    number: str
    a: str
    b: str
    c: str
    call: str
    more: str
    leave: str
    declaration: int
    zeros: int
    start: int
    load: int
    add: int
    end: int


def pipeline(source: str) -> str:
    """Edit the source so that loops load and multiply at the same time, where C can lend its memory."""
    lines = source.splitlines()
    before: dict[int, list[str]] = {}
    after: dict[int, list[str]] = {}
    for loop in [found for function in functions(lines) for found in _loops(lines, function)]:
        name, pair = f"wt_turns_{loop.number}", f"{loop.a}, {loop.b}"
        # declared without a value, because a goto may not jump over one
        after[loop.declaration] = [f"        wt_module::Turns<decltype({loop.a}), decltype({loop.b})> {name};"]
        before[loop.start] = [f"        {name}.start({pair}, {loop.c}.data.ptr);"]
        # one turn more than there are tiles: it multiplies the last ones
        condition = code_of(lines[loop.start + 1]).strip()
        lines[loop.start + 1] = f"            {name}.more = {loop.more}; if ({name}.more) {{  // {condition}"
        before[loop.load] = [f"            {name}.next({pair});"]
        lines[loop.load] = lines[loop.load].replace("load<true>", "load<false>", 1)  # next() has waited
        comment = lines[loop.add].partition("//")[2]
        lines[loop.add - 1] = f"            }} if ({name}.earlier()) {loop.call}{name}.a(), {name}.b());  //{comment}"
        lines[loop.add] = f"            {name}.keep(); if (!{name}.more) {loop.leave}"
        after[loop.end] = [f"        {name}.end({pair}, {loop.c}.data.ptr); {code_of(lines[loop.zeros]).strip()}"]
    return joined(lines, before, after) + ("\n" if source.endswith("\n") else "")


def _loops(lines: list[str], function: range) -> list[_Loop]:
    found = []
    for add in function:
        call = _ADD.match(lines[add])
        bounds = enclosing_loop(lines, function, add) if call else None
        if call is None or bounds is None or lines[add - 1].strip() != _LOADED:
            continue
        start, end = bounds
        finish = _FINISH.match(lines[end + 1])
        if finish is None or finish["sums"] != call["sums"]:
            continue
        a, b, c = call["a"], call["b"], finish["c"]
        loads = [_only_load(lines, function, range(start, add), tile, add) for tile in (a, b)]
        declared = [_declaration(lines, function, tile) for tile in (a, b, c)]
        zeros = _zeros_before(lines, function, start, c)
        counted = _CONDITION.fullmatch(code_of(lines[start + 1]).strip())
        # all but the condition, the wait with the product, and the jump to the start
        inside = {*range(start + 2, add - 1), *range(add + 1, end - 1)} - set(loads)
        pure = all(_PURE.match(code_of(lines[index])) for index in inside)
        if None in loads or None in declared or zeros is None or not counted or not pure or a == b:
            continue
        bytes_a, bytes_b, bytes_c = (size for _, size in filter(None, declared))
        if -(-bytes_a // _ALIGNMENT) * _ALIGNMENT + bytes_b <= bytes_c:
            declaration = max(line for line, _ in filter(None, declared))
            load = min(line for line in loads if line is not None)
            code = call["call"], counted[1], counted[2]
            found.append(_Loop(call["number"], a, b, c, *code, declaration, zeros, start, load, add, end))
    return found


def _only_load(lines: list[str], function: range, loop: range, tile: str, call: int) -> int | None:
    """The load of a tile that nothing but its declaration, this load and the product mentions."""
    load = next((index for index in loop if re.match(_LOAD.format(tile), lines[index])), None)
    known = {load, call, *(i for i in function if _DECLARATION.match(lines[i]) and f" {tile} = " in lines[i])}
    return load if set(mentions(lines, function, tile)) <= known else None


def _declaration(lines: list[str], function: range, tile: str) -> tuple[int, int] | None:
    """Line and bytes of a tile's declaration."""
    for index in function:
        match = _DECLARATION.match(lines[index])
        if match and f" {tile} = " in lines[index] and match[1] in DTYPE_BYTES:
            return index, DTYPE_BYTES[match[1]] * int(match[2]) * int(match[3])
    return None


def _zeros_before(lines: list[str], function: range, start: int, c: str) -> int | None:
    """The line that fills C with zeros, if C still holds them where the loop starts."""
    earlier = mentions(lines, range(function.start, start), c)
    zeros = earlier[-1] if earlier else None
    if zeros is None or not re.match(_ZEROS.format(c), lines[zeros]):
        return None
    sums = re.compile(r"wt_i < \d+; \+\+wt_i")
    between = [index for index in range(zeros + 1, start) if not sums.search(lines[index])]
    return None if any(_BRANCH.search(code_of(lines[index])) for index in between) else zeros
