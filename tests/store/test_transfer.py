"""Push and pull: entries of this toolchain, each once."""

from pathlib import Path

import pytest

from tests.store.subjects import SIGNER, TRUSTED, connect, ready
from warp_tiles.store import AHEAD
from warp_tiles.store.cache import Cache
from warp_tiles.store.key import CacheKey
from warp_tiles.store.remote import RemoteStore
from warp_tiles.store.transfer import Transfer, export, is_built_by, pull, push

TOOLCHAIN = {"compiler": "c" * 64, "linker": "d" * 64}


@pytest.fixture
def store(tmp_path: Path) -> RemoteStore:
    (tmp_path / "store").mkdir()
    return ready(connect(tmp_path / "store", signer=SIGNER))


def fill(root: Path) -> Cache:
    cache = Cache(root)
    for compiler in ("c" * 64, "e" * 64):
        cache.put(CacheKey.of({"compiler": compiler, "name": "a"}), compiler.encode(), {})
    cache.put(CacheKey.of({"compiler": "c" * 64, "linker": "f" * 64, "name": "a"}), b"linked", {})
    cache.put(CacheKey.of({"name": "of unknown origin"}), b"unknown", {})
    return cache


def test_only_entries_of_this_compiler_and_linker_are_signed(store: RemoteStore, tmp_path: Path) -> None:
    cache, calls = fill(tmp_path / "cache"), []
    assert push(cache, store, TOOLCHAIN, lambda: calls.append(1)) == Transfer(1, 0, 3, moved_bytes=64)
    assert push(cache, store, TOOLCHAIN, lambda: calls.append(1)) == Transfer(0, 1, 3)
    assert len(calls) == 8


def test_nobody_vouches_for_a_module_that_no_launch_has_generated(store: RemoteStore, tmp_path: Path) -> None:
    cache, key = Cache(tmp_path / "cache"), CacheKey.of({"compiler": "c" * 64, "name": "a"})
    entry = cache.put(key, b"payload", {"module": "m", AHEAD: True})
    assert push(cache, store, TOOLCHAIN, lambda: None) == Transfer(skipped=1)
    assert export([cache], tmp_path / "signed", SIGNER).skipped == (entry.key,)
    assert export([cache], tmp_path / "unsigned", None).added == 1
    assert export([cache], tmp_path / "named", SIGNER, [(cache, entry.key)]).added == 1
    cache.vouch(entry)
    assert cache.get(key).manifest.info == {"module": "m"}  # type: ignore[union-attr]
    assert export([cache], tmp_path / "signed", SIGNER).added == 1
    assert push(cache, store, TOOLCHAIN, lambda: None).moved == 1


def test_a_damaged_object_is_replaced(store: RemoteStore, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.put(CacheKey.of({"compiler": "c" * 64, "name": "a"}), b"payload", {})
    assert push(cache, store, TOOLCHAIN, lambda: None).moved == 1
    (path,) = (path for path in (tmp_path / "store").rglob("*") if path.is_file())
    path.write_bytes(b"garbage")
    assert push(cache, store, TOOLCHAIN, lambda: None).moved == 1
    assert push(cache, store, TOOLCHAIN, lambda: None).present == 1


def test_only_entries_for_this_toolchain_are_pulled(store: RemoteStore, tmp_path: Path) -> None:
    push(fill(tmp_path / "cache"), store, TOOLCHAIN, lambda: None)
    (tmp_path / "store" / "v1" / "ltoir" / "ab").mkdir(parents=True, exist_ok=True)
    (tmp_path / "store" / "v1" / "ltoir" / "ab" / "README").write_text("other names are ignored")
    other = ready(RemoteStore((tmp_path / "store").as_uri(), TRUSTED, 5.0, lambda kind: "another toolchain"))
    assert pull(Cache(tmp_path / "other"), other, lambda: None) == Transfer(skipped=1)
    (tmp_path / "file").write_text("")
    assert pull(Cache(tmp_path / "file"), store, lambda: None) == Transfer(failed=1)
    fleet = Cache(tmp_path / "fleet")
    assert pull(fleet, store, lambda: None) == Transfer(moved=1, moved_bytes=64)
    assert pull(fleet, store, lambda: None) == Transfer(present=1)
    (found,) = fleet.entries()
    assert is_built_by(found.manifest.key, TOOLCHAIN)
    of_warp = CacheKey.of({"kind": "module of Warp", "warp": "a" * 64})
    assert [is_built_by(of_warp, {**TOOLCHAIN, "warp": letter * 64}) for letter in "ab"] == [True, False]
