"""Loops that multiply many tiles into one: their sums stay in registers until the loop ends.

Warp's ``wp.tile_matmul(a, b, c)`` reads and writes ``c`` in shared memory at each call. In a loop over K nobody looks
at ``c`` in between, and up to two thirds of the traffic can be saved: the generated source is edited so that each turn
adds to registers, and the tile is updated once, behind the loop. In the reverse loop of a backward pass Warp
repeats the forward product, whose result nothing reads there; it is left out.

All functions are pure, on the text that Warp generates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

_CALL = re.compile(r"^\s*wp::tile_matmul_acc\((?P<arguments>[^()]*)\);\s*$")
_ADJOINT = "wp::adj_tile_matmul_acc("
_SITE = re.compile(r"\bwt_site(\d+)_forward\b")
_START = re.compile(r"^\s*start_for_(\d+):;")
_ONE = r"const wp::float(?:32|64) {}\s*=\s*1(?:\.0*)?f?;"
# what may be done with C in the function of a loop: nothing that could leave a second name for its memory
_HARMLESS = (
    r"\b{c} = wp::tile_alloc_empty<",
    r"\b{c} = wp::tile_(?:zeros|ones|full|load)\b",
    r"^\s*wp::tile_store\b.*\b{c}\);",
    r"^\s*wp::tile_atomic_add\b.*\b{c}\);",
    r"^\s*wp::tile_matmul_acc\(",
)


@dataclass(frozen=True)
class LoopSums:
    """Functions that keep the sums of one product in registers.

    Attributes:
        symbol: Of the product; ``_add`` and ``_finish`` follow it.
        ctype: C++ type of a sum, e.g. ``wp::float32``.
        count: Sums that each thread holds.
    """

    symbol: str
    ctype: str
    count: int


@dataclass(frozen=True)
class _Call:
    """A product in a loop: numbers of lines, and names of variables."""

    site: int
    line: int
    start: int
    end: int
    function: range
    a: str
    b: str
    c: str
    alpha: str
    beta: str

    @property
    def loop(self) -> range:
        return range(self.start, self.end + 1)


def keep_sums(source: str, sums: Mapping[int, LoopSums], repeated: Collection[int]) -> str:
    """Edit the source so that the loops around calls of these sites keep their sums in registers.

    Args:
        source: Generated source with placeholders for functions.
        sums: By site. Sites without are left as they are.
        repeated: Sites whose forward product is left out where a reverse loop repeats it in vain.
    """
    lines = source.splitlines()
    before: dict[int, list[str]] = {}
    after: dict[int, list[str]] = {}
    for number, (call, declaration) in enumerate(_summed(lines)):
        found = sums.get(call.site)
        if found is None:
            continue
        name = f"wt_sums_{number}"
        text = lines[call.line]
        margin = text[: len(text) - len(text.lstrip())]
        # declared without a value, because a goto may not jump over one
        after.setdefault(declaration, []).append(f"        {found.ctype} {name}[{found.count}];")
        before.setdefault(call.start, []).append(
            f"        for (int wt_i = 0; wt_i < {found.count}; ++wt_i) {name}[wt_i] = {found.ctype}(0);"
        )
        lines[call.line] = (
            f"{margin}{found.symbol}_add({name}, {call.a}.data.ptr, {call.b}.data.ptr); WP_TILE_SYNC();"
            f"  // {text.strip()}"
        )
        after.setdefault(call.end, []).append(
            f"        WP_TILE_SYNC(); {found.symbol}_finish({name}, {call.c}.data.ptr); WP_TILE_SYNC();"
        )
    for line in _repeated(lines, repeated):
        lines[line] = f"        WP_TILE_SYNC();  // {lines[line].strip()}"
    return joined(lines, before, after) + ("\n" if source.endswith("\n") else "")


def joined(lines: Iterable[str], before: Mapping[int, Iterable[str]], after: Mapping[int, Iterable[str]]) -> str:
    """The text of lines, with others put in before and after some of them, by number."""
    return "\n".join(
        line
        for index, original in enumerate(lines)
        for line in (*before.get(index, ()), original, *after.get(index, ()))
    )


def code_of(line: str) -> str:
    """A line without its comment."""
    return line.split("//", 1)[0]


def functions(lines: list[str]) -> list[range]:
    """Bodies of functions: Warp closes each with a brace at the start of a line."""
    bounds = [-1, *(index for index, line in enumerate(lines) if line.startswith("}")), len(lines)]
    return [range(first + 1, last) for first, last in pairwise(bounds)]


def mentions(lines: list[str], where: range, name: str) -> list[int]:
    """Lines that mention a variable, comments aside."""
    pattern = re.compile(rf"\b{name}\b")
    return [index for index in where if pattern.search(code_of(lines[index]))]


def enclosing_loop(lines: list[str], function: range, call: int) -> tuple[int, int] | None:
    """First and last line of the innermost loop around a call."""
    for start in range(call, function.start - 1, -1):
        label = _START.match(lines[start])
        if label is None:
            continue
        end = next((i for i in range(start, function.stop) if lines[i].strip() == f"end_for_{label[1]}:;"), None)
        if end is not None and end > call:
            return start, end
    return None


def _calls(lines: list[str]) -> Iterator[_Call]:
    """Products in loops."""
    for function in functions(lines):
        for line in function:
            match, site = _CALL.match(code_of(lines[line])), _SITE.search(lines[line])
            arguments = [text.strip() for text in match["arguments"].split(",")] if match else []
            loop = enclosing_loop(lines, function, line) if site and len(arguments) == 8 else None
            if site and loop:
                yield _Call(int(site[1]), line, *loop, function, *arguments[3:])  # behind three functions


def _summed(lines: list[str]) -> list[tuple[_Call, int]]:
    """Calls whose sums may stay in registers, each with the line that declares its C."""
    found = []
    for call in _calls(lines):
        if not all(_is_one(lines, call.function, name) for name in (call.alpha, call.beta)):
            continue
        c = call.c
        mentioned = mentions(lines, call.function, c)
        declaration = next((i for i in mentioned if f"{c} = wp::tile_alloc_empty<" in lines[i]), None)
        alone = mentions(lines, call.loop, c) == [call.line] and c not in (call.a, call.b)
        harmless = [re.compile(pattern.format(c=c)) for pattern in _HARMLESS]
        known = all(any(p.search(code_of(lines[i])) for p in harmless) for i in mentioned)
        if declaration is not None and alone and known:
            found.append((call, declaration))
    return found


def _is_one(lines: list[str], function: range, name: str) -> bool:
    pattern = re.compile(_ONE.format(name))
    return any(pattern.search(lines[index]) for index in mentions(lines, function, name))


def _repeated(lines: list[str], sites: Collection[int]) -> list[int]:
    """Lines of forward products that a reverse loop repeats although nothing reads their result."""
    found = []
    for call in _calls(lines):
        if call.site not in sites:
            continue
        inside = [i for i in mentions(lines, call.loop, call.c) if i != call.line]
        reversed_here = [i for i in inside if code_of(lines[i]).lstrip().startswith(_ADJOINT)]
        # the adjoint of the product takes C, and only C's gradient is read
        if reversed_here and inside == reversed_here and not _read_later(lines, call.function, call.end, call.c):
            found.append(call.line)
    return found


def _read_later(lines: list[str], function: range, end: int, c: str) -> bool:
    """Whether code behind a reverse loop might read C."""
    unread = (rf"\badj_tile_(?:zeros|load|store|matmul_acc)\b.*\b{c}\b", rf"\b{c} = wp::tile_(?:zeros|load)\b")
    later = mentions(lines, range(end + 1, function.stop), c)
    return not all(any(re.search(pattern, code_of(lines[i])) for pattern in unread) for i in later)
