"""The rules of each kind of what is kept: lock, damage, eviction, permissions, export, push and removal."""

import os
import stat
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.store.cache_workers import fill, flip, key
from tests.store.subjects import SIGNER, TOOLCHAIN, TRUSTED, connect, entry, ready
from tests.tuning.tuning_records import key as record_key
from tests.tuning.tuning_records import timing
from warp_tiles.build.engine import Engine
from warp_tiles.build.start_list import StartList, StartLists
from warp_tiles.compile.compiler import CompileRequest
from warp_tiles.compile.toolchain import FileFacts
from warp_tiles.errors import BundleError
from warp_tiles.settings import current, override
from warp_tiles.store import (
    FORMER,
    FUNCTIONS,
    KINDS,
    MEASUREMENTS,
    MISSED_KEYS,
    MODULES,
    REJECTED_SOURCES,
    STARTS,
    TOOLCHAIN_FACTS,
    Kind,
)
from warp_tiles.store.bundle import Bundle, write_bundle
from warp_tiles.store.cache import Cache
from warp_tiles.store.documents import Documents
from warp_tiles.store.envelope import pack
from warp_tiles.store.key import MissedKeys
from warp_tiles.tuning.store import RecordStore
from warp_tiles.util import trusted_folder
from warp_tiles.util.trusted_folder import TrustedFolder


@dataclass(frozen=True)
class Held:
    """How a kind is used.

    Attributes:
        open: Opens the store below a root, which may be shared.
        documents: The documents of such a store.
        write, read: Writes a small thing with a number as its name, and reads it; None if there is none.
    """

    open: Callable[..., Any]
    documents: Callable[[Any], Documents[Any]]
    write: Callable[[Any, int], object]
    read: Callable[[Any, int], object]


def cache_of(kind: Kind) -> Held:
    return Held(
        lambda root, shared=False: Cache(root, kind, allow_shared=shared),
        lambda cache: cache._folder,
        lambda cache, number: fill(cache, number),
        lambda cache, number: cache.get(key(number)),
    )


HELD = {
    FUNCTIONS: cache_of(FUNCTIONS),
    MODULES: cache_of(MODULES),
    MEASUREMENTS: Held(
        lambda root, shared=False: RecordStore(root, folder=MEASUREMENTS.folder, shared=shared),
        lambda store: store._own,
        lambda store, number: store.merge(record_key(m=number), [timing({"tile_m": 16})]),
        lambda store, number: store.load(record_key(m=number)),
    ),
    STARTS: Held(
        lambda root, shared=False: StartLists(root, shared=shared),
        lambda lists: lists,
        lambda lists, number: lists.update(lists.path(f"{number}"), lambda known: StartList("1.19.0"), 0.0),
        lambda lists, number: lists.read(f"{number}"),
    ),
    TOOLCHAIN_FACTS: Held(
        lambda root, shared=False: FileFacts(root, shared=shared),
        lambda facts: facts._documents,
        lambda facts, number: facts.write(f"{number}", "value"),
        lambda facts, number: facts.read(f"{number}", str),
    ),
    MISSED_KEYS: Held(
        lambda root, shared=False: MissedKeys(root, shared=shared),
        lambda keys: keys,
        lambda keys, number: keys.add(key(number)),
        lambda keys, number: keys.find(key(number).digest),
    ),
}
every_kind = pytest.mark.parametrize("kind", HELD, ids=lambda kind: kind.location)


def test_each_kind_is_here() -> None:
    """Rejected sources are only written for the user, and what former versions left is only removed."""
    assert HELD.keys() == set(KINDS) - {*FORMER, REJECTED_SOURCES}
    assert len({kind.location for kind in KINDS}) == len(KINDS)


def files_of(root: Path, kind: Kind) -> list[Path]:
    """The files of a kind, the oldest first, without manifests and locks."""
    files = (root / kind.folder).rglob(f"*{kind.suffix}")
    return sorted((path for path in files if "keys" not in path.parts), key=lambda path: path.stat().st_mtime_ns)


