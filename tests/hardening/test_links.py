"""No operation follows a link below the cache's root, and inner folders are held to the root's rule."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hardening.writers import key
from tests.store.cache_workers import get_or_build
from tests.store.test_kinds import HELD, Held
from warp_tiles.build.context import BuildContext, Resources
from warp_tiles.compile.compiler import CompileRequest
from warp_tiles.errors import CacheError, RecordError
from warp_tiles.settings import Settings
from warp_tiles.store import MISSED_KEYS, MODULES
from warp_tiles.store.cache import Cache
from warp_tiles.tuning.store import RecordStore
from warp_tiles.util.trusted_folder import RefusedFolderError, TrustedFolder

WEEK_S = 7 * 86400.0


def fill(cache: Cache) -> None:
    for number in range(3):
        cache.put(key(number), b"payload %d" % number, {})


def use(held: Held, root: Path) -> None:
    for number in range(3):
        with errors_of_commands():
            held.write(held.open(root), number)
        held.read(held.open(root), number)


def reproduce(root: Path) -> None:
    context = BuildContext(Resources(), Settings(cache_dir=root))
    context._reproduction(CompileRequest("f.cu", "text", (), (), "a function"))


def evict(root: Path) -> None:
    Cache(root, max_bytes=1000).put(key("large"), bytes(900), {})


OPERATIONS: dict[str, Callable[[Path], object]] = {
    **{kind.location: lambda root, held=held: use(held, root) for kind, held in HELD.items()},
    "get_or_build": lambda root: get_or_build(Cache(root), key("new"), lambda: (b"new", {})),
    "evict": evict,
    "gc": lambda root: Cache(root).gc(0),
    "clear": lambda root: Cache(root).clear(),
    "verify": lambda root: Cache(root).verify(remove=True),
    "listing": lambda root: Cache(root).entries(),
    "linked modules": lambda root: Cache(root, MODULES).entries(),
    "failed": reproduce,
    "remove records": lambda root: RecordStore(root, folder="tuning").remove(),
}
PLACES = (
    "v2", "v2/keys", "v2/objects", "v2/locks", "asked", "toolchain", "tuning", "tuning/.locks", "tuning/gemm", "failed",
    "v1", "cuda_headers", "starts", *(f"{MODULES.folder}{inner}" for inner in ("", "/v2", "/v2/keys")),
)  # fmt: skip


@pytest.fixture(autouse=True)
def few_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that the oldest are removed."""
    monkeypatch.setattr("warp_tiles.store.key.MISSED_KEYS", replace(MISSED_KEYS, most_files=1))


def everything(folder: Path) -> dict[str, object]:
    """The content, permissions and times of all files below a folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else b"", path.lstat().st_mode,
                                        path.lstat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }  # fmt: skip


@contextlib.contextmanager
def errors_of_commands() -> Iterator[None]:
    with contextlib.suppress(CacheError, RecordError, RefusedFolderError):
        yield


def use_everything(root: Path) -> None:
    for operation in OPERATIONS.values():
        with errors_of_commands():
            operation(root)


@pytest.mark.parametrize(
    "name", ["v2/locks/store.lock", "tuning/.locks/store.lock", "locks/x.holder", "v1/digests.json"]
)
@pytest.mark.filterwarnings("ignore:warp_tiles")
def test_the_target_of_a_link_in_place_of_a_file_is_neither_read_nor_written(tmp_path: Path, name: str) -> None:
    target, root = tmp_path / "target", tmp_path / "cache"
    target.write_text("precious")
    files = TrustedFolder(root)
    files.make(name.rpartition("/")[0])
    files.path(name).symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        files.read(name, 100)
    use_everything(root)
    with files.lock("locks/x.lock", 1.0, waiting=lambda _: None):
        pass
    if not name.endswith(".lock"):
        files.write(name, b"new")
        assert files.read(name, 100)[0] == b"new"
    assert target.read_text() == "precious"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.filterwarnings("ignore:warp_tiles")
def test_what_lies_behind_a_link_stays_as_it_is(tmp_path: Path, place: str) -> None:
    """The folder behind the link looks like one of the cache, with files that are old enough to be removed."""
    good, elsewhere = tmp_path / "good", tmp_path / "elsewhere"
    for operation in OPERATIONS.values():
        operation(good)
    fill(Cache(good))
    (good / place).mkdir(parents=True, exist_ok=True, mode=0o700)
    os.rename(good / place, elsewhere)
    (elsewhere / "notes.txt").write_text("precious")
    (elsewhere / "0123.json").write_text("precious")
    old = time.time() - 2 * WEEK_S
    for path in (*elsewhere.rglob("*"), elsewhere):
        os.utime(path, (old, old))
    before = everything(elsewhere)
    (good / place).symlink_to(elsewhere)
    use_everything(good)
    assert everything(elsewhere) == before
    assert (good / place).is_symlink()


def test_a_link_to_a_folder_is_a_file_and_the_root_may_be_reached_through_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("folder")
    files = TrustedFolder(tmp_path)
    assert files.folders() == ["folder"]
    assert [name for name, _ in files.files()] == ["link"]
    fill(Cache(tmp_path / "link"))
    found = Cache(tmp_path / "link").get(key(1))
    assert found.payload == b"payload 1"
    for name in ("../x", "v1/../../x", "./x", "v1/./x"):
        with pytest.raises(ValueError, match="leaves the folder"):
            TrustedFolder(tmp_path / "folder").write(name, b"x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["keys", "objects"])
def test_a_link_in_place_of_a_shard_is_not_followed(tmp_path: Path, kind: str) -> None:
    root, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    fill(Cache(root))
    elsewhere.mkdir(mode=0o700)
    for shard in (root / "v2" / kind).iterdir():
        os.rename(shard, elsewhere / shard.name)
        shard.symlink_to(elsewhere / shard.name)
    before = everything(elsewhere)
    assert [Cache(root).get(key(number)) for number in range(3)] == [None] * 3
    use_everything(root)
    assert everything(elsewhere) == before


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", ["open to all", "of another user"])
@pytest.mark.filterwarnings("ignore:warp_tiles")
def test_an_inner_folder_obeys_the_roots_rule(
    tmp_path: Path, place: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cache"
    for operation in OPERATIONS.values():
        operation(root)
    TrustedFolder(root).make(place)
    if rule == "open to all":
        (root / place).chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(root / place, 65534, 65534)
    else:
        pytest.skip("only root can make a folder of another user")
    before = everything(root / place)
    files = TrustedFolder(root)
    with pytest.raises(RefusedFolderError, match="others write" if rule == "open to all" else "belongs to user"):
        files.files(place)
    use_everything(root)
    assert everything(root / place) == before


def test_an_inner_folder_of_a_shared_root_is_not_more_open_than_the_root(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o2770)
    files = TrustedFolder(root, shared=True)
    files.write("v2/keys/a", b"x")
    (root / "v2/keys").chmod(0o2777)
    with pytest.raises(RefusedFolderError, match="wider than those of"):
        files.read("v2/keys/a", 10)
