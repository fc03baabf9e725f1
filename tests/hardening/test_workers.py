"""Compiler processes that die, grow or are numerous, also while they compile a module of Warp."""

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
from tests.nightly import some
from tests.store.warp_modules import compiled, enabled, records, text
from tests.waiting import until
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
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-m", "warp_tiles.compile.worker"], **pipes) as process:
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


# ---- modules of Warp: the same bytes, and one message

PHASES = {
    "request read": "worker.run = lambda request, libraries: os.kill(os.getpid(), 9)",
    "compiling": """
def answer(request, libraries):
    threading.Timer(0.1, os.kill, (os.getpid(), 9)).start()
    return original(request, libraries)
original, worker.run = worker.run, answer
""",
    "half a reply": """
def send(stream, answer):
    data = pickle.dumps(answer)
    stream.write(struct.pack("<Q", len(data)) + data[: len(data) // 2])
    stream.flush()
    os.kill(os.getpid(), 9)
worker.send = send
""",
    "no memory for the library": "resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))",
    "no memory for the compiler": "resource.setrlimit(resource.RLIMIT_AS, (500 << 20, 500 << 20))",
    "a memory error": "def answer(request, libraries): raise MemoryError\nworker.run = answer",
}


AT_START = "import os, pickle, resource, struct, threading\nfrom warp_tiles.compile import worker\n"


def let_workers(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Run code in each compiler process that starts from now on."""
    start = "from warp_tiles.compile.worker import main"
    assert start in pool_module._BOOTSTRAP
    changed = pool_module._BOOTSTRAP.replace(start, f"{AT_START}{code}\n{start}")
    monkeypatch.setattr(pool_module, "_BOOTSTRAP", changed)


@pytest.mark.parametrize("phase", some(PHASES, 2, "slow"))
def test_a_killed_worker_costs_one_message(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = load(text())
    expected = compiled(module, tmp_path / "warp")
    let_workers(monkeypatch, PHASES[phase])
    with enabled(tmp_path / "cache"):
        assert compiled(module, tmp_path / "out") == expected
        (record,) = records()
    assert [phase["name"] for phase in record["phases"]] == ["look_up_module", "link_by_warp"]
    (message,) = [r.message for r in caplog.records if "in this process" in r.message]
    assert message.startswith(f"Warp compiles module {module.__name__} in this process: ")
    assert "memory" in phase or "a compiler process ended with exit status -9 during a build" in message


@pytest.mark.slow
def test_a_worker_that_dies_after_its_reply_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    modules = load(text(1)), load(text(2))
    expected = [compiled(module, tmp_path / module.__name__) for module in modules]
    answered = "send = worker.send\nworker.send = lambda *answer: (send(*answer), os.kill(os.getpid(), 9))"
    let_workers(monkeypatch, answered)
    workers: list[Any] = []
    start = pool_module._Process.start

    def started(process: Any) -> None:
        start(process)
        workers.append(process._process)

    monkeypatch.setattr(pool_module._Process, "start", started)
    with enabled(tmp_path / "cache"):
        for module, files in zip(modules, expected, strict=True):
            assert compiled(module, tmp_path / "out" / module.__name__) == files
            # the next request may not meet the end of this worker
            until(lambda: all(worker.poll() is not None for worker in workers))
    assert len({worker.pid for worker in workers}) == 2
    assert [r.message for r in caplog.records if "in this process" in r.message] == []
