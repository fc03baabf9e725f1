"""What a person sees: the page in headless Chromium, in both themes, wide and narrow. Skipped where it is missing."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.reports.records import hostile, run
from warp_tiles.reports.html import DARK, LIGHT
from warp_tiles.reports.page import page

FACTS = {"script": "/a/rather/long/folder/with/a/script/that/trains/something.py", "versions": "warp_tiles 1, Warp 2"}
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
# every visible line of text with its place; those of one element that overlap others; and the width of the page
MEASURE = """<script>
const lines = [];
const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (!node.data.trim() || parent.closest("title, thead") && innerWidth < 720 || parent.closest("title")) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const r of range.getClientRects())
    if (r.width) lines.push({text: node.data, left: r.left, right: r.right, top: r.top, bottom: r.bottom});
}
const overlaps = [];
lines.forEach((a, i) => lines.slice(i + 1).forEach(b => {
  const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  if (width > 1 && height > 4) overlaps.push([a.text, b.text]);
}));
const outside = lines.filter(a => a.right > innerWidth + 1 || a.left < 0).map(a => a.text);
const found = {width: innerWidth, needs: document.documentElement.scrollWidth, lines: lines.length, overlaps, outside};
top.document.title = JSON.stringify(found);
</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    """Chromium's command. Without one, the test is skipped."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("chromium is not installed")
    return found


def browse(chromium: str, folder: Path, text: str, *options: str) -> str:
    """Open a page, and return what Chromium prints."""
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    command = [chromium, *OPTIONS, f"--user-data-dir={folder / 'profile'}", *options, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured(chromium: str, folder: Path, text: str, width: int) -> Any:
    """What a script finds in a page, which for this one purpose has no policy."""
    bare = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", f"{MEASURE}</body>")
    # a window is at least 500 pixels wide, a frame may be narrower
    frame = f'<iframe width="{width}" height="900" style="border: 0" srcdoc="{html.escape(bare)}"></iframe>'
    printed = browse(chromium, folder, f"<title></title>{frame}", "--window-size=1400,1000", "--dump-dom")
    title = re.search(r"<title>(.*?)</title>", printed)
    assert title is not None
    return json.loads(html.unescape(title[1]))


@pytest.mark.parametrize("name", ["run", "hostile"])
@pytest.mark.parametrize("width", [1280, 400])
def test_no_text_overlaps_another_or_leaves_the_page(chromium: str, tmp_path: Path, width: int, name: str) -> None:
    text = page({"run": run, "hostile": hostile}[name](), "Run of something.py with warp_tiles", FACTS)
    found = measured(chromium, tmp_path, text, width)
    assert found["width"] == width
    assert found["lines"] > 100
    assert found["needs"] <= width, "the page scrolls to the side"
    assert found["overlaps"] == []
    assert found["outside"] == []


def test_the_measurement_finds_an_overlap_and_a_wide_page(chromium: str, tmp_path: Path) -> None:
    more = f'<p style="position: absolute; top: 20px">over it</p><p style="white-space: nowrap">{"w " * 900}'
    wide = page(run(), "title", FACTS).replace("<main>", f"<main>{more}")
    found = measured(chromium, tmp_path, wide, 400)
    assert found["needs"] > 400
    assert any("over it" in pair for pair in found["overlaps"])


def test_no_script_runs_in_the_page(chromium: str, tmp_path: Path) -> None:
    text = page(run(), "title", FACTS).replace("</body>", "<script>document.title = 'ran'</script></body>")
    printed = browse(chromium, tmp_path, text, "--dump-dom")
    assert "<title>title</title>" in printed
    assert "forward 8x12x4" in printed


@pytest.mark.parametrize(("theme", "colours"), [("light", LIGHT), ("dark", DARK)])
def test_each_theme_has_its_colours(chromium: str, tmp_path: Path, theme: str, colours: dict[str, str]) -> None:
    from matplotlib.image import imread

    picture = tmp_path / "page.png"
    setting = f"--blink-settings=preferredColorScheme={('dark', 'light').index(theme)}"
    options = (setting, "--window-size=600,1400", f"--screenshot={picture}")
    browse(chromium, tmp_path, page(run(), "title", FACTS), *options)
    pixels = (imread(picture)[:, :, :3] * 255).round().astype(int).reshape(-1, 3) @ (1 << 16, 1 << 8, 1)
    shown = {f"#{pixel:06x}" for pixel in set(pixels.tolist())}
    assert f"#{pixels[0]:06x}" == colours["page"]
    assert {colours[name] for name in ("panel", "text", "compile", "link", "wait")} <= shown
