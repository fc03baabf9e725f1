"""The colours of both themes: contrast by the formula of WCAG 2.2, computed from the style's variables."""

from __future__ import annotations

import itertools
import re

import pytest

from warp_tiles.reports.html import DARK, LIGHT, STYLE

BACKGROUNDS = ("page", "panel")
ENOUGH = 4.5  # WCAG 2.2, success criterion 1.4.3


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def variables(block: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block))


def themes() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE)
    return {"light": variables(light), "dark": variables(dark)}


def test_the_style_has_both_themes() -> None:
    assert themes() == {"light": LIGHT, "dark": DARK}
    assert set(LIGHT) == set(DARK)
    assert "@media (prefers-color-scheme: dark) { :root" in STYLE


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_and_bars_have_contrast_to_both_backgrounds(theme: str) -> None:
    colours = themes()[theme]
    marks = set(colours) - set(BACKGROUNDS) - {"edge"}  # edges only decorate
    assert len(marks) == 8
    for mark, background in itertools.product(sorted(marks), BACKGROUNDS):
        found = contrast(colours[mark], colours[background])
        assert found >= ENOUGH, f"{mark} on {background}: {found:.2f}"
