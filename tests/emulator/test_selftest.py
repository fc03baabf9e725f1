"""The emulator's self-test, built by CMake with ``-DWARP_TILES_EMULATOR=ON`` and run by ctest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator.emulator import find_compiler
from warp_tiles.compile.search import find_toolchain
from warp_tiles.errors import ToolchainError

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, *command: str) -> str:
    """Run a command. Returns its output, stderr included."""
    environment = {name: value for name, value in os.environ.items() if name != "CMAKE_GENERATOR"}
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("ninja") is None, reason="no cmake or no ninja")
def test_the_program_is_built_and_passes(tmp_path: Path) -> None:
    if find_compiler() is None:
        pytest.skip("no C++ compiler")
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(f"no toolchain: {error.message}")
    options = [f"-DPython3_EXECUTABLE={sys.executable}", "-DWARP_TILES_EMULATOR=ON", "-DWARP_TILES_CHECK_KERNELS=OFF"]
    run(tmp_path, "cmake", "-G", "Ninja", "-S", str(ROOT), "-B", "build", *options)
    output = run(tmp_path, "ctest", "--test-dir", "build", "-R", "emulator", "-V")
    assert "100% tests passed" in output
    assert output.count(" passed\n") == 13
    assert "emulator_selftest" in output
