"""The folder in which the tests run against an installed wheel."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tools import wheel_tests
from tools.project import ROOT

FILES = ["warp_tiles/api.py", "kernels/gemm/a.cuh", "CMakeLists.txt", "tests/test_a.py", "benchmarks/kernels/a.py"]


@pytest.fixture
def sdist(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / "warp_tiles-1.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "warp_tiles-1.0", "warp_tiles-1.0")
    return tmp_path / "a.tar.gz"


def test_the_package_itself_is_left_out(sdist: Path, tmp_path: Path) -> None:
    root = wheel_tests.unpack(sdist, tmp_path / "unpacked")
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert found == {"tests/test_a.py", "benchmarks/kernels/a.py"}


def test_the_tests_that_are_left_out_exist() -> None:
    assert [name for name in wheel_tests.NEEDS_SOURCES if not (ROOT / name).exists()] == []


def test_an_editable_installation_is_refused(
    sdist: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    package = tmp_path / "elsewhere" / "warp_tiles"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    run = wheel_tests.subprocess.run

    def with_the_checkout(command: list[str], env: dict[str, str], **options: object) -> object:
        return run(command, env={**env, "PYTHONPATH": str(package.parent)}, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(wheel_tests.subprocess, "run", with_the_checkout)
    assert wheel_tests.main([str(sdist)]) == 2
    assert "which is no installed wheel" in capsys.readouterr().err
