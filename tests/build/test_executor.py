"""Executors of the user: what travels to a worker, whose reply counts, and errors of the executor."""

import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import problem_of
from tests.compile.test_pool import BAD, GOOD, LTO_IR
from warp_tiles import errors, settings
from warp_tiles.api import enable, is_enabled
from warp_tiles.build import executor as module
from warp_tiles.build.engine import Engine
from warp_tiles.build.executor import (
    CODE,
    COMPILER,
    CUDA_HEADERS,
    DEVICE_SOURCES,
    LINKER,
    WARP_HEADERS,
    ExecutorPool,
    Fact,
    Installation,
    Job,
    Reply,
    differences,
    run_job,
)
from warp_tiles.compile.compiler import Compiled, CompileRequest, LinkRequest
from warp_tiles.compile.module import warp_headers_folder
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.compile.toolchain import ToolchainFacts
from warp_tiles.errors import BuildError, RefusedWorkerError, SettingError, ToolchainError, WorkerError
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.providers.base import NvrtcProvider
from warp_tiles.providers.cublasdx import CublasdxProvider
from warp_tiles.providers.own import OwnProvider


class Fake(Executor):
    """Answers with a function of the job, in this thread."""

    def __init__(self, reply: Callable[[Job], Any]) -> None:
        self.reply = reply
        self.jobs: list[Job] = []

    def submit(self, function: Any, /, job: Job) -> Future[Any]:  # type: ignore[override]
        self.jobs.append(job)
        future: Future[Any] = Future()
        try:
            future.set_result(self.reply(job))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ToolchainFacts:
    return ToolchainFacts(tmp_path_factory.mktemp("facts"))


@pytest.fixture(scope="module")
def installation(store: ToolchainFacts) -> Installation:
    return Installation(store)


def request_of(provider: NvrtcProvider[Any], problem: GemmProblem) -> CompileRequest:
    return provider.request(provider.recipes(problem)[0])


def compiled_with(facts: Any = None, **fields: Any) -> Callable[[Job], Reply]:
    def reply(job: Job) -> Reply:
        found = job.expected if facts is None else facts(job.expected)
        return Reply("tcp://worker:1", found, **{"compiled": Compiled(b"ir", 0.1, "NVRTC 12.9"), **fields})

    return reply


def of_another_installation(expected: Any) -> Any:
    return tuple((name, Fact("b" * 64)) for name, _ in expected)


# ---- what travels


def test_requests_travel_without_paths_of_this_machine_and_get_them_back(
    store: ToolchainFacts, installation: Installation
) -> None:
    problem = problem_of(16, "float16", threads=64)
    native = warp_headers_folder()
    assert native is not None
    module = replace(GOOD, include_dirs=(os.fspath(native),))
    expected = [
        (request_of(OwnProvider(store), problem), (CODE, COMPILER, DEVICE_SOURCES)),
        (request_of(CublasdxProvider(store), problem), (CODE, COMPILER, DEVICE_SOURCES, CUDA_HEADERS)),
        (module, (CODE, COMPILER, WARP_HEADERS)),
    ]
    for request, needed in expected:
        portable = installation.portable(request)
        assert portable is not None
        sent, names = portable
        assert names == needed
        assert isinstance(sent, CompileRequest)
        assert not any(map(os.path.isabs, sent.include_dirs))
        assert installation.localized(sent) == request
        assert sent.text.splitlines()[1:] == request.text.splitlines()[1:]
        assert os.fspath(Path(__file__).resolve().parents[2]) not in repr(sent)


def test_a_link_needs_the_same_linker_and_an_unknown_folder_is_an_error(installation: Installation) -> None:
    request = LinkRequest("m", (b"ir",), "sm_90", "cubin")
    assert installation.portable(request) == (request, (CODE, LINKER))
    assert installation.localized(request) == request
    with pytest.raises(ToolchainError, match="/etc"):
        installation.localized(replace(GOOD, include_dirs=("/etc",)))


def test_a_request_with_a_folder_of_the_user_is_compiled_here(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "mine.cuh").write_text("__device__ int mine() { return 1; }")
    request = replace(GOOD, source='#include "mine.cuh"', include_dirs=(str(tmp_path),))
    executor = Fake(compiled_with())
    pool = ExecutorPool(executor, installation, 1)
    assert pool.submit(request).result(60).payload.startswith(LTO_IR)
    assert executor.jobs == []
    pool.close()


