"""``warp-tiles doctor``, ``settings`` and invalid input, in their own processes."""

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import warp

from tests.integration.commands import command, json_of, usage_error
from tests.interpreter import python
from warp_tiles import __version__, cli, override
from warp_tiles.compile.find import find_toolchain
from warp_tiles.gemm.hardware import MULTIPROCESSORS


def findings_of(done: subprocess.CompletedProcess[str], status: int = 0) -> dict[str, Any]:
    return {item["subject"]: item for item in json_of(done, status)["findings"]}


def diagnosed(subject: str) -> cli.Finding:
    """What the doctor finds in this process."""
    (found,) = (finding for finding in cli.diagnose() if finding.subject == subject)
    return found


def test_doctor(tmp_path: Path) -> None:
    findings = findings_of(command("doctor", cache=tmp_path / "lto"))
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
    finding = findings_of(command("doctor", cache=cache), status=1)["cache"]
    assert finding["state"] == "problem"
    assert finding["remedy"]
    assert findings_of(command("doctor", cache=cache, WARP_TILES_CACHE_SHARED="1"))["cache"]["state"] == "ok"


def test_the_doctor_names_caches_of_former_versions(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir(0o700)
    (tmp_path / "v1/digests.json").write_bytes(bytes(4000))
    with override(cache_dir=tmp_path):
        found = diagnosed("cache")
    assert found.state == "note"
    assert "; 4.0 kB of former versions, which nothing reads" in found.detail
    assert "`warp-tiles cache gc`" in found.remedy


def test_the_doctor_names_architectures_that_nvrtc_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain = replace(find_toolchain(), nvrtc_version=(12, 9), archs=(75, 80, 86, 87, 89, 90, 100, 103, 120, 121))
    monkeypatch.setattr(cli, "find_toolchain", lambda warp_toolkit: toolchain)
    monkeypatch.setattr(warp, "get_cuda_supported_archs", lambda: [70, *MULTIPROCESSORS])
    found = diagnosed("archs")
    assert (found.state, found.detail) == ("note", "NVRTC 12.9 cannot serve sm_88, sm_107, sm_110, which Warp knows")
    assert "install a newer NVRTC" in found.remedy


def test_the_doctor_names_architectures_that_the_table_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warp, "get_cuda_supported_archs", lambda: [90, 130])
    found = diagnosed("archs")
    assert (found.state, found.detail) == ("problem", "this warp_tiles lacks sm_130")


# what the search does not find, the doctor's status, what is missing then, and what is not
LACKS = {
    "header": ("find._header_folders = lambda: iter(())", 0, ("headers", "note"), "toolchain"),
    "compiler": ("find._LibraryFile.paths = lambda file: iter(())", 1, ("toolchain", "problem"), "headers"),
}
REMEDIES = {"header": "pip install nvidia-cuda-nvcc-cu12", "compiler": "pip install nvidia-cuda-nvrtc"}


@pytest.mark.slow
@pytest.mark.parametrize("part", LACKS)
def test_doctor_in_an_environment_that_lacks_a_part(part: str, tmp_path: Path) -> None:
    change, status, (missing, state), sound = LACKS[part]
    (tmp_path / "sitecustomize.py").write_text(f"from warp_tiles.compile import find\n\n{change}\n")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    done = python("-m", "warp_tiles", "doctor", "--json", status=status, PYTHONPATH=path)
    findings = findings_of(done, status)
    assert findings[sound]["state"] == "ok"
    assert findings[missing]["state"] == state
    assert REMEDIES[part] in findings[missing]["remedy"]
    own = "the provider own needs none, cublasdx is not available"
    assert (own in findings["headers"]["detail"]) == (part == "header")


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


def test_settings_show_values_in_force_their_layers_and_variables() -> None:
    environment = {"XDG_CACHE_HOME": "/proc/none", "WARP_TILES_CACHE_DIR": "", "WARP_TILES_POLICY": "fast"}
    found = json_of(command("settings", **environment))  # values are short, so that no cell wraps
    assert found["policy"] == {"value": "fast", "layer": "environment variable WARP_TILES_POLICY"}
    assert found["linker"] == {"value": "auto", "layer": "default"}
    table = command("settings", as_json=False, WARP_TILES_RECORD_PATHS="/a:/b", **environment).stdout
    assert "environment variable WARP_TILES_POLICY" in table
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    rows = {name: (value, variable) for name, value, _, variable in cells}
    assert rows["cache_dir"] == ("/proc/none/warp_tiles", "WARP_TILES_CACHE_DIR")
    assert rows["record_paths"][0] == "/a, /b"
    assert [rows[name][0] for name in ("bundle", "remote", "trusted_keys", "target_gpu")] == ["none"] * 3 + ["this one"]
    assert (rows["cache_shared"][0], rows["async_copies"][0], rows["jobs"][0]) == ("off", "on", "0")
