"""``warp-tiles doctor`` and invalid input, in their own processes."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import warp

from tests.integration.commands import command, json_of, usage_error
from tests.integration.helpers import run_python
from warp_tiles import __version__, cli, override
from warp_tiles.compile.find import find_toolchain
from warp_tiles.gemm.hardware import MULTIPROCESSORS


def test_doctor(tmp_path: Path) -> None:
    findings = {item["subject"]: item for item in json_of(command("doctor", cache=tmp_path / "lto"))["findings"]}
    assert set(findings) >= {
        "python", "platform", "warp", "internals", "toolchain", "archs", "headers", "gpu", "settings", "cache",
    }  # fmt: skip
    assert {item["state"] for item in findings.values()} <= {"ok", "note"}
    assert "NVRTC" in findings["toolchain"]["detail"]
    assert findings["archs"]["detail"].startswith("Warp and NVRTC know sm_75, ")
    assert "nvidia-mathdx" in findings["headers"]["detail"]
    assert re.fullmatch(r"this Warp has all \d+ members that warp_tiles uses", findings["internals"]["detail"])
    table = command("doctor", cache=tmp_path / "lto", as_json=False)
    assert table.returncode == 0
    assert "toolchain" in table.stdout


def test_doctor_refuses_a_cache_that_others_can_write(tmp_path: Path) -> None:
    cache = tmp_path / "lto"
    cache.mkdir()
    cache.chmod(0o777)
    findings = {item["subject"]: item for item in json_of(command("doctor", cache=cache), status=1)["findings"]}
    assert findings["cache"]["state"] == "problem"
    assert findings["cache"]["remedy"]
    shared = command("doctor", cache=cache, WARP_TILES_CACHE_SHARED="1")
    assert {item["subject"]: item["state"] for item in json_of(shared)["findings"]}["cache"] == "ok"


def test_the_doctor_names_caches_of_former_versions(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir(0o700)
    (tmp_path / "v1/digests.json").write_bytes(bytes(4000))
    with override(cache_dir=tmp_path):
        found = {finding.subject: finding for finding in cli.diagnose()}["cache"]
    assert found.state == "note"
    assert "; 4.0 kB of former versions, which nothing reads" in found.detail
    assert "`warp-tiles cache gc`" in found.remedy


def test_the_doctor_names_architectures_that_nvrtc_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain = replace(find_toolchain(), nvrtc_version=(12, 9), archs=(75, 80, 86, 87, 89, 90, 100, 103, 120, 121))
    monkeypatch.setattr(cli, "find_toolchain", lambda warp_toolkit: toolchain)
    monkeypatch.setattr(warp, "get_cuda_supported_archs", lambda: [70, *MULTIPROCESSORS])
    found = {finding.subject: finding for finding in cli.diagnose()}["archs"]
    assert (found.state, found.detail) == ("note", "NVRTC 12.9 cannot serve sm_88, sm_107, sm_110, which Warp knows")
    assert "install a newer NVRTC" in found.remedy


def test_the_doctor_names_architectures_that_the_table_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warp, "get_cuda_supported_archs", lambda: [90, 130])
    found = {finding.subject: finding for finding in cli.diagnose()}["archs"]
    assert (found.state, found.detail) == ("problem", "this warp_tiles lacks sm_130")


# the search finds no header, as in an environment without the wheels
NO_HEADERS = """
from warp_tiles.compile import find

find._header_folders = lambda: iter(())
"""


@pytest.mark.slow
def test_doctor_without_headers(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_HEADERS)
    done = run_python(["-m", "warp_tiles", "doctor", "--json"], first_on_path=[tmp_path])
    findings = {item["subject"]: item for item in json_of(done)["findings"]}
    assert findings["toolchain"]["state"] == "ok"
    assert findings["headers"]["state"] == "note", "own templates need none"
    assert "the provider own needs none, cublasdx is not available" in findings["headers"]["detail"]
    assert "pip install nvidia-cuda-nvcc-cu12" in findings["headers"]["remedy"]


# the search finds no library, as in an environment without the compiler
NO_COMPILER = """
from warp_tiles.compile import find

find._LibraryFile.paths = lambda file: iter(())
"""


def test_doctor_without_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_COMPILER)
    done = run_python(["-m", "warp_tiles", "doctor", "--json"], first_on_path=[tmp_path])
    findings = {item["subject"]: item for item in json_of(done, status=1)["findings"]}
    assert findings["toolchain"]["state"] == "problem"
    assert "pip install nvidia-cuda-nvrtc" in findings["toolchain"]["remedy"]
    assert findings["headers"]["state"] == "ok"


@pytest.mark.parametrize("words", [("run", "x.py"), ("cache", "info")])
def test_an_unknown_variable(words: tuple[str, ...], tmp_path: Path) -> None:
    message = usage_error(command(*words, WARP_TILES_FOO="1"))
    assert "WARP_TILES_FOO" in message
    assert "WARP_TILES_PROVIDER" in message, "the valid ones are listed"


def test_doctor_names_an_unknown_variable() -> None:
    done = command("doctor", WARP_TILES_FOO="1")
    assert done.returncode in (1, 2)
    assert "WARP_TILES_FOO" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_help() -> None:
    assert __version__ in command("--version", as_json=False).stdout
    text = command("--help", as_json=False).stdout
    assert all(name in text for name in ("run", "plan", "compile", "cache", "doctor"))
    summary = "Compile what SCRIPT launches into the cache, so that its next start finds it, also without a GPU."
    assert summary in " ".join(text.split()), "no summary is cut"
