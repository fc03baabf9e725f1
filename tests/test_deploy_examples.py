"""The workflow and the Dockerfile of examples/deploy, as far as they can be checked without GitHub and Docker."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement

from tools.project import pyproject
from warp_tiles import settings
from warp_tiles.cli import CONTEXT, commands

PAGE = Path(__file__).resolve().parents[1] / "docs" / "deployment.md"
FOLDER = Path(__file__).resolve().parents[1] / "examples" / "deploy"
TEXTS = {path.name: path.read_text() for path in FOLDER.iterdir()}
# the words after warp-tiles, up to the end of the line
COMMAND = re.compile(r"(?<![\w-])warp-tiles ((?:[a-z]+ )+.*)$", re.MULTILINE)


def shell_commands(text: str) -> list[list[str]]:
    """Commands of warp-tiles outside comments."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [shlex.split(match[1]) for match in COMMAND.finditer(lines) if "install" not in match[0]]


def parse(words: list[str]) -> click.Context:
    """Parse a command line as click does."""
    command: click.Command = commands
    while isinstance(command, click.Group) and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    return command.make_context("warp-tiles", list(words), **CONTEXT)  # click keeps the first help option


def test_the_commands_of_the_workflow_parse() -> None:
    found = shell_commands(TEXTS["workflow.yml"])
    assert [words[0] for words in found] == ["bundle"]
    context = parse(found[0])
    assert context.params["archs"] == (80, 90)
    assert context.params["file"] == Path("app.bundle")


def test_the_command_of_the_image_parses() -> None:
    (line,) = re.findall(r'^CMD \["warp-tiles", (.*)\]$', TEXTS["Dockerfile"], re.MULTILINE)
    words = [word.strip().strip('"') for word in line.split(",")]
    with settings.override(policy="auto"):
        configured = settings.configured()
        try:
            context = parse(words)
            assert context.params["script"] == "app.py"
            assert settings.configured()["bundle"] == Path("app.bundle")
        finally:
            settings.configure(bundle=None)
    assert configured == {"policy": "auto"}


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
