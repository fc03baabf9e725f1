"""Compiler processes that end while they compile a module of Warp: the same bytes, and one message."""

from pathlib import Path
from typing import Any

import pytest

import warp_tiles
from tests.integration.helpers import load
from tests.nightly import some
from tests.store.warp_modules import compiled, enabled, records, text
from tests.waiting import until
from warp_tiles.compile import pool as pool_module


@pytest.fixture(autouse=True)
def _disabled() -> None:
    warp_tiles.disable()


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
