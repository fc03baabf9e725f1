"""Compiler processes: results, errors and crashes."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from pathlib import Path

import pytest

from tests.interpreter import REPOSITORY, python
from tests.waiting import until
from warp_tiles.compile import pool as pool_module
from warp_tiles.compile import worker
from warp_tiles.compile.compiler import Compiled, CompileRequest, LinkRequest
from warp_tiles.compile.module import WarpCompileRequest, warp_headers_folder, warp_library
from warp_tiles.compile.pool import PROCESS_BYTES, CompilerPool, free_memory_bytes, result_of
from warp_tiles.errors import BuildError, LinkError, ToolchainError, WorkerError

LTO_IR = b"\xedCN\x7f"  # the first bytes of NVRTC's LTO-IR

FLAGS = ("-arch=sm_90", "--std=c++17")
GOOD = CompileRequest("good.cu", "__device__ int good() { return 1; }", FLAGS, (), "the function good")
BAD = CompileRequest("bad.cu", "__device__ int bad() { return nothing; }", FLAGS, (), "the function bad")


@pytest.fixture(scope="module")
def shared() -> Iterator[CompilerPool]:
    """One process for the tests that leave it running."""
    with CompilerPool(1) as pool:
        yield pool


@pytest.fixture
def own() -> Iterator[CompilerPool]:
    with CompilerPool(1) as pool:
        yield pool


def process_of(pool: CompilerPool) -> subprocess.Popen[bytes]:
    (holder,) = pool._processes
    assert holder._process is not None
    return holder._process


def test_a_function_is_compiled_in_another_process_without_a_cache_of_the_driver(shared: CompilerPool) -> None:
    """NVRTC's own cache uses the driver."""
    result = shared.submit(GOOD).result(60)
    assert result.payload.startswith(LTO_IR)
    assert result.compiler.startswith("NVRTC ")
    assert result.seconds > 0
    process = process_of(shared)
    assert process.pid != os.getpid()
    assert b"CUDA_CACHE_DISABLE=1" in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")


def test_both_kinds_of_requests_are_accepted(shared: CompilerPool) -> None:
    text = 'extern __device__ int good(); extern "C" __global__ void k(int* p) { *p = good(); }'
    kernel = shared.submit(CompileRequest("k.cu", text, FLAGS, (), "k")).result(60)
    function = shared.submit(GOOD).result(60)
    linked = shared.submit(LinkRequest("m", (kernel.payload, function.payload), "sm_90", "cubin")).result(60)
    assert linked.payload.startswith(b"\x7fELF")
    with pytest.raises(LinkError, match="module m could not be linked for sm_90") as caught:
        shared.submit(LinkRequest("m", (b"junk",), "sm_90", "cubin")).result(60)
    assert caught.value.log


def test_a_compile_error_arrives_complete(shared: CompilerPool) -> None:
    with pytest.raises(BuildError, match="the function bad could not be compiled") as caught:
        shared.submit(BAD).result(60)
    error = caught.value
    assert "nothing" in error.log
    assert "bad.cu" in error.log
    assert "--reproduce" in error.remedy
    assert BAD.source in error.remedy
    assert shared.submit(GOOD).result(60).payload  # the process lives on


