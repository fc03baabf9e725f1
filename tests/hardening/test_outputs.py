"""Outputs that a user names: special files, links, permissions, and digests beside cubins."""

import os
import random
import shutil
import stat
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import warp as wp

import warp_tiles
from tests.hardening.damage import MUTATIONS
from tests.hardening.devices import device
from tests.hardening.memory import kilobytes_of_refusal, less_than
from tests.integration.helpers import gemm, load
from tests.nightly import some
from tests.tuning.tuning_records import key as record_key
from tests.tuning.tuning_records import timing
from warp_tiles._warp.modules import compile_module
from warp_tiles.cli.common import write_depfile
from warp_tiles.errors import BundleError, CacheError, OutputError, RecordError
from warp_tiles.store import LTOIR
from warp_tiles.store.bundle import write_bundle
from warp_tiles.store.cache import Cache
from warp_tiles.store.envelope import MAGIC
from warp_tiles.store.key import CacheKey
from warp_tiles.store.transfer import export
from warp_tiles.tuning.store import RecordStore
from warp_tiles.util.files import matches, open_output, write_output


def export_entries(folder: Path, path: Path) -> None:
    cache = Cache(folder / "cache")
    cache.put(CacheKey.of({"name": "a"}), b"payload", {})
    export([cache], path, None)


def export_records(folder: Path, path: Path) -> None:
    store = RecordStore(folder / "tuning")
    store.merge(record_key(), [timing({"x": 1})])
    store.export(path)


WRITERS: dict[str, Callable[[Path, Path], None]] = {
    "cache export": export_entries,
    "tune export": export_records,
    "run --report": lambda folder, path: write_output(path, b"{}"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_fifo_is_written_to(tmp_path: Path, writer: str) -> None:
    path, received = tmp_path / "fifo", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()), daemon=True)
    reader.start()
    WRITERS[writer](tmp_path, path)
    reader.join(10)
    assert len(received[0]) > 1
    assert stat.S_ISFIFO(path.lstat().st_mode)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", ["full", "null"])
def test_a_device_is_never_replaced(tmp_path: Path, writer: str, name: str) -> None:
    node, link = device(tmp_path, name), tmp_path / "link"
    link.symlink_to(node)
    for path in (node, link):
        if name == "full":
            with pytest.raises((CacheError, RecordError, OutputError, OSError), match="No space left"):
                WRITERS[writer](tmp_path, path)
        else:
            WRITERS[writer](tmp_path, path)
    assert stat.S_ISCHR(os.lstat(node).st_mode)
    assert link.is_symlink()


@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path: Path, writer: str) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    WRITERS[writer](tmp_path, link)
    assert link.is_symlink()
    assert target.read_bytes() != b"old"
    assert sorted(path.name for path in target.parent.iterdir()) == ["target"]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_folder_is_refused(tmp_path: Path, writer: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises((CacheError, RecordError, OutputError, OSError), match="it is a folder"):
        WRITERS[writer](tmp_path, tmp_path / "folder")


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_the_umask_decides_who_can_read_an_output(tmp_path: Path, writer: str, mask: int) -> None:
    before = os.umask(mask)
    try:
        WRITERS[writer](tmp_path, tmp_path / "output")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "output").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("name", ["/dev/stdout", "//dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "a link"])
def test_standard_output_is_written_to_and_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / "a link").symlink_to("/dev/stdout")
    path = tmp_path / name if name == "a link" else Path(name)
    stdout = os.dup(1)
    try:
        with tempfile.TemporaryFile() as unnamed, open(tmp_path / "out", "wb") as named:
            for file in (unnamed, named):
                os.dup2(file.fileno(), 1)
                os.write(1, b"before\n")
                write_output(path, b"data\n")
                os.write(1, b"after\n")
            unnamed.seek(0)
            assert unnamed.read() == b"before\ndata\nafter\n"
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    assert (tmp_path / "out").read_text() == "before\ndata\nafter\n"


def test_a_file_keeps_its_permissions_and_survives_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "output", Path("/dev/shm") / f"warp_tiles_{os.getpid()}"):
        path.write_text("old")
        path.chmod(0o640)
        try:
            with pytest.raises(TypeError), open_output(path) as stream:
                stream.write("new")  # type: ignore[arg-type]
            assert path.read_text() == "old"
            write_output(path, b"new")
            assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o640)
        finally:
            path.unlink()
    with pytest.raises(FileNotFoundError, match=r"absent/output'$"):
        write_output(tmp_path / "absent" / "output", b"")


# ---- cubins


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, Path]:
    """A module, and the cubin of its first compilation under the umask 022."""
    module = wp.get_module(load(gemm(decorator="@wp.kernel(enable_backward=False)")).__name__)
    before = os.umask(0o022)
    try:
        with warp_tiles.enabled():
            return module, compile_module(module, 90, 64, tmp_path_factory.mktemp("compiled") / "out")
    finally:
        os.umask(before)


