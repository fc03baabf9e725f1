"""Device text for the host's compiler: Warp's headers and generated modules, with PTX replaced by calls.

``cuda/device.h`` declares what NVRTC knows by itself, ``cuda/ptx.h`` the instructions that may stand in PTX.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
_ASM = re.compile(r"\basm(?:\s+volatile)?\s*\(")
_STRING = re.compile(r'"((?:\\.|[^"\\])*)"')
_INSTRUCTION = re.compile(r"[\s{]*([\w.]+)([^;]*);?[\s}]*")
_PLACE = re.compile(r"%(\d+)|\b(\d+)\b")
_EMULATED = re.compile(r"(?:inline void|^WT_\w+\()\s*(\w+)[(,]", re.MULTILINE)
# g++ takes an attribute first only
_ALIGNED = re.compile(r"__shared__ (alignas\(\w+\))")
_DYNAMIC = "extern __shared__ char dynamic_smem_base[];"
_DYNAMIC_HERE = (
    "char* const dynamic_smem_base = static_cast<char*>(wt::emulator::shared_pointer(wt::emulator::shared_start));"
)


def for_host(text: str) -> str:
    """Device text in which no PTX is left; what is not emulated fails when it is reached."""
    parts: list[str] = []
    end = 0
    for match in _ASM.finditer(text):
        close = _closing(text, match.end())
        parts += [text[end : match.start()], _call(text[match.end() : close])]
        end = close + 1
    return _ALIGNED.sub(r"\1 __shared__", "".join([*parts, text[end:]])).replace(_DYNAMIC, _DYNAMIC_HERE)


def copy_headers(source: Path, target: Path) -> None:
    """Warp's headers for the host."""
    for path in source.rglob("*.h"):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(for_host(path.read_text("utf-8")), "utf-8")


@functools.cache
def emulated() -> frozenset[str]:
    """Instructions that ``cuda/ptx.h`` has, dots as underscores."""
    return frozenset(_EMULATED.findall((FOLDER / "cuda" / "ptx.h").read_text("utf-8")))


def _call(statement: str) -> str:
    """The call for what stands between the parentheses of an asm statement."""
    template, *operands = _split(statement)
    ptx = "".join(_STRING.findall(template)).replace("\\n", " ").replace("\\t", " ")
    match = _INSTRUCTION.fullmatch(ptx)
    name = match[1].replace(".", "_") if match else ""
    if match is None or name not in emulated():
        what = " ".join(ptx.split())[:40].replace('"', "").replace("\\", "")
        return f'wt::emulator::fail("not emulated: {what}", __FILE__, __LINE__)'
    places = (operands[int(place)] if place else number for place, number in _PLACE.findall(match[2]))
    return f"wt_ptx::{name}({', '.join(places)})"


def _split(statement: str) -> Iterator[str]:
    """The template of an asm statement, then the expressions of its operands."""
    at = next((at for at, depth in _depths(statement) if statement[at] == ":" and depth == 0), len(statement))
    yield statement[:at]
    start = 0
    for place, depth in _depths(statement):
        if place < at:
            continue
        if statement[place] == "(" and depth == 1:
            start = place + 1
        elif statement[place] == ")" and depth == 0:
            yield " ".join(statement[start:place].split())


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Places outside strings with the depth of parentheses behind them."""
    depth, quoted = 0, False
    for place, letter in enumerate(text):
        if letter == '"' and text[place - 1 : place] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(letter, 0)
            yield place, depth


def _closing(text: str, start: int) -> int:
    """Where the parenthesis closes that was opened just before ``start``."""
    return next(start + place for place, depth in _depths(text[start : start + 4000]) if depth == -1)