def test_reproduce_compiles_with_the_options_of_the_first_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "own headers"
    folder.mkdir()
    good = CompileRequest("good.cu", '#include "header.cuh"\n', (*FLAGS, "--define-macro=VALUE=1"), (str(folder),), "f")
    (folder / "header.cuh").write_text("__device__ int f() { return VALUE; }\n")
    path = tmp_path / "good.cu"
    path.write_text(good.text)
    assert worker.main(["--reproduce", str(path)]) == 0
    assert re.search(r"good\.cu: \d+ bytes of LTO-IR in [\d.]+ s with NVRTC", capsys.readouterr().out)
    path.write_text(replace(good, include_dirs=()).text)
    assert worker.main(["--reproduce", str(path)]) == 1
    assert "header.cuh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--reproduce", "{}"], "// flags: "),
        *((words, "--reproduce FILE") for words in (["--bogus"], ["--reproduce"], ["--reproduce", "a", "b"])),
    ],
)
def test_other_arguments_print_the_usage(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bare.cu").write_text(GOOD.source)
    assert worker.main([word.format(tmp_path / "bare.cu") for word in arguments]) == 2
    assert text in capsys.readouterr().err


# ---- crashes


def test_a_process_that_dies_during_or_between_requests_is_replaced(own: CompilerPool) -> None:
    own.submit(GOOD).result(60)
    victim = process_of(own)
    os.kill(victim.pid, signal.SIGSTOP)
    future = own.submit(GOOD)
    until(lambda: not own._idle)
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(ToolchainError, match="exit status -9 during a build") as caught:
        future.result(60)
    assert "doctor" in caught.value.remedy
    assert own.submit(GOOD).result(60).payload
    second = process_of(own)
    assert second.pid != victim.pid
    second.kill()
    second.wait(10)
    assert own.submit(GOOD).result(60).payload


def test_a_process_compiles_at_one_optimization_level(own: CompilerPool) -> None:
    """After level 0, the compiler of CUDA 13.1 to 13.4 makes wrong code for sm_120 (NVIDIA/warp#1944)."""
    quick = replace(GOOD, optimization_level=0)

    def process_after(request: CompileRequest | LinkRequest) -> int:
        own.submit(request).result(60)
        return process_of(own).pid

    link = LinkRequest("m", (own.submit(GOOD).result(60).payload,), "sm_90", "ptx")
    first = process_after(GOOD)
    assert [process_after(request) for request in (link, GOOD)] == [first, first]
    second = process_after(quick)
    assert [process_after(request) for request in (link, quick)] == [second, second]
    assert len({first, second, process_after(GOOD)}) == 3


def test_of_two_processes_the_one_of_the_same_level_is_used() -> None:
    def processes() -> set[int]:
        return {holder._process.pid for holder in pool._processes if holder._process is not None}

    with CompilerPool(2) as pool:
        for level in (0, 3):
            pool.submit(replace(GOOD, optimization_level=level)).result(60)
        before = processes()
        for level in (0, 3, 3, 0):
            pool.submit(replace(GOOD, optimization_level=level)).result(60)
        assert processes() == before
        assert len(before) == 2


def test_a_process_that_cannot_start_is_a_toolchain_error(
    own: CompilerPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(ToolchainError):
        own.submit(GOOD).result(60)


def test_closing_ends_the_processes_and_cancels_waiting_requests() -> None:
    pool = CompilerPool(1)
    pool.submit(GOOD).result(60)
    process = process_of(pool)
    os.kill(process.pid, signal.SIGSTOP)
    running = pool.submit(GOOD)
    until(lambda: not pool._idle)
    waiting = [pool.submit(GOOD) for _ in range(3)]
    closer = threading.Thread(target=pool.close)
    closer.start()
    try:
        for future in waiting:
            with pytest.raises(CancelledError):
                future.result(10)
    finally:
        closer.join(20)
    assert not closer.is_alive()
    with pytest.raises(WorkerError, match="exit status"):  # the running request fails
        running.result(20)
    assert process.poll() == -signal.SIGKILL
    pool.close()  # a second call has no effect


def test_a_request_that_a_thread_took_before_the_pool_was_closed_starts_nothing(own: CompilerPool) -> None:
    own.submit(GOOD).result(60)
    threads = own._threads
    assert threads is not None
    own.close()
    for _ in range(2):  # while it is closed, and when it is open again
        with pytest.raises(WorkerError, match="closed during a build"):
            own._run(GOOD, threads, order=0)
        own.submit(GOOD).result(60)
        assert len(own._processes) == 1


def test_a_process_that_was_closed_during_its_build_is_not_used_again(own: CompilerPool) -> None:
    running = own.submit(GOOD)
    until(lambda: bool(own._processes) and not own._idle)
    own.close()
    with contextlib.suppress(WorkerError):  # unless it was done before
        running.result(60)
    assert own.submit(GOOD).result(60).payload
    until(lambda: len(own._idle) == 1)
    assert own._idle == own._processes


def test_a_retired_pool_ends_its_processes_after_its_requests(own: CompilerPool) -> None:
    own.submit(GOOD).result(60)
    process = process_of(own)
    requests = [own.submit(GOOD) for _ in range(2)]
    own.retire()
    assert [request.result(60).payload[:4] for request in requests] == [LTO_IR] * 2
    until(lambda: process.poll() is not None)
    assert own._processes == []
    assert own.submit(GOOD).result(60).payload, "a thread may still hold it"
    until(lambda: own._processes == [])


# ---- the protocol


def test_compiler_output_does_not_break_the_protocol() -> None:
    code = (
        "import os\n"
        "from warp_tiles.compile import worker\n"
        "compiled = worker.run\n"
        "def noisy(request, *libraries):\n"
        "    print('hello from Python', flush=True); os.write(1, b'hello from C\\n')\n"
        "    os.system('echo hello from a child')\n"
        "    return compiled(request, *libraries)\n"
        "worker.run = noisy\n"
        "worker.serve()\n"
    )
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, **pipes) as process:
        for _ in range(2):
            worker.send(process.stdin, (GOOD, 0))  # type: ignore[arg-type]
            succeeded, reply = worker.receive(process.stdout)  # type: ignore[arg-type]
            assert succeeded
            assert reply.payload.startswith(LTO_IR)
        process.stdin.close()
        assert process.stdout.read() == b""
        noise = process.stderr.read().decode()
        assert process.wait(10) == 0
    assert noise.count("hello from Python") == noise.count("hello from C") == noise.count("hello from a child") == 2


def test_a_message_that_ends_early_is_an_end_of_file(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    with open(path, "wb") as stream:
        worker.send(stream, GOOD)
    whole = path.read_bytes()
    with open(path, "rb") as stream:
        assert worker.receive(stream) == GOOD
        with pytest.raises(EOFError):
            worker.receive(stream)
    for size in (1, 7, 8, 9, len(whole) - 1):
        path.write_bytes(whole[:size])
        with open(path, "rb") as stream, pytest.raises(EOFError):
            worker.receive(stream)


# ---- size of the pool, and other properties


@pytest.mark.parametrize(("free", "jobs"), [(0, 1), (-1, 1), (5 * PROCESS_BYTES - 1, 4), (1 << 50, 8), (None, 8)])
def test_short_memory_means_fewer_processes(free: int | None, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "available_cores", lambda: 8)
    monkeypatch.setattr(pool_module, "free_memory_bytes", lambda: free)
    assert CompilerPool().jobs == jobs
    assert CompilerPool(16).jobs == 16, "the user's number counts"


def test_an_unexpected_error_is_a_worker_error_and_chooses_no_other_linker(shared: CompilerPool) -> None:
    future: Future[Compiled] = Future()
    future.set_exception(RuntimeError("the pool died"))
    with pytest.raises(WorkerError, match="the pool died"):
        result_of(future)
    with pytest.raises(WorkerError, match="the compiler process failed: UnicodeEncodeError"):
        shared.submit(replace(GOOD, source="\ud800")).result(60)


def test_an_interrupted_program_ends_at_once() -> None:
    code = """
import time
from warp_tiles.util.threads import DaemonThreads
threads = DaemonThreads(1, "t")
for _ in range(20):
    threads.submit(time.sleep, 600)
raise KeyboardInterrupt
"""
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)


def with_precompiled_headers(block_dim: int) -> WarpCompileRequest:
    """A small module of Warp, for which NVRTC precompiles Warp's headers: a file of 80 MB."""
    text = f'#define WP_NO_CRT\n#define WP_TILE_BLOCK_DIM {block_dim}\n#include "builtin.h"\n'
    text += 'extern "C" __global__ void k(float* a) { a[0] = 1.f; }\n'
    library, headers, switches = str(warp_library()), str(warp_headers_folder()), (False, False, True, True)
    name = f"module_{block_dim}.cu"
    return WarpCompileRequest(library, name, text.encode(), 90, "a", "cubin", headers, 3, switches)


@pytest.mark.slow
def test_a_process_keeps_few_precompiled_headers_and_none_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pool = CompilerPool(1)
    for count in range(1, worker._PRECOMPILED + 2):
        pool.submit(with_precompiled_headers(32 * count)).result(60)
        assert len(list(tmp_path.rglob("*.pch"))) == min(count, worker._PRECOMPILED)
    process_of(pool).kill()  # its files go with the next request
    process_of(pool).wait()
    pool.submit(with_precompiled_headers(64)).result(60)
    assert len(list(tmp_path.rglob("*.pch"))) == 1
    pool.close()
    assert not list(tmp_path.iterdir())


def test_the_files_of_a_process_go_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = """
import os
from tests.compile.test_pool import CompilerPool, with_precompiled_headers
pool = CompilerPool(1)
pool.submit(with_precompiled_headers(32)).result(60)
os.kill(os.getpid(), 9)
"""
    python("-W", "ignore", "-c", code, status=-signal.SIGKILL, TMPDIR=str(tmp_path))
    until(lambda: not list(tmp_path.iterdir()), 20)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_process_whose_temporary_folder_was_removed_is_replaced(
    replaced: bool, own: CompilerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own.submit(GOOD).result(60)
    (folder,) = tmp_path.iterdir()
    process = process_of(own)
    shutil.rmtree(folder)
    (tmp_path / "another").mkdir()
    if replaced:
        folder.symlink_to(tmp_path / "another")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))  # none can be made
    assert own.submit(GOOD).result(60).payload.startswith(LTO_IR)
    assert process_of(own) is not process
    assert not list((tmp_path / "another").iterdir())
    folder.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("free", "most", "used", "cached", "expected"),
    [
        ("1000 kB", None, 0, 0, 1_024_000),
        ("1000 kB", "max", 0, 0, 1_024_000),
        ("1000 kB", "500000", 400_000, 300_000, 400_000),
        ("1000 kB", "5000000", 1_000_000, 0, 1_024_000),
        (None, None, 0, 0, None),
    ],
    ids=["no container", "no limit", "a limit, and files in memory", "a limit above the free memory", "not known"],
)
def test_free_memory_is_that_of_machine_and_container(
    free: str | None, most: str | None, used: int, cached: int, expected: int | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert not Path("/proc/meminfo").exists() or (free_memory_bytes() or 0) > 1 << 20, "of this machine"
    folder = "/sys/fs/cgroup/memory."
    texts = {"/proc/meminfo": f"MemTotal:       2000 kB\nMemAvailable:   {free}\n"} if free else {}
    texts |= {f"{folder}max": most, f"{folder}current": str(used)} if most else {}
    texts |= {f"{folder}stat": f"anon 1\ninactive_file {cached}\n"} if most else {}
    for name, text in texts.items():
        (tmp_path / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name[1:]).write_text(text)
    monkeypatch.setattr(pool_module, "Path", lambda name: tmp_path / name[1:])
    assert free_memory_bytes() == expected