def problems_of(kind: Kind, store: Any, action: Callable[[], object]) -> list[str]:
    """What is said during an action: by the kind's store, as a warning, or as an error."""
    known = {str(fault) for fault in HELD[kind].documents(store).faults.all()}
    errors = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            action()
        except OSError as error:
            errors.append(str(error))
    fresh = [str(fault) for fault in HELD[kind].documents(store).faults.all()]
    return [*errors, *(str(warning.message) for warning in said), *(text for text in fresh if text not in known)]


@every_kind
def test_damage_is_put_away_and_said_once_and_the_next_write_repairs_it(kind: Kind, tmp_path: Path) -> None:
    held, store = HELD[kind], HELD[kind].open(tmp_path)
    held.write(store, 1)
    before = held.read(store, 1)
    (file,) = files_of(tmp_path, kind)
    flip(file, 8 * 3, keep_times=False)
    store = held.open(tmp_path)  # as another process
    said = problems_of(kind, store, lambda: held.read(store, 1) is None or pytest.fail("it is read"))
    assert [("damaged" in text, str(file) in text) for text in said] == [(True, True)]
    assert not file.exists()
    assert file.with_suffix(kind.aside).exists() == bool(kind.aside)
    assert problems_of(kind, store, lambda: held.read(store, 1)) == []
    held.write(store, 1)
    assert type(held.read(store, 1)) is type(before) is not type(None)
    flip(files_of(tmp_path, kind)[-1], 8 * 3, keep_times=False)
    problems_of(kind, store, lambda: held.write(store, 1))  # without a read before
    assert type(held.read(store, 1)) is type(before)


@every_kind
def test_what_was_used_last_stays_below_the_limit(kind: Kind, tmp_path: Path) -> None:
    """Entries by their size, facts by their number. Measurements are never evicted."""
    held, store = HELD[kind], HELD[kind].open(tmp_path)
    held.documents(store).kind = replace(kind, most_files=2 if kind.most_files else 0)
    for number in (1, 2):
        held.write(store, number)
        time.sleep(0.02)  # longer than a tick of the clock of files
    if kind.entries:
        store.max_bytes = store.info().size_bytes * 5 // 4
        store._unmeasured_bytes = 0.0
    held.read(store, 1)
    held.write(store, 3)
    assert [held.read(store, number) is not None for number in (1, 2, 3)] == [True, kind is MEASUREMENTS, True]
    is_bounded = bool(kind.entries or kind.most_files)
    assert is_bounded == (kind is not MEASUREMENTS)


def test_the_last_rejected_sources_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_tiles.build.context.REJECTED_SOURCES", replace(REJECTED_SOURCES, most_files=2))
    with override(cache_dir=tmp_path):
        context = Engine().build_context(current())
    for name in "abc":
        command = context._reproduction(CompileRequest(f"{name}.cu", f"// {name}", (), (), "a function"))
        assert command == f"python -m warp_tiles.compile.worker --reproduce {tmp_path}/failed/{name}.cu"
        time.sleep(0.02)  # longer than a tick of the clock of files
    assert [path.name for path in files_of(tmp_path, REJECTED_SOURCES)] == ["b.cu", "c.cu"]


@every_kind
def test_whoever_adds_to_what_others_wrote_takes_the_lock(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trusted_folder, "WAIT_S", 0.0)
    monkeypatch.setattr(trusted_folder, "_timeouts", {})
    held, store = HELD[kind], HELD[kind].open(tmp_path)
    held.write(store, 1)
    documents = held.documents(held.open(tmp_path))
    with documents.files.lock(documents.lock_name, 0.0):
        said = problems_of(kind, store, lambda: held.write(store, 2))
    assert bool(said) == (kind.merged or kind.entries)
    assert all("lock" in text or "was held" in text for text in said)


