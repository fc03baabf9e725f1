"""The example at the end of each command's help, and the completion of the shell."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.interpreter import python
from warp_tiles.cli import CONTEXT, EXAMPLES, every_command

COMMANDS = dict(every_command())


def test_each_example_belongs_to_a_command() -> None:
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_ends_with_an_example_that_calls_the_command(path: str) -> None:
    """Whether it runs is a matter of test_printed_commands.py."""
    context = click.Context(COMMANDS[path], info_name=f"warp-tiles {path}".strip(), **CONTEXT)  # as its parent has it
    assert COMMANDS[path].get_help(context).splitlines()[-2:] == ["  Example:", f"    {EXAMPLES[path]}"]
    assert f"warp-tiles {path}".strip() in EXAMPLES[path]


# ---- completion

COMMAND = [sys.executable, "-m", "warp_tiles"]


def completion_script(shell: str) -> str:
    return python("-m", "warp_tiles", _WARP_TILES_COMPLETE=f"{shell}_source").stdout


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_of_a_shell_can_be_read_by_it(shell: str, tmp_path: Path) -> None:
    (tmp_path / "complete").write_text(completion_script(shell))
    assert "_WARP_TILES_COMPLETE" in (tmp_path / "complete").read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", str(tmp_path / "complete")], check=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_command(tmp_path: Path) -> None:
    (tmp_path / "complete").write_text(completion_script("bash"))
    (tmp_path / "warp-tiles").write_text(f"#!/bin/sh\nexec {shlex.join(COMMAND)}\n")
    (tmp_path / "warp-tiles").chmod(0o755)
    press_tab = (
        f"source {shlex.quote(str(tmp_path / 'complete'))}; COMP_WORDS=(warp-tiles cache ex); COMP_CWORD=2; "
        '_warp_tiles_completion warp-tiles; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", press_tab], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["explain", "export"], done.stderr