def test_a_job_can_be_pickled_and_equal_requests_are_different_jobs(installation: Installation) -> None:
    """Dask remembers errors of equal jobs."""
    executor = Fake(compiled_with())
    pool = ExecutorPool(executor, installation)
    for _ in range(2):
        assert pool.submit(GOOD).result(0).payload == b"ir"
    first, second = executor.jobs
    assert pickle.loads(pickle.dumps((run_job, first))) == (run_job, first)
    assert first != second
    assert replace(first, submission=second.submission) == second
    assert first.__dask_tokenize__() != second.__dask_tokenize__()


# ---- facts


def test_facts_follow_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_tiles.build.executor.kernels_folder", lambda: tmp_path / "kernels")
    (tmp_path / "kernels").mkdir()
    header = tmp_path / "kernels" / "gemm.cuh"
    header.write_text("int one;")
    here = Installation(ToolchainFacts(tmp_path / "facts"))
    (before,) = here.facts((DEVICE_SOURCES,))
    assert here.facts((DEVICE_SOURCES,)) == (before,)
    header.write_text("int two;")
    assert here.facts((DEVICE_SOURCES,)) != (before,)
    header.unlink()
    assert not dict(here.facts((DEVICE_SOURCES,)))[DEVICE_SOURCES].digest
    missing = ((COMPILER, Fact("", "missing")),)
    assert "NVRTC is missing" in differences(missing, missing), "a missing part never counts as equal"
    assert differences(((COMPILER, Fact("a" * 64, "12.9")),), ((COMPILER, Fact("a" * 64, "12.8")),)) == ""


# ---- whose reply counts


@pytest.mark.parametrize("name", [CODE, COMPILER])
def test_a_reply_of_another_installation_is_refused_by_name(installation: Installation, name: str) -> None:
    def other(expected: Any) -> Any:
        return tuple((n, Fact("b" * 64, "11.7") if n == name else fact) for n, fact in expected)

    future = ExecutorPool(Fake(compiled_with(other)), installation).submit(GOOD)
    with pytest.raises(RefusedWorkerError) as caught:
        future.result(0)
    own = dict(installation.facts((name,)))[name]
    assert "tcp://worker:1" in caught.value.message
    assert f"its {name} is 11.7 (SHA-256 bbbbbbbbbbbb), and this process has {own}" in caught.value.message
    assert "install the same versions" in caught.value.remedy


@pytest.mark.parametrize("failure", [None, BuildError("rejected", log="line 1")], ids=["result", "failure"])
def test_only_a_reply_with_proof_counts(installation: Installation, failure: BuildError | None) -> None:
    """A worker that names fewer parts, e.g. one of another release, proves nothing."""
    given = {} if failure is None else {"compiled": None, "failure": failure}

    def replied(facts: Any = None) -> object:
        return ExecutorPool(Fake(compiled_with(facts, **given)), installation).submit(GOOD).result(0)

    for facts in (lambda expected: expected[:1], of_another_installation):
        with pytest.raises(RefusedWorkerError, match="tcp://worker:1"):
            replied(facts)
    with pytest.raises(WorkerError if failure is None else BuildError, match=r"tcp://worker:1|rejected"):
        replied(lambda expected: ())
    if failure is not None:
        with pytest.raises(BuildError, match="rejected"):
            replied()


def test_a_refused_reply_is_not_asked_for_again(installation: Installation, tmp_path: Path) -> None:
    executor = Fake(compiled_with(of_another_installation))
    engine = Engine(warp_toolkit=(13, 4), executor=executor)
    with settings.override(cache_dir=tmp_path):
        (future,) = engine.start([problem_of(16, threads=64)]).values()
        with pytest.raises(RefusedWorkerError):
            future.result(60)
    assert len(executor.jobs) == 1
    assert list(tmp_path.rglob("objects/*")) == []
    engine.close()