@every_kind
@pytest.mark.parametrize(("shared", "mask"), [(False, 0), (True, 0o077)])
def test_files_are_private_or_as_shared_as_the_root_whatever_the_umask(
    kind: Kind, shared: bool, mask: int, tmp_path: Path
) -> None:
    root = tmp_path / "new" / "cache"
    if shared:
        root.mkdir(parents=True)
        root.chmod(0o2775)
    before = os.umask(mask)
    try:
        HELD[kind].write(HELD[kind].open(root, shared=shared), 1)
    finally:
        os.umask(before)
    assert HELD[kind].read(HELD[kind].open(root, shared=shared), 1) is not None
    paths = [root / kind.folder, *(root / kind.folder).rglob("*"), *([] if shared else [root, root.parent])]
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths}
    assert modes == {(True, 0o2775), (False, 0o664)} if shared and not kind.private else {(True, 0o700), (False, 0o600)}


@every_kind
def test_a_kind_leaves_the_machine_as_its_object_or_not_at_all(kind: Kind, tmp_path: Path) -> None:
    sent = entry()
    path, name = tmp_path / "bundle", kind.object or kind.folder
    write_bundle(path, [(name, sent.key, pack(name, sent, TOOLCHAIN, SIGNER))])
    if not kind.object:
        with pytest.raises(BundleError, match="is no object of this version"):
            Bundle(path, TRUSTED)
        return
    with Bundle(path, TRUSTED) as bundle:
        assert bundle.read(kind.object, sent.key).payload == sent.payload
        assert {bundled.object for bundled in KINDS if bundled.object and bundle.names(bundled.object)} == {kind.object}
    (tmp_path / "remote").mkdir()
    remote = ready(connect(tmp_path / "remote", signer=SIGNER))
    assert remote.push(kind.object, sent)
    assert remote.ask(kind.object, sent.key)[0].payload == sent.payload
    others = {other.object for other in KINDS} - {"", kind.object}
    assert all(remote.ask(other, sent.key)[0] is None for other in others), "a signature holds for one kind"


LEFT_BY_FORMER = [
    f"{'0' * 64}.json", f"keys/00/{'0' * 64}.json", f"objects/01/{'0' * 64}.pch", f"quarantine/1a2b3c-{'0' * 64}.json",
    f"{'0' * 32}.json", "locks/store.lock", "locks/worker-0-0.lock", "digests.json", "remote.json", "counts.json",
    ".tmp-left-1-00",
]  # fmt: skip


@pytest.mark.parametrize("kind", [*HELD, REJECTED_SOURCES, *FORMER], ids=lambda kind: kind.location)
@pytest.mark.parametrize("command", ["gc", "clear", "clear --all"])
def test_what_each_command_removes(kind: Kind, command: str, tmp_path: Path) -> None:
    if held := HELD.get(kind):
        held.write(held.open(tmp_path), 1)
    for name in {REJECTED_SOURCES: [f"{'0' * 64}.cu"], **dict.fromkeys(FORMER, LEFT_BY_FORMER)}.get(kind, ()):
        TrustedFolder(tmp_path).write(f"{kind.folder}/{name}", b"{}")
    with suppress(FileNotFoundError):
        (tmp_path / kind.folder / ".locks/store.holder").unlink()
    cache, (file, *_) = Cache(tmp_path), files_of(tmp_path, kind)
    before = cache.info()
    assert (before.exists, bool(cache.entries())) == (kind is FUNCTIONS,) * 2, "no former cache is read"
    assert {part for part, size in before.parts.items() if size} == {kind.part}
    report = cache.gc() if command == "gc" else cache.clear(everything=command == "clear --all")
    left = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert report.total_bytes == cache.info().total_bytes == left == before.total_bytes - report.freed_bytes
    removed = {"gc": kind in FORMER, "clear": kind.entries, "clear --all": kind is not MEASUREMENTS}
    assert file.exists() != removed[command]
    if kind in FORMER:
        assert (tmp_path / kind.folder).exists() != removed[command], "no folder is left"
