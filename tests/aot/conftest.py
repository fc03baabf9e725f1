"""Fixtures of the tests of ahead-of-time builds."""

from __future__ import annotations

import pytest

from warp_tiles.aot import bundle as aot
from warp_tiles.compile.compiler import Compiled, CompileRequest
from warp_tiles.errors import BuildError, ToolchainError
from warp_tiles.toolchain.search import find_toolchain
from warp_tiles.toolchain.store import ToolchainStore


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> ToolchainStore:
    """The toolchain of this environment. Without one, the test is skipped."""
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(f"no toolchain: {error.message}")
    return ToolchainStore(tmp_path_factory.mktemp("toolchain"))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the compile requests. The fake compiler rejects functions that promise 16 bytes."""
    names: list[str] = []

    def compile_(request: CompileRequest) -> Compiled:
        names.append(request.name)
        if "_al16_16_16_" in request.name:
            raise BuildError("refused", log="error: alignment")
        return Compiled(request.name.encode(), 0.5, "", "NVRTC 12.9")

    monkeypatch.setattr(aot, "compile_to_ltoir", compile_)
    return names
