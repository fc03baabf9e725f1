"""Compiler processes that die, grow or are numerous."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.compile.test_pool import GOOD
from tests.integration.helpers import gemm, load
from warp_tiles._warp.modules import compile_module
from warp_tiles.compile import pool as pool_module
from warp_tiles.compile.compiler import CompileRequest
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.compile.worker import send
from warp_tiles.errors import WorkerError


def kill(monkeypatch: pytest.MonkeyPatch, kind: str, most: int) -> list[str]:
    """Kill the process of the first requests of a kind. Returns a list that gets an item for each."""
    original, killed = pool_module._Process.run, []

    def run(process: Any, request: object) -> Any:
        if isinstance(request, CompileRequest) != (kind == "compile") or len(killed) >= most:
            return original(process, request)
        killed.append(kind)
        process.start()
        process._process.kill()
        with monkeypatch.context() as during:
            during.setattr(process, "start", lambda: None)  # it would replace a process that has ended already
            return original(process, request)

    monkeypatch.setattr(pool_module._Process, "run", run)
    return killed


@pytest.fixture
def module(tmp_path: Path) -> Any:
    with warp_tiles.override(cache_dir=tmp_path / "cache"), warp_tiles.enabled():
        yield wp.get_module(load(gemm(decorator="@wp.kernel(enable_backward=False)")).__name__)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compile", "link"])
def test_a_request_whose_process_was_killed_is_repeated(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    killed = kill(monkeypatch, kind, 1)
    cubin = compile_module(module, 90, 64, tmp_path / "out")
    assert killed == [kind]
    (row,) = [row for row in warp_tiles.report()["modules"] if row.get("output") == cubin.name]
    assert (row["linker"], row["linker_reason"]) == ("warp_tiles", "")


@pytest.mark.slow
def test_a_link_that_dies_twice_leaves_no_cubin_of_warp(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(monkeypatch, "link", 2)
    with pytest.raises(WorkerError, match="ended with exit status -9"):
        compile_module(module, 90, 64, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.cubin"))
    assert compile_module(module, 90, 64, tmp_path / "out").is_file()


def test_a_process_is_replaced_after_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_REQUESTS_OF_A_PROCESS", 3)
    pids = []
    with CompilerPool(1) as pool:
        for _ in range(7):
            pool.start_processes(1)
            (process,) = pool._processes
            process.start()
            pids.append(process._process.pid)
            assert pool.submit(GOOD).result().payload
    assert [len(set(pids[at : at + 3])) for at in (0, 3)] == [1, 1]
    assert len(set(pids)) == 3


def test_a_process_whose_reply_is_not_read_ends_silently() -> None:
    command = [sys.executable, "-m", "warp_tiles.compile.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        send(process.stdin, (GOOD, 0))
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


def test_the_working_folder_is_no_source_of_code(tmp_path: Path) -> None:
    """Also without the files of an environment that import more at the start of the interpreter."""
    for name in ("types", "struct", "pickle", "threading", "ast", "select"):
        (tmp_path / f"{name}.py").write_text("import os; os._exit(77)")
    package = Path(pool_module.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-S", "-c", pool_module._BOOTSTRAP, str(package), str(os.getpid())],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
