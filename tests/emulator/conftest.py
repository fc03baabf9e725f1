"""One emulator for a test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulator.emulator import Emulator, find_compiler


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Compiled once; tests are skipped where there is no C++ compiler."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    machine = Emulator(tmp_path_factory.mktemp("emulator"), compiler)
    yield machine
    machine.close()
