"""The emulators, one of each kind for a test run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.emulator.emulator import Emulator, find_compiler
from tests.emulator.native import FOLDER
from tests.integration.helpers import WARP_VERSION

if TYPE_CHECKING:
    from tests.emulator.module import Machine

# these have no headers or launches of Warp, or those of older ones too
ANY_WARP = {"test_module_faults", "test_solver_gradients", "test_solvers", "test_tensor_matmul"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests of whole modules under an older Warp."""
    old = pytest.mark.skipif(WARP_VERSION < (1, 19), reason="headers and launches of Warp 1.19 are emulated")
    for item in items:
        is_here = item.path.parent == FOLDER and item.path.stem not in ANY_WARP
        if is_here and "machine" in getattr(item, "fixturenames", ()):
            item.add_marker(old)


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The host's C++ compiler. Without one, tests are skipped; with REQUIRE_EMULATOR set, as in CI, they fail.

    The workers of pytest-xdist share what it compiles of the emulators.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("EMULATOR_CACHE", str(tmp_path_factory.getbasetemp().parent / "emulators"))
    compiler = find_compiler()
    if compiler is None:
        if os.environ.get("REQUIRE_EMULATOR"):
            pytest.fail("no C++ compiler, and REQUIRE_EMULATOR is set")
        pytest.skip("no C++ compiler")
    return compiler


@pytest.fixture(scope="session")
def machine(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The emulator of whole modules."""
    from tests.emulator.module import Machine

    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    if "clang" in version:
        pytest.skip("modules are compiled with g++")
    machine = Machine(tmp_path_factory.mktemp("modules"), compiler)
    yield machine
    machine.close()


@pytest.fixture(scope="session")
def emulator(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """The emulator of device functions, compiled once."""
    machine = Emulator(tmp_path_factory.mktemp("emulator"), compiler)
    yield machine
    machine.close()
