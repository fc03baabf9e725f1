"""An interrupt ends a command at once, waits for a suspended process are logged, and no worker stays behind."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.hardening.damage import MUTATIONS
from tests.integration.commands import MAIN, command, json_of
from tests.interpreter import REPOSITORY, python
from tests.nightly import some
from tests.store.test_kinds import HELD
from tests.waiting import until
from warp_tiles.store import FUNCTIONS, MEASUREMENTS, Kind
from warp_tiles.util import files, trusted_folder
from warp_tiles.util.files import TEMP_PREFIX, staging
from warp_tiles.util.trusted_folder import PATIENCE_S

MANY = """
import warp as wp

def make(n):
    N = wp.constant(n)
    @wp.kernel(module="unique", enable_backward=False)
    def gemm(A: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
        a = wp.tile_load(A, shape=(N, N))
        wp.tile_store(C, wp.tile_matmul(a, a))
    return gemm

for n in range(8, 24):
    a = wp.zeros((n, n), dtype=wp.float32, device="cpu")
    wp.launch_tiled(make(n), dim=[1], inputs=[a, a], block_dim=64, device="cpu")
"""
PLAIN = """
import warp as wp

def make(n):
    N = wp.constant(n)
    @wp.kernel(module="unique")
    def plain(x: wp.array(dtype=wp.mat44)):
        for i in range(N):
            x[wp.tid()] += wp.inverse(x[i]) * wp.inverse(x[N])
    return plain

for n in range(8, 24):
    wp.launch(make(n), dim=1, inputs=[wp.zeros(99, dtype=wp.mat44, device="cpu")], device="cpu")
"""
LEFT = """
import os, signal, sys
from pathlib import Path
from warp_tiles.util.files import staging

with staging(Path(sys.argv[1])) as place:
    (place / "cubin").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
HOLDER = """
import sys, time
from pathlib import Path
from warp_tiles.util.trusted_folder import TrustedFolder

with TrustedFolder(Path(sys.argv[1])).lock(sys.argv[2], 1.0, waiting=lambda _: None):
    print("held", flush=True)
    time.sleep(600)
"""


def _obey_signals() -> None:
    """A process in the background of a shell, or under nohup, ignores some signals, and so do its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def started(words: Sequence[object], **environment: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=REPOSITORY,
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_obey_signals,
        start_new_session=True,
    )


def workers_of(parent: int) -> list[int]:
    """The compiler processes of a process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if b"warp_tiles.compile.worker" in (folder / "cmdline").read_bytes() and int(fields[1]) == parent:
                found.append(int(folder.name))
    return found


def ended(pids: Sequence[int]) -> bool:
    """True if none of the processes runs; one that was not waited for counts as ended."""
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                return False
    return True


@pytest.fixture(params=["products", "modules of Warp"])
def compiling(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """``warp-tiles compile`` of sixteen modules, while its workers run."""
    products = request.param == "products"
    (tmp_path / "many.py").write_text(MANY if products else PLAIN)
    process = started(
        ["-m", "warp_tiles", "compile", "-o", tmp_path / "out", tmp_path / "many.py"],
        WARP_TILES_PROVIDER="cublasdx",
        WARP_TILES_MODULES="tiles" if products else "all",
        WARP_TILES_CACHE_DIR=tmp_path / "cache",
        WARP_TILES_JOBS=1,
    )
    locks = tmp_path / "cache" / ("v2" if products else "modules/v2") / "locks"
    until(lambda: workers_of(process.pid) and list(locks.glob("*.holder")))
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("name", some(["SIGINT", "SIGTERM", "SIGHUP"], 2))
def test_a_signal_ends_a_compilation_at_once_and_leaves_nothing(
    compiling: subprocess.Popen[str], tmp_path: Path, name: str
) -> None:
    workers = workers_of(compiling.pid)
    until(lambda: [path for path in tmp_path.rglob("*") if "_p" in path.name and path.is_dir()])
    assert compiling.pid not in map(os.getpgid, workers), "a terminal would signal the workers too"
    os.killpg(compiling.pid, getattr(signal, name))  # as a terminal does, to every process of the group
    _, messages = compiling.communicate(timeout=60)
    others = {"locks", "asked", "toolchain", "stats"}
    built = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and not others & set(path.parts)]
    assert len(built) < 16, "it does not wait for its sixteen modules"
    assert compiling.returncode == -getattr(signal, name)
    assert "Traceback" not in messages
    assert "Broken pipe" not in messages
    assert "interrupted" in messages
    until(lambda: ended(workers), 5.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "many.py", "out"]
    left = [str(path.relative_to(tmp_path)) for path in (tmp_path / "out").rglob("*") if TEMP_PREFIX in str(path)]
    assert left == []


def test_what_a_killed_compilation_left_is_removed_by_the_next(tmp_path: Path) -> None:
    python("-c", LEFT, tmp_path, status=-signal.SIGKILL)
    (left,) = tmp_path.iterdir()
    assert sorted(path.name for path in left.iterdir()) == ["cubin"]
    with staging(tmp_path) as place:
        assert list(tmp_path.iterdir()) == [place]
    assert list(tmp_path.iterdir()) == []


def test_workers_end_with_a_killed_parent_whose_child_lives(tmp_path: Path) -> None:
    code = """
import os, sys, time
from warp_tiles.compile.pool import CompilerPool
pool = CompilerPool(1)
pool.start_processes(1)
if os.fork() == 0:
    time.sleep(20)
    os._exit(0)
print("forked", flush=True)
time.sleep(60)
"""
    process = started(["-c", code])
    assert process.stdout.readline() == "forked\n"
    workers = workers_of(process.pid)
    assert workers
    process.kill()
    process.wait()
    until(lambda: ended(workers), 5.0)
    process.stdout.close()
    process.stderr.close()


@contextlib.contextmanager
def suspended_holder(root: Path, lock: str) -> Iterator[subprocess.Popen[str]]:
    """A suspended process that holds a lock."""
    process = started(["-c", HOLDER, root, lock])
    assert process.stdout.readline() == "held\n"
    process.send_signal(signal.SIGSTOP)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def suspended(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A suspended process that holds the lock of the one function of ``main.py``."""
    (tmp_path / "main.py").write_text(MAIN.replace("@wp.kernel", "@wp.kernel(enable_backward=False)"))
    planned = json_of(command("plan", tmp_path / "main.py", tmp_path, cache=tmp_path / "cache"))
    (key,) = {row["key"] for row in planned["modules"][0]["functions"] if row["needed"]}
    with suspended_holder(tmp_path / "cache", f"v2/locks/{key}.lock") as process:
        yield process


@pytest.mark.slow
def test_a_waiter_names_the_process_and_an_interrupt_frees_it(suspended: subprocess.Popen[str], tmp_path: Path) -> None:
    waiter = started(
        ["-m", "warp_tiles", "compile", "-o", tmp_path / "out", tmp_path / "main.py", tmp_path],
        WARP_TILES_CACHE_DIR=tmp_path / "cache",
    )
    assert waiter.stderr is not None
    lines = []
    for line in waiter.stderr:
        lines.append(line)
        if "waiting for" in line:
            break
    assert f"waiting for process {suspended.pid} on {os.uname().nodename!r}, which builds the same;" in lines[-1], lines
    waiter.send_signal(signal.SIGINT)
    waiter.communicate(timeout=60)
    assert waiter.returncode == -signal.SIGINT


@pytest.mark.slow
@pytest.mark.usefixtures("suspended")
def test_a_waiter_builds_for_itself_after_a_set_time(tmp_path: Path) -> None:
    done = command(
        "compile", "-o", tmp_path / "out", tmp_path / "main.py", tmp_path, cache=tmp_path / "cache",
        WARP_TILES_BUILD_WAIT_S="1",
    )  # fmt: skip
    (module,) = json_of(done)["modules"]
    assert module["lto_builds"] == 1
    assert "was held for 1 s" in done.stderr


@pytest.mark.filterwarnings("ignore:warp_tiles")  # that a timing is not kept
@pytest.mark.parametrize("kind", [FUNCTIONS, MEASUREMENTS], ids=lambda kind: kind.location)
def test_a_suspended_change_is_named_and_costs_one_wait(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root, held = tmp_path / "cache", HELD[kind]
    monkeypatch.setattr(trusted_folder, "_timeouts", {})  # other tests may have waited for locks
    monkeypatch.setattr(trusted_folder, "PATIENCE_S", 0.1)
    monkeypatch.setattr(trusted_folder, "WAIT_S", 1.0)
    monkeypatch.setattr(trusted_folder, "WAIT_AGAIN_S", 0.02)
    lock = "v2/locks/store.lock" if kind is FUNCTIONS else "tuning/.locks/store.lock"
    with suspended_holder(root, lock) as holder:
        seconds = []
        for number in range(3):
            start = time.monotonic()
            held.write(held.open(root), number)
            seconds.append(time.monotonic() - start)
        assert seconds[0] >= 1.0
        assert max(seconds[1:]) < seconds[0]
        (text,) = [record.getMessage() for record in caplog.records if "waiting for" in record.getMessage()]
        name = f"process {holder.pid} on {os.uname().nodename!r}"
        assert f"waiting for {name}, which changes {root}; this process waits 1 s at most" in text
        if kind is FUNCTIONS:
            (problem,) = [record.getMessage() for record in caplog.records if "not coordinated" in record.getMessage()]
            assert f"was held for 1 s by {name}" in problem
    held.write(held.open(root), 3)
    assert trusted_folder._timeouts == {}


def test_a_process_is_described() -> None:
    assert files.described(files.this_process()) == f"process {os.getpid()} on {os.uname().nodename!r}"
    assert files.described(b"123 elsewhere") == "process 123 on 'elsewhere'"
    for damaged in (b"", b"x", b"-1 host", b"9" * 500, b"\xff\xfe"):
        assert files.described(damaged) == "another process"
    for mutate in MUTATIONS.values():
        for seed in range(20):
            assert files.described(mutate(files.this_process(), random.Random(seed))).isprintable()
    assert PATIENCE_S == 5.0
