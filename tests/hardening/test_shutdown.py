"""Launches work as long as the interpreter runs code: after the end of the main thread, and in exit handlers."""

from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.interpreter import REPOSITORY, python
from warp_tiles.build.log import BuildProgress
from warp_tiles.compile.compiler import Compiled, LinkRequest
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.errors import LinkError
from warp_tiles.util.threads import DaemonThreads, side_by_side

SCRIPT = """
import atexit, sys, threading
import numpy as np, warp as wp, warp_tiles

@wp.kernel(module="unique", enable_backward=False)
def gemm(A: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    a = wp.tile_load(A, shape=(16, 16))
    wp.tile_store(C, wp.tile_matmul(a, a))

def launch():
    a = wp.array(np.full((16, 16), 2.0), dtype=wp.float32, device="cpu")
    c = wp.zeros((16, 16), dtype=wp.float32, device="cpu")
    wp.launch_tiled(gemm, dim=[1], inputs=[a], outputs=[c], block_dim=64, device="cpu")
    assert (c.numpy() == 64).all()
    wp.compile_aot_module(gemm.module, arch=90, module_dir=sys.argv[2])
    print("built by", *{build["provider"] for row in warp_tiles.report()["modules"] for build in row["builds"]})

warp_tiles.enable()
if sys.argv[1] == "thread":
    threading.Thread(target=lambda: (threading.main_thread().join(), launch())).start()
else:
    atexit.register(launch)
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["thread", "handler"])
def test_launches_and_builds_at_the_end_of_the_interpreter(when: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {"PYTHONPATH": str(REPOSITORY), "WARP_TILES_CACHE_DIR": str(tmp_path / "cache")}
    done = python("script.py", when, "out", folder=tmp_path, **environment)
    assert "built by own" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "out").glob("*.cubin"))


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an exit handler since Python 3.12."""

    def start(_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("threading.Thread.start", start)


@pytest.mark.usefixtures("no_threads")
def test_work_is_done_where_it_is_submitted_if_no_thread_can_be_started() -> None:
    threads = DaemonThreads(2, "test")
    assert threads.submit(int, "7").result(0) == 7
    assert isinstance(threads.submit(int, "x").exception(0), ValueError)
    assert side_by_side(int, ["1", "2"], 2) == [1, 2]
    with BuildProgress().counted("a function", "on"), CompilerPool(1) as pool:
        done: Future[Compiled] = pool.submit(LinkRequest("m", (b"no LTO-IR",), "sm_90", "cubin"))
        assert isinstance(done.exception(0), LinkError)


def test_a_wait_for_cancelled_work_ends() -> None:
    threads = DaemonThreads(1, "test")
    first: Future[int] = Future()
    threads.submit(first.result)
    waiting = threads.submit(int, "1")
    threads.close()
    assert waiting.cancelled()
    from warp_tiles.util.threads import wait_all

    assert wait_all([waiting], 5.0) == {waiting}
    first.set_result(1)