@pytest.fixture
def built(compiled: tuple[object, Path], tmp_path: Path, enabled: None) -> tuple[object, Path]:
    """The module, and a copy of its folder."""
    module, cubin = compiled
    return module, shutil.copytree(cubin.parent, tmp_path / "out") / cubin.name


def test_a_sound_output_is_kept_and_another_user_can_read_it(built: tuple[object, Path]) -> None:
    module, cubin = built
    for path in (cubin, *cubin.parent.glob("*.meta"), cubin.with_name(f"{cubin.name}.sha256")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    before = cubin.stat()
    assert compile_module(module, 90, 64, cubin.parent) == cubin
    assert (cubin.stat().st_ino, cubin.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("damage", ["a flipped bit", "missing"])
@pytest.mark.parametrize("what", some(["cubin", "meta", "sha256"], 1, "slow"))
def test_a_damaged_output_is_built_again(built: tuple[object, Path], what: str, damage: str) -> None:
    """tests/hardening/test_mutations.py has the kinds of damage."""
    module, cubin = built
    sound = {path: path.read_bytes() for path in cubin.parent.glob("*.[cm][ue][bt]*")}
    (path,) = (path for path in sound if path.suffix == f".{what}")
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(MUTATIONS[damage](path.read_bytes(), random.Random(1)))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert compile_module(module, 90, 64, cubin.parent) == cubin
    silent = damage == "missing" and what != "meta"
    text = f"warp_tiles: {cubin} or its metadata does not match {cubin.name}.sha256, so it is built again"
    assert [str(item.message) for item in warned] == ([] if silent else [text])
    assert {path: path.read_bytes() for path in sound} == sound
    subprocess.run(["sha256sum", "--quiet", "-c", f"{cubin.name}.sha256"], cwd=cubin.parent, check=True)


@pytest.mark.parametrize("kind", ["device", "fifo", "folder"])
def test_a_special_file_in_the_place_of_an_output_is_refused(
    built: tuple[object, Path], kind: str, tmp_path: Path
) -> None:
    module, cubin = built
    (meta,) = cubin.parent.glob("*.meta")
    for path in (cubin, meta, meta.with_suffix(".cu"), Path(f"{cubin}.sha256")):
        sound = path.rename(tmp_path / "sound")
        if kind == "device":
            path.symlink_to(device(tmp_path, "null"))
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.mkdir()
        before = path.lstat()
        with pytest.raises(OSError, match=f"it is not a regular file.*{path.name}"):
            compile_module(module, 90, 64, cubin.parent)
        assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
        if kind == "folder":
            path.rmdir()
        sound.replace(path)
        (tmp_path / "null").unlink(missing_ok=True)


def test_a_digest_of_a_huge_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.cubin"
    path.touch()
    os.truncate(path, 64 << 20)
    path.with_name("x.cubin.sha256").write_text(f"{'0' * 64}  x.cubin\n")
    with less_than(8 << 20):
        assert not matches(path)
    os.truncate(path, 2 << 30)  # is not read
    assert not matches(path)


# ---- bundles


def test_an_envelope_of_any_json_takes_bounded_memory(tmp_path: Path) -> None:
    """Objects take the most memory for the bytes of their JSON."""
    item = b'{"":{}},'
    body = b'{"signatures":[' + item * ((1 << 21) // len(item) - 10) + b"{}]}"
    path, key = tmp_path / "bundle", "ab" * 32
    before = (
        "from warp_tiles.store.cache import Cache; from warp_tiles.store.transfer import import_bundle\n"
        f"cache = Cache(Path({str(tmp_path / 'cache')!r}))"
    )
    call = f"import_bundle([cache], Path({str(path)!r}), {{}})"
    for head, reason, most in (
        (MAGIC + len(body).to_bytes(8, "big") + body, "malformed", 100_000),
        (MAGIC + (1 << 40).to_bytes(8, "big") + b"x", "envelope claims", 50_000),
    ):
        write_bundle(path, [(LTOIR, key, head)])
        assert kilobytes_of_refusal(before, call, BundleError, reason) < most


@pytest.mark.parametrize("name", ["null", "full"])
def test_a_depfile_is_written_to_a_device_and_does_not_replace_it(tmp_path: Path, name: str, enabled: None) -> None:
    node = device(tmp_path, name)
    (tmp_path / "output.d").symlink_to(node)
    if name == "full":
        with pytest.raises(OutputError, match="No space left"):
            write_depfile(tmp_path / "output")
    else:
        write_depfile(tmp_path / "output")
    assert stat.S_ISCHR(node.lstat().st_mode)
    assert (tmp_path / "output.d").is_symlink()
