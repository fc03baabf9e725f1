"""Fixtures of the tests of ahead-of-time builds."""

from __future__ import annotations

import pytest

from warp_tiles.errors import ToolchainError
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
