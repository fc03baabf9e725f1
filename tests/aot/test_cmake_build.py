"""From a plan to a bundle with CMake: builds, rebuilds and refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.aot.manifests import FACTOR, SOLVE, TINY
from warp_tiles import settings
from warp_tiles.build.engine import Engine
from warp_tiles.errors import ToolchainError
from warp_tiles.gemm.problem import Role
from warp_tiles.heuristics.choose import choose
from warp_tiles.heuristics.solver import choose as choose_solver
from warp_tiles.plan.planning import ModulePlan, PlannedVariant
from warp_tiles.solver.variant import SolverVariant, Variant
from warp_tiles.toolchain.search import find_toolchain

ROOT = Path(__file__).resolve().parents[2]
TALL = replace(TINY, m=16)
NOTHING_TO_DO = "ninja: no work to do."

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
needs_ninja = pytest.mark.skipif(shutil.which("ninja") is None, reason="no ninja")


@pytest.fixture(autouse=True, scope="module")
def _toolchain() -> None:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(f"no toolchain: {error.message}")


class Project:
    """A CMake build folder.

    Args:
        folder: Folder of all files.
        source: Folder of CMakeLists.txt.
        python_path: Folder in which Python finds the package.
        generator: CMake's name of the generator.
    """

    def __init__(self, folder: Path, source: Path, python_path: Path, generator: str = "Ninja") -> None:
        self.manifest = folder / "plan.json"
        self.build_folder = folder / "build"
        self._folder = folder
        self._configure = ["cmake", "-G", generator, "-S", str(source), "-B", "build"]
        self._configure += [f"-DPython3_EXECUTABLE={sys.executable}", "-DWARP_TILES_CHECK_KERNELS=OFF"]
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "CMAKE_GENERATOR"},
            "PYTHONPATH": os.pathsep.join([str(python_path), os.environ.get("PYTHONPATH", "")]),
            "WARP_CACHE_PATH": str(folder / "warp"),
            "WARP_TILES_CACHE_DIR": str(folder / "unused"),
        }

    def plan(self, *variants: Variant, provider: str = "cublasdx") -> None:
        """Write the manifest."""
        configs = [
            choose_solver(v) if isinstance(v, SolverVariant) else choose(v) if provider == "mma" else None
            for v in variants
        ]
        planned = tuple(
            PlannedVariant(v, Role.FORWARD, "tile_matmul", "k", ("k",), True, "", provider, tile_config=config)
            for v, config in zip(variants, configs)
        )
        module = ModulePlan("m", 90, 32, ("k",), planned)
        self.manifest.write_text(json.dumps({"modules": [module.to_json()]}))

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command. Returns its output and error output."""
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert (done.returncode == 0) == check, done.stdout
        return done.stdout

    def configure(self, *options: str, check: bool = True) -> str:
        """Run CMake's first step."""
        return self.run(*self._configure, *options, check=check)

    def build(self) -> tuple[list[str], str]:
        """Run CMake's second step. Returns the compiled variants, ``<symbol>_<provider>``, and the output."""
        output = self.run("cmake", "--build", "build")
        return [line.split()[-1] for line in output.splitlines() if "LTO-IR wt_" in line], output


class RefusingExecutor(Executor):
    """An executor for tests in which nothing may be compiled."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        raise AssertionError("something was compiled")


def names(*variants: Variant, provider: str = "cublasdx") -> list[str]:
    """Names of the files and targets of variants."""
    return sorted(f"{variant.symbol}_{provider}" for variant in variants)


def hits(bundle: Path, cache_folder: Path, *variants: Variant, provider: str = "cublasdx") -> list[bool]:
    """Import a bundle and get variants from the engine. Returns True for each one that was cached."""
    with settings.override(cache_dir=cache_folder, provider=provider):
        engine = Engine(executor=RefusingExecutor())
        try:
            engine.cache.import_bundle(bundle)
            artifacts = [future.result() for future in engine.start(variants).values()]
            assert engine.cache.counters.builds == 0
        finally:
            engine.close()
    assert all(artifact.payload and artifact.symbol == artifact.variant.symbol for artifact in artifacts)
    return [artifact.hit for artifact in artifacts]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the package in the layout of an installed wheel."""
    package = tmp_path / "installed folder" / "warp_tiles"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "warp_tiles", package, ignore=ignored)
    shutil.copytree(ROOT / "kernels", package / "kernels", ignore=ignored)
    (package / "cmake").mkdir()
    shutil.copy(ROOT / "CMakeLists.txt", package / "cmake")
    return package.parent


@needs_ninja
@pytest.mark.slow
def test_a_plan_becomes_a_bundle_that_leaves_nothing_to_compile(tmp_path: Path, installed: Path) -> None:
    source = installed / "warp_tiles" / "cmake"
    project = Project(tmp_path, source, installed)
    assert project.run(sys.executable, "-m", "warp_tiles.aot", "folder").strip() == str(source)
    project.plan(TINY, TALL, TINY)
    assert "2 variants" in project.configure("-DWARP_TILES_MANIFEST=plan.json")
    built, _ = project.build()
    assert sorted(built) == names(TINY, TALL)
    bundle = project.build_folder / "warp_tiles_bundle.tar"
    imported = json.loads(project.run(sys.executable, "-m", "warp_tiles", "cache", "import", str(bundle), "--json"))
    assert imported["added"] == 2
    assert hits(bundle, tmp_path / "cache", TINY, TALL) == [True, True]

    assert NOTHING_TO_DO in project.build()[1]
    (project.build_folder / "variants" / f"{names(TALL)[0]}.json").touch()
    assert project.build()[0] == names(TALL)
    project.configure()
    assert NOTHING_TO_DO in project.build()[1]

    time.sleep(0.01)
    (installed / "warp_tiles" / "kernels" / "cublasdx" / "mma_tile.cuh").touch()  # with equal content
    assert sorted(project.build()[0]) == names(TINY, TALL)
    time.sleep(0.01)
    (installed / "warp_tiles" / "gemm" / "variant.py").touch()  # only the depfile names it
    assert len(project.build()[0]) == 2
    assert NOTHING_TO_DO in project.build()[1]

    project.plan(TINY)  # CMake detects the changed plan, and keeps the variants that are still needed
    built, output = project.build()
    assert built == []
    assert "warp_tiles_bundle.tar: 1 variants" in output


