"""The wheel: its contents, its metadata, and its use away from the checkout."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version
from trove_classifiers import classifiers, deprecated_classifiers

from tools import wheel
from tools.project import pyproject, version


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.build(tmp_path_factory.mktemp("dist"))


def test_the_sdist_has_every_file_of_the_checkout(built: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=wheel.ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout, so its files are unknown")
    (sdist,) = built.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    assert [name for name in tracked.stdout.splitlines() if (wheel.ROOT / name).exists() and name not in found] == []


def test_it_holds_the_package_and_nothing_else(built: Path) -> None:
    assert wheel.problems(wheel.names(built), wheel.sources()) == []
    assert {name.partition("/")[0] for name in wheel.names(built)} == {
        "warp_tiles",
        f"warp_tiles-{version()}.dist-info",
    }
    assert any(name.startswith("warp_tiles/kernels/") for name in wheel.names(built))


def test_the_metadata_are_complete(built: Path) -> None:
    fields = wheel.metadata(built)
    assert Version(str(fields["Version"])) == Version(version())
    assert (fields["License-Expression"], fields.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    urls = dict(str(line).split(", ", 1) for line in fields.get_all("Project-URL", []))
    assert set(urls) == {"Homepage", "Source", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith("https://") for url in urls.values())
    assert fields["Summary"]
    assert fields["Author"]


def test_the_classifiers_are_valid_and_name_the_supported_pythons(built: Path) -> None:
    given = wheel.metadata(built).get_all("Classifier", [])
    assert set(given) <= classifiers
    assert not set(given) & set(deprecated_classifiers)
    pythons = re.findall(r"Python :: (3\.\d+)$", "\n".join(given), re.MULTILINE)
    assert f">={pythons[0]}" == pyproject()["project"]["requires-python"]
    noxfile = (wheel.ROOT / "noxfile.py").read_text()
    assert [f'"{python}"' for python in pythons] == re.findall(
        r'"3\.\d+"', noxfile.split("PYTHONS = ")[1].split("]")[0]
    )


def test_the_description_has_no_link_that_only_works_in_the_checkout(built: Path) -> None:
    text = str(wheel.metadata(built).get_payload())
    readme = (wheel.ROOT / "README.md").read_text("utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) == len(re.findall(r"\]\(([^)\s]+)\)", readme)) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    own = [link for link in links if "/warp-tiles/warp-tiles/" in link]
    assert all(f"/v{version()}/" in link for link in own)
    paths = {link.split(f"/v{version()}/")[1].partition("#")[0] for link in own}
    assert [path for path in paths if not (wheel.ROOT / path).exists()] == []


PLAN = """
import pathlib, sys
import warp as wp
import warp_tiles

@wp.kernel
def gemm(a: wp.array2d(dtype=wp.float16), b: wp.array2d(dtype=wp.float16), c: wp.array2d(dtype=wp.float16)):
    x = wp.tile_load(a, shape=(16, 16))
    y = wp.tile_load(b, shape=(16, 16))
    wp.tile_store(c, wp.tile_matmul(x, y))

warp_tiles.enable()
found = warp_tiles.plan(gemm, arch=90, block_dim=64)
print(pathlib.Path(warp_tiles.__file__).parent, len(found.needed), found.needed[0].provider)
"""


@pytest.mark.slow
def test_an_installed_wheel_plans_a_module_away_from_the_checkout(built: Path, tmp_path: Path) -> None:
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "plan.py").write_text(PLAN)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", str(installed), str(built)], check=True, cwd=elsewhere)
    assert {path.name for path in installed.iterdir()} == {"bin", "warp_tiles", f"warp_tiles-{version()}.dist-info"}

    environment = {**os.environ, "PYTHONPATH": str(installed), "WARP_CACHE_PATH": str(tmp_path / "kernels")}
    environment["WARP_TILES_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run([sys.executable, "plan.py"], cwd=elsewhere, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    package, needed, provider = done.stdout.splitlines()[-1].rsplit(" ", 2)
    assert Path(package) == installed / "warp_tiles"
    assert (int(needed), provider) == (3, "own")

    command = subprocess.run(
        [str(installed / "bin" / "warp-tiles"), "--version"],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert command.stdout.split()[-1] == version()


def test_the_benchmarks_are_not_imported_by_the_package(built: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        sources = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
    imports = re.compile(r"^\s*(?:from|import) (?:benchmarks|tests|tools)\b", re.MULTILINE)
    assert [name for name, text in sources.items() if imports.search(text)] == []
