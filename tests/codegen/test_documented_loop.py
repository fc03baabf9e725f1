"""The loop that docs/templates.md shows is the one that the generator writes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.golden.observe import planned, planning
from tests.integration.helpers import load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "templates.md"
KERNEL = """
@wp.kernel(enable_backward=False)
def gemm(A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.float16), C: wp.array2d(dtype=wp.float32)):
    i, j = wp.tid()
"""
HOOK = re.compile(r"^(WT_(?:BEGIN|END|WAIT|AT)_\d+)(?:\((.*)\))?$")


def code_blocks() -> tuple[str, str]:
    """The Python and the C++ of the page's section."""
    section = PAGE.read_text("utf-8").partition("## A loop, whole")[2].partition("\n## ")[0]
    (python,), (cpp,) = (re.findall(rf"```{language}\n(.*?)```", section, re.S) for language in ("python", "cpp"))
    return python, cpp


def squeezed(text: str) -> str:
    """A C++ text without comments and white space."""
    return re.sub(r"\s+", "", re.sub(r"//.*", "", text))


def expanded(source: str) -> str:
    """The types of the products and the first loop of a finished source, with its hooks expanded."""
    macros = dict(re.findall(r"^#define (\w+)(?:\(\.\.\.\))? ?(.*)$", source, re.M))
    types = re.findall(r"^struct wt_staged_.*?^using .*?$", source, re.M | re.S)
    lines = [line.strip() for line in source.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("WT_BEGIN_"))
    end = next(number for number, line in enumerate(lines) if line.startswith("WT_END_"))
    text = []
    for line in lines[start : end + 1]:
        found = HOOK.match(line)
        text.append(macros[found[1]].replace("__VA_ARGS__", found[2] or "") if found else line)
    return "\n".join([*types, *text])


def test_the_page_shows_the_generated_loop() -> None:
    python, cpp = code_blocks()
    kernel = KERNEL + "".join(f"    {line}\n" for line in python.splitlines())
    with planning():
        _, source = planned(load(kernel, block_dim=256), 90, 256)
    assert squeezed(expanded(source)) == squeezed(cpp)
