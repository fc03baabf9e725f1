"""The workflow and the Dockerfile of examples/deploy, as far as they can be checked without GitHub and Docker.

test_printed_commands.py runs their commands.
"""

import re
import shlex
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.project import pyproject
from warp_tiles import settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "deployment.md"
FOLDER = Path(__file__).resolve().parents[1] / "examples" / "deploy"
TEXTS = {path.name: path.read_text() for path in FOLDER.iterdir()}


@pytest.mark.parametrize("name", TEXTS)
def test_the_settings_exist(name: str) -> None:
    named = set(re.findall(r"\bWARP_TILES_[A-Z_]+\b", TEXTS[name])) - {"WARP_TILES_KEY"}  # the name of a secret
    assert named <= set(settings.ENVIRONMENT.values())
    assert named


def test_the_image_installs_what_a_deployed_machine_imports() -> None:
    """test_bundles.py runs with these packages alone."""
    (line,) = re.findall(r"pip install --no-cache-dir (warp-lang .*) \\$", TEXTS["Dockerfile"], re.MULTILINE)
    assert set(line.split()) == {"warp-lang", "numpy", "click", "filelock", "platformdirs", "rich", "cryptography"}
    (words,) = re.findall(r"^\$ pip install (warp-lang .*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    needed = [Requirement(text) for text in pyproject()["project"]["dependencies"] if "platform_system" not in text]
    wanted = {(item.name, str(item.marker or "")) for item in (*needed, Requirement("cryptography"))}
    assert {(item.name, str(item.marker or "")) for item in map(Requirement, shlex.split(words))} == wanted
