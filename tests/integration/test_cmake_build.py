"""From a script to a bundle with CMake: builds, rebuilds and refusals."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTHING_TO_DO = "ninja: no work to do."
HELPER = "SIZE = 16\n"
SCRIPT = """
import sys

import warp as wp

import warp_tiles
from helper import SIZE


@wp.kernel(enable_backward=False)
def gemm(a: wp.array2d(dtype=wp.float32), b: wp.array2d(dtype=wp.float32), c: wp.array2d(dtype=wp.float32)):
    wp.tile_store(c, wp.tile_matmul(wp.tile_load(a, (SIZE, SIZE)), wp.tile_load(b, (SIZE, SIZE))))


if __name__ == "__main__":
    warp_tiles.enable()
    arrays = [wp.zeros((SIZE, SIZE), dtype=float) for _ in range(3)]
    wp.launch_tiled(gemm, dim=[1], inputs=arrays, block_dim=int(sys.argv[1]) if sys.argv[1:] else 64)
"""

pytestmark = [
    pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake"),
    pytest.mark.usefixtures("toolchain"),
]
needs_ninja = pytest.mark.skipif(shutil.which("ninja") is None, reason="no ninja")


class Project:
    """A CMake build folder beside a script and a module that it imports; source is the folder of CMakeLists.txt."""

    def __init__(self, folder: Path, source: Path, python_path: Path, generator: str = "Ninja") -> None:
        self.script, self.helper = folder / "script.py", folder / "helper.py"
        self.script.write_text(SCRIPT)
        self.helper.write_text(HELPER)
        self.bundle = folder / "build" / "warp_tiles.bundle"
        self._folder = folder
        self._configure = ["cmake", "-G", generator, "-S", str(source), "-B", "build"]
        self._configure += [f"-DPython3_EXECUTABLE={sys.executable}"]
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "CMAKE_GENERATOR"},
            "PYTHONPATH": os.pathsep.join([str(python_path), os.environ.get("PYTHONPATH", "")]),
            "WARP_CACHE_PATH": str(folder / "warp"),
            "WARP_TILES_CACHE_DIR": str(folder / "cache"),
        }

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

    def build(self, *, check: bool = True) -> str:
        """Run CMake's second step."""
        return self.run("cmake", "--build", "build", check=check)

    def warp_tiles(self, *words: str) -> Any:
        """Run a command, and return its JSON."""
        return json.loads(self.run(sys.executable, "-m", "warp_tiles", *words, "--json"))

    def objects(self) -> list[str]:
        """The kinds of the objects in the bundle."""
        with zipfile.ZipFile(self.bundle) as archive:
            return sorted(name.split("/")[1] for name in archive.namelist())


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
def test_a_script_becomes_a_bundle_whose_inputs_are_watched(tmp_path: Path, installed: Path) -> None:
    project = Project(tmp_path, installed / "warp_tiles" / "cmake", installed)
    project.configure("-DWARP_TILES_SCRIPT=script.py")
    project.build()
    assert NOTHING_TO_DO in project.build()
    assert project.objects() == ["ltoir", "module", "module"], "the module has a start key, too"
    assert len(list(project.bundle.parent.glob("modules/sm_90/*.cubin"))) == 1
    imported = project.warp_tiles("cache", "import", str(project.bundle))
    assert (imported["added"], imported["present"]) == (3, 0)
    project.run(
        sys.executable, "-m", "warp_tiles", "compile", "--policy", "locked", "--report", "report.json", "-o", "out",
        "script.py",
    )  # fmt: skip
    (module,) = json.loads((tmp_path / "report.json").read_text())["modules"]
    assert (module["lto_builds"], module["found"]) == (0, True), "the bundle leaves nothing to compile"
    package = installed / "warp_tiles"
    inputs = (project.script, project.helper, package / "gemm" / "problem.py", package / "kernels" / "arch" / "mma.cuh")
    for changed in inputs:
        before = changed.stat()
        changed.touch()  # with equal content
        assert "Modules of" in project.run("ninja", "-C", "build", "-n"), changed
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert NOTHING_TO_DO in project.run("ninja", "-C", "build", "-n"), changed
    project.script.touch()
    assert "Modules of" in project.build()
    assert project.objects() == ["ltoir", "module", "module"], "equal content gives equal keys"
    (tmp_path / "other.py").write_text("")
    assert NOTHING_TO_DO in project.build()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_two_archs_and_arguments_with_make_from_a_checkout(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    project = Project(folder, ROOT, folder / "nowhere", "Unix Makefiles")
    project.configure("-DWARP_TILES_SCRIPT=script.py", "-DWARP_TILES_ARCHS=80;90", "-DWARP_TILES_ARGUMENTS=32")
    assert "Modules of" in project.build()
    assert "Modules of" not in project.build()
    assert project.objects() == [*["ltoir"] * 2, *["module"] * 4]
    folders = [path.parent.name for path in sorted(project.bundle.parent.glob("modules/*/*.cubin"))]
    assert folders == ["sm_80", "sm_90"]
    assert project.warp_tiles("cache", "import", str(project.bundle))["added"] == 6
    listed = project.warp_tiles("cache", "list")["entries"]
    assert {entry["info"]["problem"]["threads"] for entry in listed} == {32}


@pytest.mark.slow
@needs_ninja
def test_errors_have_a_message_and_a_remedy(tmp_path: Path) -> None:
    project = Project(tmp_path, ROOT, ROOT)
    output = project.configure("-DWARP_TILES_MANIFEST=plan.json", check=False)
    assert "Remedy: give -DWARP_TILES_SCRIPT=" in " ".join(output.split())
    project.configure("-UWARP_TILES_MANIFEST", "-DWARP_TILES_SCRIPT=script.py", "-DWARP_TILES_ARCHS=80;9x")
    output = project.build(check=False)
    assert "arch is '9x'; give a compute capability such as 90" in output
    assert not project.bundle.exists()


@pytest.mark.slow
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