# ---- errors of the executor


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ModuleNotFoundError("No module named 'warp_tiles'"), "install the same versions"),
        (AttributeError("module has no attribute 'run_job'"), "install the same versions"),
        (RuntimeError("the pool died"), "the executor's own log"),
    ],
)
def test_errors_of_the_executor_have_a_remedy(installation: Installation, error: Exception, remedy: str) -> None:
    def fail(job: Job) -> Reply:
        raise error

    with pytest.raises(WorkerError, match=str(error)[:20]) as caught:
        ExecutorPool(Fake(fail), installation).submit(GOOD).result(0)
    assert remedy in caught.value.remedy
    assert not isinstance(caught.value, RefusedWorkerError)


def test_an_executor_that_is_shut_down_or_gives_no_reply_is_an_error(installation: Installation) -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    for given, text in ((executor, "after shutdown"), (Fake(lambda job: 7), "the executor failed")):
        with pytest.raises(WorkerError, match=text):
            ExecutorPool(given, installation).submit(GOOD).result(0)


def test_closing_cancels_what_waits_and_leaves_the_executor(installation: Installation) -> None:
    class Never(Executor):
        sent: list[Future[Any]]

        def submit(self, function: Any, /, job: Job) -> Future[Any]:  # type: ignore[override]
            self.sent = [Future()]
            return self.sent[0]

    executor = Never()
    pool = ExecutorPool(executor, installation)
    future = pool.submit(GOOD)
    pool.close()
    with pytest.raises(WorkerError, match="cancelled"):
        future.result(0)
    assert executor.sent[0].cancelled()


def test_what_is_no_executor_is_refused() -> None:
    class Client:
        def submit(self) -> None: ...
        def get_executor(self) -> None: ...

    for given, text, remedy in ((Client(), "client", "get_executor()"), (1, "executor is 1", "")):
        with pytest.raises(SettingError, match=text) as caught:
            enable(executor=given)  # type: ignore[arg-type]
        assert remedy in caught.value.remedy
    assert not is_enabled()


# ---- a worker


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[None]:
    with settings.override(cache_dir=tmp_path / "worker"):
        yield
        for workshop in module._workshops.values():
            workshop._context.resources.close()
        module._workshops.clear()


@pytest.mark.usefixtures("worker")
def test_a_worker_compiles_like_this_process(installation: Installation, store: ToolchainFacts) -> None:
    request = request_of(OwnProvider(store), problem_of(16, "float16", threads=64))
    with ThreadPoolExecutor(2) as executor, CompilerPool(1) as local:
        pool = ExecutorPool(executor, installation)
        sent, here = pool.submit(request).result(60), local.submit(request).result(60)
        assert (sent.payload, sent.compiler) == (here.payload, here.compiler)
        with pytest.raises(BuildError, match="the function bad") as caught:
            pool.submit(BAD).result(60)
        assert 'identifier "nothing" is undefined' in caught.value.log
        pool.close()
        assert executor.submit(int, "3").result() == 3  # it was not shut down


@pytest.mark.usefixtures("worker")
def test_a_worker_does_not_compile_what_another_installation_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Workshop, "run", lambda *_: pytest.fail("it compiled"))
    reply = run_job(Job(GOOD, ((COMPILER, Fact("0" * 64, "1.0")),)))
    assert reply.compiled is None
    assert dict(reply.found)[COMPILER].version.count(".") == 1
    assert str(os.getpid()) in reply.worker


@pytest.mark.usefixtures("worker")
def test_a_worker_describes_itself_and_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(None, ((CODE, Fact("")),))
    assert dict(run_job(job).found)[CODE].digest
    monkeypatch.setenv("WARP_TILES_PROVIDER", "bogus")
    failed = run_job(job)
    assert isinstance(failed.failure, SettingError)
    assert isinstance(pickle.loads(pickle.dumps(failed)).failure, errors.SettingError)


@pytest.mark.usefixtures("worker")
def test_a_replaced_library_gets_new_compiler_processes(installation: Installation) -> None:
    job = Job(GOOD, installation.facts((CODE, COMPILER)))
    assert run_job(job).compiled is not None
    workshop = module._workshop(None)
    first = workshop._context.pool
    assert run_job(job).compiled is not None
    assert workshop._context.pool is first
    workshop._libraries = [(1, 2, 3, 4)]  # of files that were replaced since
    assert run_job(job).compiled is not None
    assert workshop._context.pool is not first
