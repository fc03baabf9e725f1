"""Precompiled headers of modules: when they are written and read, and what their key contains."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from warp_tiles import settings
from warp_tiles.build.context import BuildContext, Resources
from warp_tiles.build.headers import ModuleHeaders
from warp_tiles.compile.compiler import Compiled, CompileRequest, HeaderFile
from warp_tiles.compile.find import Toolchain
from warp_tiles.compile.toolchain import FileDigests
from warp_tiles.errors import BuildError, ToolchainError
from warp_tiles.store.kinds import HEADERS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="headers are precompiled on Linux only")

PREFIX = '#define WP_TILE_BLOCK_DIM 128\n#include "builtin.h"\nextern "C" {\n'
FLAGS = ("-arch=sm_90", "--std=c++17")
REQUEST = CompileRequest("module.cu", PREFIX + "}", FLAGS, (), "module m", prefix=len(PREFIX))
CONTENT = b"an image of a heap" * 1000


@dataclass
class Store:
    """A toolchain store with a compiler that a test can replace."""

    digests: FileDigests
    compiler: str = "a" * 64
    version: tuple[int, int] = (12, 9)

    def toolchain(self) -> Toolchain:
        return Toolchain(Path("/lib/libnvrtc.so"), self.version, None, None, (), "")

    def compiler_digest(self) -> str:
        return self.compiler


@dataclass
class Pool:
    """Compiler processes that write headers where they are asked to, and finish when the test says so."""

    writes: bool = True
    fails: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)
    headers: list[HeaderFile | None] = field(default_factory=list)

    def submit(self, request: CompileRequest, **_: object) -> Future[Compiled]:
        future: Future[Compiled] = Future()
        self.headers.append(request.header)

        def finish() -> None:
            create = request.header is not None and request.header.create
            if request.header is not None and create and self.writes:
                Path(request.header.path).write_bytes(CONTENT)
            if self.fails:
                future.set_exception(BuildError("rejected"))
            else:
                future.set_result(Compiled(b"ir", 0.1, "NVRTC 12.9", create and self.writes))

        self.waiting.append(finish)
        return future

    def finish(self) -> None:
        for finish in self.waiting:
            finish()
        self.waiting.clear()


@dataclass
class Setup:
    root: Path
    native: Path
    store: Store
    pool: Pool
    headers: ModuleHeaders

    def compile(self, request: CompileRequest = REQUEST) -> HeaderFile | None:
        """The headers with which a module is compiled."""
        self.start(request)
        self.pool.finish()
        return self.pool.headers[-1]

    def start(self, request: CompileRequest = REQUEST) -> None:
        self.headers.compile(self.pool.submit, replace(request, include_dirs=(os.fspath(self.native),)))

    def another_process(self) -> None:
        self.headers = ModuleHeaders(self.root, self.store, lambda work: work())  # type: ignore[arg-type]

    @property
    def files(self) -> list[Path]:
        """All files but locks."""
        folder = self.root / HEADERS.folder / "v1"
        return [p for p in folder.rglob("*") if p.is_file() and p.parent.name != "locks"]


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    native = tmp_path / "native"
    (native / "nanovdb").mkdir(parents=True)
    (native / "builtin.h").write_text("int f();")
    (native / "nanovdb" / "PNanoVDB.h").write_text("int g();")
    store, root = Store(FileDigests(tmp_path / "digests")), tmp_path / "root"
    return Setup(root, native, store, Pool(), ModuleHeaders(root, store, lambda work: work()))  # type: ignore[arg-type]


def states(setup: Setup, count: int) -> list[str]:
    """How each of several modules uses the headers: not, by writing them, or by reading them."""
    found = (setup.compile() for _ in range(count))
    return ["none" if header is None else "write" if header.create else "read" for header in found]


@pytest.mark.parametrize("processes", [False, True], ids=["one process", "a process each"])
def test_the_second_module_writes_the_headers_and_later_ones_read_them(setup: Setup, processes: bool) -> None:
    found = []
    for _ in range(4):
        found += states(setup, 1)
        if processes:
            setup.another_process()
    assert found == ["none", "write", "read", "read"]
    assert sorted(path.suffix for path in setup.files) == [".json", ".pch"], "the temporary file is gone"
    header = setup.pool.headers[-1]
    assert header is not None
    assert Path(header.path).read_bytes() == CONTENT
    assert header.flag == f"--use-pch={header.path}"


def test_only_one_module_at_a_time_writes_them(setup: Setup) -> None:
    setup.compile()
    for _ in range(3):
        setup.start()
    assert [header is not None for header in setup.pool.headers] == [False, True, False, False]


@pytest.mark.parametrize("failure", ["writes", "fails"])
def test_a_failed_write_leaves_nothing(setup: Setup, failure: str) -> None:
    setattr(setup.pool, failure, failure == "fails")
    assert states(setup, 3) == ["none", "write", "none"]
    assert setup.files == []
    setattr(setup.pool, failure, failure != "fails")
    setup.another_process()
    assert states(setup, 2) == ["write", "read"]


def test_the_written_file_is_moved_and_belongs_to_its_user_alone(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = Path.write_bytes

    def noted(path: Path, data: bytes) -> int:
        count = write(path, data)
        path.chmod(0o644)
        written.append(path.stat().st_ino)
        return count

    monkeypatch.setattr(Path, "write_bytes", noted)
    states(setup, 2)
    header = setup.compile()
    assert header is not None
    status = Path(header.path).stat()
    assert [status.st_ino] == written
    assert stat.S_IMODE(status.st_mode) == 0o600


@pytest.mark.parametrize("damage", ["changed", "changed with its time", "removed"])
def test_a_damaged_file_is_never_read_and_is_written_again(setup: Setup, damage: str) -> None:
    states(setup, 3)
    (path,) = (path for path in setup.files if path.suffix == ".pch")
    status = path.stat()
    path.write_bytes(b"x" + CONTENT[1:])
    if damage == "removed":
        path.unlink()
    if damage == "changed with its time":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    setup.another_process()
    assert states(setup, 2) == ["write", "read"]
    assert path.read_bytes() == CONTENT


PATH_OF_A_HEADER = Path("nanovdb", "PNanoVDB.h")
CHANGES: dict[str, Callable[[Setup], object]] = {
    "option": lambda setup: replace(REQUEST, flags=("-arch=sm_80", "--std=c++17")),
    "prefix": lambda setup: replace(REQUEST, source=PREFIX.replace("128", "64") + "}", prefix=len(PREFIX) - 1),
    "compiler": lambda setup: setattr(setup.store, "compiler", "b" * 64),
    "header": lambda setup: (setup.native / PATH_OF_A_HEADER).write_text("int h();"),
    "folder": lambda setup: setattr(setup, "native", setup.native.rename(setup.native.with_name("moved"))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_input_is_in_the_key_and_the_rest_of_the_source_is_not(setup: Setup, name: str) -> None:
    states(setup, 2)
    header = setup.compile(replace(REQUEST, source=PREFIX + "int x; }", name="other.cu", subject="module n"))
    assert header is not None
    assert not header.create
    changed = CHANGES[name](setup)
    assert setup.compile(changed if isinstance(changed, CompileRequest) else REQUEST) is None


def test_modules_with_include_folders_of_their_own_get_none(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    resources = Resources((13, 4), None)
    monkeypatch.setattr(resources, "pool", lambda *_: setup.pool)
    monkeypatch.setattr(BuildContext, "headers", setup.headers)
    context = BuildContext(resources, settings.current())
    for extra in (["/somewhere"], ["/somewhere"], ["/somewhere"], [], []):
        context.submit(replace(REQUEST, include_dirs=(os.fspath(setup.native), *extra)))
        setup.pool.finish()
    assert [header is not None for header in setup.pool.headers] == [False] * 4 + [True]


def test_an_older_or_missing_compiler_and_a_refused_folder_get_none(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Toolchain:
        raise ToolchainError("NVRTC is missing")

    setup.store.version = (12, 6)
    assert states(setup, 3) == ["none"] * 3
    setup.store.version = (12, 9)
    states(setup, 3)
    os.chmod(setup.root / HEADERS.folder, 0o777)
    assert states(setup, 1) == ["none"]
    os.chmod(setup.root / HEADERS.folder, 0o700)
    assert states(setup, 1) == ["read"]
    monkeypatch.setattr(setup.store, "toolchain", missing)
    assert states(setup, 1) == ["none"]


@pytest.mark.parametrize("place", ["", HEADERS.folder], ids=["cache", "headers"])
def test_a_folder_that_cannot_be_used_costs_only_the_headers_and_is_told_once(
    setup: Setup, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A module without functions stores nothing else."""
    if place:
        setup.root.mkdir()
    (setup.root / place).write_text("a file is in the way")
    assert states(setup, 3) == ["none"] * 3
    (message,) = [record.getMessage() for record in caplog.records]
    assert "the cache folder cannot be used (" in message
