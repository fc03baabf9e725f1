"""Builds by the processes of a real Dask cluster: equal results, workers that are killed, and workers that differ."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import warp_tiles
from tests.bench import problem_of
from tests.cluster.conftest import start_worker
from tests.integration.helpers import compile_module, gemm, load
from tests.waiting import until
from warp_tiles import settings
from warp_tiles.build.engine import Engine
from warp_tiles.build.executor import CODE, COMPILER, DEVICE_SOURCES, ExecutorPool, Fact, Installation
from warp_tiles.compile.compiler import CompileRequest
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.compile.sources import kernels_folder
from warp_tiles.compile.toolchain import ToolchainFacts
from warp_tiles.errors import RefusedWorkerError, WorkerError
from warp_tiles.providers.own import OwnProvider

psutil = pytest.importorskip("psutil", reason="Dask brings psutil")

FLAGS = ("-arch=sm_90", "--std=c++17")
GOOD = CompileRequest("good.cu", "__device__ int good() { return 1; }", FLAGS, (), "the function good")
_FUNCTIONS = "\n".join(
    f"__device__ float f{n}(float* x) {{ float s = 0; for (int i = 0; i < {n}; ++i) s += x[i] * {n}.5f; return s; }}"
    for n in range(9000)
)
SLOW = CompileRequest("slow.cu", _FUNCTIONS, FLAGS, (), "9000 functions")  # a second or more


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(ToolchainFacts(tmp_path_factory.mktemp("facts")))


@pytest.fixture
def pool(workers: Any, installation: Installation) -> ExecutorPool:
    return ExecutorPool(workers.get_executor(), installation)


@pytest.fixture(scope="module")
def slow_payload() -> bytes:
    with CompilerPool(1) as local:
        return local.submit(SLOW).result(60).payload


# ---- results


@pytest.mark.slow
def test_a_module_is_the_same_as_without_a_cluster(workers: Any, tmp_path: Path) -> None:
    built = {}
    for name, executor in (("cluster", workers.get_executor()), ("here", None)):
        with settings.override(cache_dir=tmp_path / name), warp_tiles.enabled(executor=executor):
            cubin, record = compile_module(
                load(gemm(name="same", decorator="@wp.kernel(enable_backward=False)")), tmp_path / f"{name}_out"
            )
            assert (record["lto_builds"], record["linker"]) == (1, "warp_tiles")
            built[name] = cubin.read_bytes()
    assert built["cluster"] == built["here"]


@pytest.mark.slow
def test_both_workers_compile(workers: Any, tmp_path: Path) -> None:
    engine = Engine(warp_toolkit=(13, 4), executor=workers.get_executor())
    with settings.override(cache_dir=tmp_path):
        problems = [problem_of(size, "float16", threads=64) for size in (16, 24, 32, 40, 48, 56)]
        built = {problem: future.result(60) for problem, future in engine.start(problems).items()}
        again = {problem: future.result(60) for problem, future in engine.start(problems).items()}
    engine.close()
    assert not any(artifact.hit for artifact in built.values())
    assert all(artifact.hit for artifact in again.values()), "they are in the cache of this process"
    children = workers.run(lambda: len(psutil.Process().children()))
    assert len(children) == 2


# ---- workers that are killed


def compiling_worker(client: Any) -> int:
    """The process of a worker that compiles now: its compiler process is at work."""
    tasks = {address: keys for address, keys in client.processing().items() if keys}
    for pid in client.run(os.getpid, workers=list(tasks)).values() if tasks else ():
        for child in psutil.Process(pid).children():
            before = sum(child.cpu_times()[:2])
            time.sleep(0.05)
            if sum(child.cpu_times()[:2]) > before:
                return int(pid)
    return 0


@pytest.mark.slow
def test_a_worker_killed_while_it_compiles_loses_nothing(workers: Any, pool: ExecutorPool, slow_payload: bytes) -> None:
    futures = [pool.submit(SLOW) for _ in range(2)]
    victim = until(lambda: compiling_worker(workers))
    os.kill(victim, signal.SIGKILL)
    assert [future.result(60).payload for future in futures] == [slow_payload] * 2
    assert victim not in workers.run(os.getpid).values()


@contextmanager
def allowed_failures(client: Any, count: int) -> Iterator[None]:
    def change(dask_scheduler: Any, count: int) -> int:
        before, dask_scheduler.allowed_failures = dask_scheduler.allowed_failures, count
        return int(before)

    before = client.run_on_scheduler(change, count=count)
    try:
        yield
    finally:
        client.run_on_scheduler(change, count=before)


@pytest.mark.slow
def test_a_request_that_kills_too_many_workers_is_an_error(workers: Any, pool: ExecutorPool) -> None:
    with allowed_failures(workers, 0):
        future = pool.submit(SLOW)
        os.kill(until(lambda: compiling_worker(workers)), signal.SIGKILL)
        with pytest.raises(WorkerError, match="KilledWorker") as caught:
            future.result(60)
    assert "several workers died" in caught.value.remedy


@pytest.mark.slow
def test_the_engine_asks_once_more_after_such_an_error(
    workers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(warp_toolkit=(13, 4), executor=workers.get_executor())
    monkeypatch.setattr(OwnProvider, "text", lambda self, recipe: f"{_FUNCTIONS}\n// {recipe.symbol}")
    with settings.override(cache_dir=tmp_path, provider="own"), allowed_failures(workers, 0):
        (future,) = engine.start([problem_of(16, threads=64)]).values()
        os.kill(until(lambda: compiling_worker(workers)), signal.SIGKILL)
        assert future.result(60).payload
    engine.close()


# ---- workers that differ


@pytest.mark.slow
def test_a_worker_with_another_compiler_is_refused(workers: Any, installation: Installation) -> None:
    address = next(iter(workers.run(os.getpid)))

    def replace_compiler() -> None:
        from warp_tiles.build import executor as module

        original = module.Installation._fact
        other = module.Fact("f" * 64, "12.3")
        module.Installation._fact = lambda self, name: other if name == "NVRTC" else original(self, name)  # type: ignore[method-assign]
        module.Installation.original = original  # type: ignore[attr-defined]

    def restore() -> None:
        from warp_tiles.build import executor as module

        module.Installation._fact = module.Installation.original  # type: ignore[attr-defined, method-assign]

    workers.run(replace_compiler, workers=[address])
    try:
        pool = ExecutorPool(workers.get_executor(workers=[address]), installation)
        with pytest.raises(RefusedWorkerError) as caught:
            pool.submit(GOOD).result(60)
    finally:
        workers.run(restore, workers=[address])
    assert address in caught.value.message
    assert "its NVRTC is 12.3 (SHA-256 ffffffffffff), and this process has 13" in caught.value.message


@pytest.fixture
def foreign(workers: Any, tmp_path: Path) -> Iterator[str]:
    """The address of a third worker, which imports a changed copy of warp_tiles."""
    folder, known = tmp_path / "foreign", set(workers.nthreads())
    ignored = shutil.ignore_patterns("__pycache__", "kernels")
    shutil.copytree(Path(warp_tiles.__file__).parent, folder / "warp_tiles", ignore=ignored)
    shutil.copytree(kernels_folder(), folder / "kernels")
    for changed in ("kernels/gemm/block_gemm.cuh", "warp_tiles/compile/compiler.py"):
        with open(folder / changed, "a", encoding="utf-8") as file:
            file.write("\n")
    process = start_worker(workers.scheduler.address, folder)
    try:
        yield until(lambda: next(iter(set(workers.nthreads()) - known), ""), 60)
    finally:
        process.kill()
        process.wait()
        until(lambda: len(workers.nthreads()) <= 2)


@pytest.mark.slow
def test_a_worker_with_other_sources_is_refused_and_nothing_is_stored(
    workers: Any, foreign: str, installation: Installation, tmp_path: Path
) -> None:
    engine = Engine(warp_toolkit=(13, 4), executor=workers.get_executor(workers=[foreign]))
    with settings.override(cache_dir=tmp_path, provider="own"):
        (future,) = engine.start([problem_of(16, "float16", threads=64)]).values()
        with pytest.raises(RefusedWorkerError) as caught:
            future.result(60)
        assert engine.build_context(settings.current()).cache.entries() == ()
    engine.close()
    own = dict(installation.facts((CODE, DEVICE_SOURCES, COMPILER)))
    for name in (CODE, DEVICE_SOURCES):
        assert f"its {name} is " in caught.value.message
        assert str(own[name]) in caught.value.message
    assert "its NVRTC" not in caught.value.message
    assert isinstance(own[COMPILER], Fact)
