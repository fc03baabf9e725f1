"""The commands of ``python -m warp_tiles.aot``: outputs that cannot be written give one message."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.aot.manifests import TINY, jobs
from tests.hardening.devices import device
from warp_tiles.aot import bundle as aot
from warp_tiles.aot import command
from warp_tiles.toolchain.store import ToolchainStore

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def description(tmp_path: Path, store: ToolchainStore) -> Path:
    """The file of one function, beside an index."""
    (name,) = aot.write_variants(tmp_path / "variants", jobs(TINY), store)
    return tmp_path / "variants" / f"{name}.json"


def refusal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> str:
    """The message of a command that fails."""
    monkeypatch.setattr(sys, "argv", ["aot", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "words",
    [
        ("variants", "--checks", "--folder", "/proc/x", "--state", "{state}"),
        ("build", "{description}", "-o", "/proc/x/y", "--state", "{state}"),
        ("build", "{description}", "-o", "{state}/f", "--depfile", "{state}/absent/d", "--state", "{state}"),
        ("pack", "{index}", "-o", "/proc/x"),
    ],
    ids=["variants", "build", "depfile", "pack"],
)
def test_an_output_that_cannot_be_written_is_named(
    description: Path,
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "state").mkdir()
    places = {"state": tmp_path / "state", "description": description, "index": description.with_name("index.json")}
    message = refusal(capsys, monkeypatch, *(word.format(**places) for word in words))
    assert message.startswith("warp-tiles: ")
    assert "cannot be written" in message
    assert "Traceback" not in message


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", ["null", "full"])
def test_a_device_is_written_to_and_not_replaced(
    description: Path,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, output = device(tmp_path, name), tmp_path / "output"
    output.symlink_to(node)
    words = ["aot", "build", str(description), "-o", str(output), "--depfile", str(node), "--state", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == (2 if name == "full" else 0)
    assert ("No space left on device" in capsys.readouterr().err) == (name == "full")
    assert stat.S_ISCHR(node.lstat().st_mode)
    assert output.is_symlink()


def test_standard_output_that_is_full(tmp_path: Path) -> None:
    with open(device(tmp_path, "full"), "wb") as full:
        words = [sys.executable, "-m", "warp_tiles.aot", "--help"]
        done = subprocess.run(words, cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b"warp-tiles: standard output cannot be written: No space left on device\n"