def built_by_mma(folder: Path, installed: Path, *variants: Variant) -> Project:
    """A project after its build. Its bundle has every variant of its plan, which names the provider ``mma``."""
    project = Project(folder, installed / "warp_tiles" / "cmake", installed)
    project.plan(*variants, provider="mma")
    assert f"{len(variants)} variants" in project.configure("-DWARP_TILES_MANIFEST=plan.json")
    assert sorted(project.build()[0]) == names(*variants, provider="mma")
    bundle = project.build_folder / "warp_tiles_bundle.tar"
    for provider in ("mma", "auto"):
        assert hits(bundle, folder / "cache", *variants, provider=provider) == [True] * len(variants)
    assert NOTHING_TO_DO in project.build()[1]
    return project


@needs_ninja
@pytest.mark.slow
def test_a_plan_of_mma_becomes_a_bundle_that_leaves_nothing_to_compile(tmp_path: Path, installed: Path) -> None:
    project = built_by_mma(tmp_path, installed, TINY, TALL)
    kernels = installed / "warp_tiles" / "kernels"
    time.sleep(0.01)
    (kernels / "arch" / "mma.cuh").touch()  # with equal content
    assert sorted(project.build()[0]) == names(TINY, TALL, provider="mma")
    (kernels / "cublasdx" / "mma_tile.cuh").touch()
    assert NOTHING_TO_DO in project.build()[1], "a header of another provider does not matter"
    time.sleep(0.01)
    (installed / "warp_tiles" / "heuristics" / "choose.py").touch()
    assert len(project.build()[0]) == 2
    assert NOTHING_TO_DO in project.build()[1]

    project.plan(TINY, provider="cublasdx")  # another provider of the same variant is another file
    assert project.build()[0] == names(TINY)


@needs_ninja
@pytest.mark.slow
def test_a_plan_of_solvers_becomes_a_bundle_that_leaves_nothing_to_compile(tmp_path: Path, installed: Path) -> None:
    project = built_by_mma(tmp_path, installed, FACTOR, SOLVE)
    kernels = installed / "warp_tiles" / "kernels"
    time.sleep(0.01)
    (kernels / "gemm" / "block_gemm.cuh").touch()
    assert NOTHING_TO_DO in project.build()[1], "products have their own sources"
    (kernels / "solver" / "cholesky.cuh").touch()
    assert sorted(project.build()[0]) == names(FACTOR, SOLVE, provider="mma")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_variants_of_two_archs_are_built_with_make_from_a_checkout(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    project = Project(folder, ROOT, folder / "nowhere", "Unix Makefiles")
    project.plan(TINY)
    project.configure("-DWARP_TILES_MANIFEST=plan.json", "-DWARP_TILES_ARCHS=80;90")
    built, _ = project.build()
    assert len(built) == 2
    assert project.build()[0] == []
    variants = [replace(TINY, arch=arch) for arch in (80, 90)]
    assert sorted(built) == names(*variants)
    assert hits(project.build_folder / "warp_tiles_bundle.tar", tmp_path / "cache", *variants) == [True, True]


@needs_ninja
def test_errors_have_a_message_and_a_remedy(tmp_path: Path) -> None:
    project = Project(tmp_path, ROOT, ROOT)

    def refusal(*options: str) -> str:
        output = project.configure("-DWARP_TILES_MANIFEST=plan.json", *options, check=False)
        assert "CMake Error" in output
        assert "Remedy:" in output
        assert "Traceback" not in output
        return output

    assert "cannot be read" in refusal()
    project.manifest.write_text('{"modules": [')
    assert "is not JSON" in refusal()
    project.manifest.write_text('{"modules": [{"variants": [{"colour": 1}]}]}')
    assert "unknown field 'colour'" in refusal()
    project.plan(TINY)
    assert "'90a' is not a compute capability" in refusal("-DWARP_TILES_ARCHS=80;90a")
    assert "does not compile for sm_99" in refusal("-DWARP_TILES_ARCHS=99")


@needs_ninja
def test_a_python_without_the_package_is_an_error(tmp_path: Path, installed: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec "{os.path.realpath(sys.executable)}" -I -S "$@"\n')
    bare.chmod(0o755)
    project = Project(tmp_path, installed / "warp_tiles" / "cmake", installed)
    output = project.configure(f"-DPython3_EXECUTABLE={bare}", check=False)
    assert f"{bare} has no package warp_tiles" in output
    assert "Remedy: pip install warp-tiles" in output
    assert "Traceback" not in output


@needs_ninja
@pytest.mark.slow
def test_without_a_manifest_the_kernels_are_checked(tmp_path: Path) -> None:
    project = Project(tmp_path, ROOT, ROOT)
    project.configure()
    targets = project.run("cmake", "--build", "build", "--target", "help")
    assert "kernels:" in targets
    assert "bundle:" not in targets
    assert NOTHING_TO_DO in project.build()[1]
    output = project.run("ctest", "--test-dir", "build", "--output-on-failure")
    assert "kernels_compile" in output
    # ctest 4 omits the number of failures if there are none
    assert re.search(r"100% tests passed(, 0 tests failed)? out of 2", output)
