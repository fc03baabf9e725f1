"""``--scheduler`` and lists of architectures on the command line."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.integration.commands import command, json_of
from warp_tiles.build.executor import SAME_PACKAGES
from warp_tiles.cli import commands
from warp_tiles.cli.plan_commands import connected, require_same_installation
from warp_tiles.compile.toolchain import ToolchainFacts
from warp_tiles.errors import RefusedWorkerError, ToolchainError, WorkerError

distributed = pytest.importorskip("distributed", reason="distributed is not installed")

NOBODY = "tcp://127.0.0.1:9"  # the port of the discard service, on which nothing listens
# loops that load ahead need more shared memory on newer architectures
LOOP = """
import warp as wp

@wp.kernel(enable_backward=False)
def gemm(A: wp.array2d[wp.float16], B: wp.array2d[wp.float16], C: wp.array2d[wp.float32]):
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.float32)
    for step in range(A.shape[1] // 64):
        a = wp.tile_load(A, shape=(64, 64), offset=(0, step * 64))
        b = wp.tile_load(B, shape=(64, 64), offset=(step * 64, 0))
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c)

wp.set_module_options({"block_dim": 128})
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "loop.py"
    path.write_text(LOOP)
    return path


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_matrix_of_architectures_is_the_same_on_a_cluster(workers: Any, script: Path, tmp_path: Path) -> None:
    words = ("compile", "--arch", "75,90", "-o")
    here = json_of(command(*words, tmp_path / "here", script, cache=tmp_path / "lto"))["modules"]
    address = workers.scheduler.address
    done = command(*words, tmp_path / "sent", "--scheduler", address, script, cache=tmp_path / "lto_sent")
    sent = json_of(done)["modules"]
    assert [row["arch"] for row in sent] == [row["arch"] for row in here] == [75, 90]
    assert [row["lto_builds"] for row in sent] == [1, 0], "on sm_90 the loop has stages, so it needs no function"
    assert outputs(tmp_path / "sent") == outputs(tmp_path / "here")
    (old,) = (tmp_path / "here" / "sm_75").glob("*.meta")
    (new,) = (tmp_path / "here" / "sm_90").glob("*.meta")
    assert old.name == new.name
    assert json.loads(old.read_text()) != json.loads(new.read_text()), "one file could not serve both"


@pytest.mark.parametrize("archs", ["x", "", "90,", "0", "-80", "80;90", "1_0"])
def test_a_malformed_list_is_a_usage_error(archs: str, script: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(commands, ["compile", f"--arch={archs}", "-o", str(tmp_path / "out"), str(script)])
    assert done.exit_code == 2
    assert "--arch" in done.output
    assert "80,90" in done.output


# ---- schedulers that cannot be used


@pytest.mark.slow
def test_an_unreachable_scheduler_is_an_error(script: Path, tmp_path: Path) -> None:
    done = command("compile", "-o", tmp_path / "out", "--scheduler", NOBODY, script, as_json=False)
    assert done.returncode == 2
    assert f"the scheduler {NOBODY} cannot be reached: Timed out trying" in done.stderr
    assert "Remedy: give the address that `dask scheduler` prints" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", ["bogus://host:1", "tls://127.0.0.1:9", "nohost.invalid:8786"])
def test_an_address_that_cannot_be_used_is_an_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_tiles.cli.plan_commands._CONNECT_S", 1.0)
    with pytest.raises(WorkerError, match="cannot be reached") as caught, connected(address):
        pass
    assert address in caught.value.message


def test_a_scheduler_without_workers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_tiles.cli.plan_commands._WORKERS_S", 0.2)
    with distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0", silence_logs=False) as empty:
        address = empty.scheduler_address
        with pytest.raises(WorkerError, match="has no worker") as caught, connected(address):
            pass
    assert "dask worker" in caught.value.remedy


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ToolchainError) as caught, connected(NOBODY):
        pass
    assert "warp-tiles[dask]" in caught.value.remedy


@pytest.mark.slow
def test_workers_that_differ_are_named_before_the_first_request(workers: Any, tmp_path: Path) -> None:
    store = ToolchainFacts(tmp_path / "facts")
    with connected(workers.scheduler.address) as client:
        require_same_installation(client, store)
        monkey = ToolchainFacts(tmp_path / "facts")
        monkey.compiler_digest = lambda: "e" * 64  # type: ignore[method-assign]
        with pytest.raises(RefusedWorkerError, match="2 of 2 workers are refused") as caught:
            require_same_installation(client, monkey)
    for address in workers.nthreads():
        assert f"{address}: its NVRTC is " in caught.value.message
    assert "(SHA-256 eeeeeeeeeeee)" in caught.value.message
    assert caught.value.remedy == SAME_PACKAGES
