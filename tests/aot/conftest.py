"""Fixtures of the tests of ahead-of-time builds."""

from __future__ import annotations

import pytest

from warp_tiles.errors import ToolchainError
from warp_tiles.toolchain.search import find_toolchain


@pytest.fixture(scope="session")
def toolchain() -> None:
    """The toolchain of this environment. Without one, the test is skipped."""
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(f"no toolchain: {error.message}")
