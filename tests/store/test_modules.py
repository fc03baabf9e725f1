"""Linked modules in the cache and in a remote store."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.integration.builds import TINY, counts
from tests.integration.helpers import compile_module, load
from tests.store.warp_modules import text
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.store import MODULE, MODULES
from warp_tiles.store.cache import Cache
from warp_tiles.store.keys import SigningKey


def steps(record: dict[str, Any]) -> list[str]:
    """The names of a record's steps, which do not overlap and lie within its time."""
    phases = record["phases"]
    ends = [record["started_at_s"], *(phase["started_at_s"] + phase["seconds"] for phase in phases)]
    starts = [*(phase["started_at_s"] for phase in phases), record["started_at_s"] + record["seconds"]]
    assert all(start >= end - 0.001 for end, start in zip(ends, starts)), "in turn, apart from rounding"
    return [phase["name"] for phase in phases]


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "key.pem"
    SigningKey.generate().write(path)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the module ``TINY``, its function, and nothing else."""
    return tmp_path_factory.mktemp("store")


@contextmanager
def machine(folder: Path, store: Path, signing: Path, *, writes: bool = False, **given: Any) -> Iterator[Path]:
    """A machine with an empty cache and a remote store."""
    public = str(SigningKey.read(signing).public)
    access: dict[str, Any] = {"remote": store.as_uri(), "trusted_keys": [public]}
    if writes:
        access |= {"remote_push": True, "signing_key": signing}
    with warp_tiles.override(cache_dir=folder / "cache", jobs=1, **access, **given), warp_tiles.enabled():
        yield folder / "out"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, store: Path, signing: Path) -> bytes:
    """The cubin that a machine built and pushed."""
    with machine(tmp_path_factory.mktemp("ci"), store, signing, writes=True) as out:
        cubin, record = compile_module(load(TINY), out)
    assert (counts(record), record["found"]) == ((1, 0), False)
    return cubin.read_bytes()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(*_: object) -> None:
        raise AssertionError("nothing may be compiled or linked")

    monkeypatch.setattr(CompilerPool, "submit", submit)
    monkeypatch.setattr(CompilerPool, "start_processes", lambda *_: None)


@pytest.mark.slow
def test_a_module_of_another_machine_needs_no_compiler(
    built: bytes, store: Path, signing: Path, tmp_path: Path, no_compiler: None
) -> None:
    for again in range(2):
        with machine(tmp_path, store if not again else tmp_path / "no store", signing) as out:
            cubin, record = compile_module(load(TINY), out / str(again))
        assert cubin.read_bytes() == built
        assert (record["found"], record["linker"], counts(record)) == (True, "warp_tiles", (0, 1))
        assert steps(record) == ["look_up_module", *([] if again else ["fetch_module"]), "write_module"]
        assert Cache(tmp_path / "cache").entries() == (), "only the module is fetched"
        assert record["builds"][0]["symbol"] in {planned["symbol"] for planned in record["functions"]}


def test_a_damaged_module_is_built_here(
    built: bytes, store: Path, signing: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """test_envelope.py has the kinds of damage."""
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    for path in copy.rglob(f"v1/{MODULE}/*/*"):
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with machine(tmp_path, copy, signing) as out:
        cubin, record = compile_module(load(TINY), out)
    assert cubin.read_bytes() == built
    assert (record["found"], counts(record)) == (False, (0, 1))
    assert sum("is refused" in entry.message for entry in caplog.records) == 1


def test_a_key_that_is_not_trusted_loads_nothing(built: bytes, store: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.pem"
    SigningKey.generate().write(stranger)
    with machine(tmp_path, store, stranger) as out:
        _, record = compile_module(load(TINY), out)
    assert (record["found"], counts(record)) == (False, (1, 0))


@pytest.mark.slow
def test_the_own_cache_keeps_modules_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warp_tiles.override(cache_dir=tmp_path / "cache", modules="tiles", jobs=1), warp_tiles.enabled():
        first, record = compile_module(load(TINY), tmp_path / "first")
        assert not record["found"]
        names = [phase["name"] for phase in record["phases"]]
        assert (names[0], "link" in names, "fetch_module" in names) == ("look_up_module", True, False)
        second, record = compile_module(load(TINY), tmp_path / "second")
        assert record["found"]
        assert steps(record) == ["look_up_module", "write_module"]
        assert first.read_bytes() == second.read_bytes()
    with warp_tiles.override(cache_dir=tmp_path / "cache", jobs=1), warp_tiles.enabled():
        assert compile_module(load(TINY), tmp_path / "third")[1]["found"], "what was kept is found"
        other = TINY.replace("c = wp", "c = 2.0 * wp")
        assert not compile_module(load(other), tmp_path / "fourth")[1]["found"]
    with warp_tiles.override(cache_dir=tmp_path / "cache", modules="tiles", jobs=1), warp_tiles.enabled():
        assert not compile_module(load(other), tmp_path / "fifth")[1]["found"], "by default, nothing is kept"


# ---- what decides about a module


def keys_of(folder: Path) -> set[str]:
    """Those of linked modules, without their start keys."""
    return {item.key for item in Cache(folder / "cache", MODULES).entries() if "content_key" not in item.manifest.info}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    with warp_tiles.override(cache_dir=folder / "cache", modules="tiles", jobs=1), warp_tiles.enabled():
        compile_module(load(TINY), folder / "out")
    return folder


def test_a_payload_without_the_source_and_the_metadata_is_not_served(tmp_path: Path) -> None:
    name = load(TINY)
    with warp_tiles.override(cache_dir=tmp_path / "cache", modules="tiles", jobs=1), warp_tiles.enabled():
        binary, record = compile_module(name, tmp_path / "first")
        cache = Cache(tmp_path / "cache", MODULES)
        assert (len(cache.entries()), cache.info().payloads) == (2, 1), "two keys lead to one payload"
        for item in cache.entries():
            cache.put(item.manifest.key, Path(binary).read_bytes(), item.manifest.info)  # sound, and of another kind
        again, second = compile_module(name, tmp_path / "second")
        assert (record["found"], second["found"]) == (False, False)
        assert Path(again).read_bytes() == Path(binary).read_bytes()
        assert compile_module(name, tmp_path / "third")[1]["found"], "it was stored again"


def test_a_launch_that_finds_a_module_says_that_it_has_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = load(TINY)
    with warp_tiles.override(cache_dir=tmp_path / "cache", modules="tiles", jobs=1), warp_tiles.enabled():
        monkeypatch.setattr(ModulePlan, "stuck_failures", ("here: it never ends",))
        with pytest.warns(RuntimeWarning, match="here: it never ends"):
            first = compile_module(name, tmp_path / "first")[1]
        monkeypatch.undo()
        with pytest.warns(RuntimeWarning, match="was built with a warning about its launches"):
            second = compile_module(name, tmp_path / "second")[1]
    assert (first["start_key"], second["start_key"], second["found"]) == ("missing", "found", True)
    assert steps(second) == ["look_up_module", "write_module"]


# for each change: the text, the architecture, options of the module, settings, and the number of new keys
CHANGES: dict[str, tuple[str, int, dict[str, Any], dict[str, Any], int]] = {
    "the source": (TINY.replace("c = wp", "c = 2.0 * wp"), 90, {}, {}, 1),
    "an option": (TINY, 90, {"fast_math": True}, {}, 1),
    "the block size": (TINY, 90, {"block_dim": 128}, {}, 1),
    "the function": (TINY, 90, {}, {"provider": "cublasdx"}, 1),
    "the architecture": (TINY, 80, {}, {}, 1),
    # with paths of this machine, nothing is kept
    "lineinfo": (TINY, 90, {"lineinfo": True}, {}, 0),
    "debug": (TINY, 90, {"mode": "debug"}, {}, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_has_another_key(name: str, kept: Path) -> None:
    source, arch, options, given, new = CHANGES[name]
    before = keys_of(kept)
    with warp_tiles.override(cache_dir=kept / "cache", modules="tiles", jobs=1, **given), warp_tiles.enabled():
        record = compile_module(load(source, **options), kept / name, arch)[1]
    assert not record["found"]
    assert len(keys_of(kept) - before) == new


def test_hashes_of_modules_cover_who_may_choose_their_code(tmp_path: Path) -> None:
    module, hashes = load(text()), []
    for given in ({}, {"modules": "all"}, {"modules": "all", "cache_shared": True}, {"cache_shared": True}):
        with warp_tiles.override(cache_dir=tmp_path / "cache", **given), warp_tiles.enabled():
            hashes.append(wp.get_module(module.__name__).get_module_hash(64))
    assert hashes[0] == hashes[1] == hashes[3] != hashes[2]


def test_the_hash_of_a_module_covers_the_trusted_keys(store: Path, signing: Path, tmp_path: Path) -> None:
    module = wp.get_module(load(TINY).__name__)
    hashes = set()
    other = tmp_path / "other.pem"
    SigningKey.generate().write(other)
    for key in (signing, other):
        with machine(tmp_path, store, key):
            hashes.add(module.get_module_hash(64))
    with warp_tiles.override(cache_dir=tmp_path / "cache"), warp_tiles.enabled():
        hashes.add(module.get_module_hash(64))
    assert len(hashes) == 3


@pytest.mark.slow
def test_a_function_that_fell_back_is_not_kept_as_the_planned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions of own and cuBLASDx have the same name, so the source does not tell them apart."""
    from warp_tiles.providers.own import OwnProvider

    def fail(*_: object, **__: object) -> None:
        raise warp_tiles.BuildError("broken on purpose")

    with warp_tiles.override(cache_dir=tmp_path / "cache", modules="tiles", jobs=1), warp_tiles.enabled():
        with monkeypatch.context() as patched:
            patched.setattr(OwnProvider, "build", fail)
            with pytest.warns(RuntimeWarning, match="broken on purpose"):
                fallen, record = compile_module(load(TINY), tmp_path / "first")
        assert [build["provider"] for build in record["builds"]] == ["cublasdx"]
        assert (record["found"], record["module_key"], keys_of(tmp_path)) == (False, "", set())
        planned, record = compile_module(load(TINY), tmp_path / "second")
        assert (record["found"], len(keys_of(tmp_path))) == (False, 1)
    assert fallen.read_bytes() != planned.read_bytes()
