"""Device code for the host's compiler: Warp's headers and generated modules, with PTX replaced by calls.

``cuda/device.h`` has the declarations that NVRTC has built in. ``cuda/ptx.h`` has the emulated PTX instructions.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock

FOLDER = Path(__file__).resolve().parent
_MAKERS = ("native", "module", "emulator")  # Python files that decide how it is compiled
_CONDITION = re.compile(r"\{ \.reg \.pred p; setp\.ne\.u32 p, %0, 0; @p ")
_ASM = re.compile(r"\basm(?:\s+volatile)?\s*\(")
_STRING = re.compile(r'"((?:\\.|[^"\\])*)"')
_INSTRUCTION = re.compile(r"[\s{]*([\w.:]+)([^;]*);?[\s}]*")
# The loop around an instruction: registers, labels and branches. It is emulated as a whole.
_LOOP = re.compile(r"\.reg [^;]*;|\b\w+:(?=\s)|(?:@\w+ )?\bbra \w+;")
_OPERAND = re.compile(r"%(\d+)|\b(\d+)\b")
_EMULATED = re.compile(r"(?:inline void|^WT_\w+\()\s*(\w+)[(,]", re.MULTILINE)
# g++ accepts this attribute only before the specifiers
_ALIGNED = re.compile(r"__shared__ (alignas\(\w+\))")
_DYNAMIC = re.compile(r"extern __shared__ char (\w+)\[\];")
_DYNAMIC_HERE = r"char* const \1 = static_cast<char*>(wt::emulator::shared_pointer(wt::emulator::shared_start));"


def cached_folder(folder: Path, key: str) -> Path:
    """The folder for the compiled emulator: ``folder``, or one that lasts if EMULATOR_CACHE names where.

    Processes share it. Whoever writes to it first locks it with :func:`locked`.
    """
    cache = os.environ.get("EMULATOR_CACHE")
    if not cache:
        return folder
    digest = hashlib.sha256(key.encode())
    makers = (path for path in FOLDER.rglob("*") if path.suffix in (".h", ".cpp") or path.stem in _MAKERS)
    for path in sorted(makers):
        digest.update(path.read_bytes())
    found = Path(cache) / digest.hexdigest()[:16]
    found.mkdir(parents=True, exist_ok=True)
    return found


def locked(folder: Path) -> FileLock:
    """The lock of a folder of :func:`cached_folder`: one process compiles, the others wait and use its files."""
    return FileLock(folder / "lock")


def errors_of(compiler: str, arguments: Sequence[str]) -> str:
    """Run the host's compiler. Returns its first errors, or ""."""
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    errors = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line][:5]
    return "\n".join(errors) or done.stderr[:2000] or f"{compiler} exited with status {done.returncode}"


def for_host(text: str) -> str:
    """Device code without PTX. An instruction that is not emulated becomes a call that fails."""
    parts: list[str] = []
    end = 0
    for match in _ASM.finditer(text):
        close = _closing(text, match.end())
        parts += [text[end : match.start()], _call(text[match.end() : close])]
        end = close + 1
    return _DYNAMIC.sub(_DYNAMIC_HERE, _ALIGNED.sub(r"\1 __shared__", "".join([*parts, text[end:]])))


def copy_headers(source: Path, target: Path) -> None:
    """Copy Warp's headers, changed for the host."""
    for path in source.rglob("*.h"):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(for_host(path.read_text("utf-8")), "utf-8")


@functools.cache
def emulated() -> frozenset[str]:
    """The instructions that ``cuda/ptx.h`` has, with underscores for dots."""
    return frozenset(_EMULATED.findall((FOLDER / "cuda" / "ptx.h").read_text("utf-8")))


def _call(statement: str) -> str:
    """The call that replaces an asm statement, whose text between the parentheses is given."""
    template, *operands = _split(statement)
    ptx = "".join(_STRING.findall(template)).replace("\\n", " ").replace("\\t", " ")
    ptx, is_conditional = _CONDITION.subn("", ptx)
    match = _INSTRUCTION.fullmatch(_LOOP.sub("", ptx))
    name = match[1].replace("::", "_").replace(".", "_") if match else ""
    if match is None or name not in emulated():
        instruction = " ".join(ptx.split())[:40].replace('"', "").replace("\\", "")
        return f'wt::emulator::fail("not emulated: {instruction}", __FILE__, __LINE__)'
    arguments = (operands[int(index)] if index else number for index, number in _OPERAND.findall(match[2]))
    call = f"wt_ptx::{name}({', '.join(arguments)})"
    return f"{operands[0]} ? {call} : void()" if is_conditional else call


def _split(statement: str) -> Iterator[str]:
    """Yields the template of an asm statement, then the expressions of its operands."""
    at = next((at for at, depth in _depths(statement) if statement[at] == ":" and depth == 0), len(statement))
    yield statement[:at]
    start = 0
    for position, depth in _depths(statement):
        if position < at:
            continue
        if statement[position] == "(" and depth == 1:
            start = position + 1
        elif statement[position] == ")" and depth == 0:
            yield " ".join(statement[start:position].split())


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Yields positions outside strings, with the depth of parentheses after each."""
    depth, quoted = 0, False
    for position, letter in enumerate(text):
        if letter == '"' and text[position - 1 : position] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(letter, 0)
            yield position, depth


def _closing(text: str, start: int) -> int:
    """The position of the parenthesis that closes the one just before ``start``."""
    return next(start + position for position, depth in _depths(text[start : start + 4000]) if depth == -1)
