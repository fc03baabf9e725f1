"""Start lists: what a program loads, compiled ahead at its next start, and what no list may do."""

import dataclasses
import json
import random
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.integration.builds import TINY
from tests.integration.helpers import FORWARD_ONLY, gemm, gemm_loop, load
from tests.nightly import some
from tests.store.warp_modules import compiled, enabled, entries, records, rewrite, text, warm
from tests.waiting import until
from warp_tiles._warp import installed
from warp_tiles.build import ahead, start_list
from warp_tiles.build.ahead import ProgramStart
from warp_tiles.build.context import BuildContext
from warp_tiles.build.start_list import StartList, StartModule, read_start_list
from warp_tiles.compile.module import ModuleSource, reason_without_key
from warp_tiles.errors import CacheError, RecordError, SettingError
from warp_tiles.settings import current
from warp_tiles.store import STARTS, start_file
from warp_tiles.store.cache import Cache, Upstream
from warp_tiles.store.keys import SigningKey
from warp_tiles.store.remote import Client, RemoteStore
from warp_tiles.util import warn
from warp_tiles.util.threads import DaemonThreads, wait_all
from warp_tiles.util.trusted_folder import TrustedFolder
from warp_tiles.util.warn import WarnedTexts

pytestmark = pytest.mark.usefixtures("without_gpus")
MODULE = StartModule("m", 256, "wp_m_1234567.cu", 90, "", "cubin", 3, (False, False, True, True), {"k": 0}, "source")


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Returns a function that makes an empty remote store and sets it, with other settings."""

    def make(**given: object) -> dict[str, str]:
        store = tmp_path / "store"
        store.mkdir()
        settings = {f"WARP_TILES_{name}": str(value) for name, value in {"REMOTE": store.as_uri(), **given}.items()}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        return settings

    return make


@pytest.mark.parametrize(("jobs", "order"), [(1, "abcdefgh"), (2, "abcdefgh"), (4, "fcabdegh"), (8, "fcehabdg")])
def test_long_modules_are_compiled_first(jobs: int, order: str) -> None:
    lengths = {"a": 5, "b": 3, "c": 20, "d": 4, "e": 10, "f": 45, "g": 3, "h": 10}
    modules = [dataclasses.replace(MODULE, name=name, source="x" * length) for name, length in lengths.items()]
    assert "".join(one.name for one in ahead.build_order(modules, jobs)) == order
    assert ahead.build_order([], jobs) == []


def test_what_was_not_loaded_stays_behind_and_is_bounded() -> None:
    def named(name: str) -> StartModule:
        return dataclasses.replace(MODULE, name=name)

    record = StartList("1").after("1", map(named, "abc"), lambda _: False)
    assert [module.name for module in record.modules] == ["a", "b", "c"]
    record = record.after("1", [named("d"), named("b")], lambda module: module.name == "c")
    assert [module.name for module in record.modules] == ["b", "c", "d", "a"]
    assert record.after("1", [], lambda _: False) == record
    record = record.after("1", [named("e")], lambda _: False)
    assert [module.name for module in record.modules] == ["e", "b", "c"]
    assert StartList("1", (MODULE,)).after("2", [named("f")], lambda _: True) == StartList("2", (named("f"),))


@pytest.mark.slow
def test_modules_of_warp_are_left_to_it_with_the_setting_tiles(
    recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toolchain: None
) -> None:
    plain, product = load(text()), load(TINY)
    file = recorded("first", plain, product)
    with warp_tiles.override(cache_dir=tmp_path / "second", modules="tiles", jobs=1), warp_tiles.enabled(start=file):
        start = installed().program_start
        until(lambda: len(start._compiled) == 1)
        compiled(product, tmp_path / "product")
        assert [record["found"] for record in records()] == [True]
        compiled(plain, tmp_path / "plain")
        assert len(records()) == 1, "Warp compiles it"
    assert [module.linked is None for module in read_start_list(file).modules] == [False, True]


def test_a_module_has_another_name_in_warps_folder_if_others_are_trusted(
    recorded: Any, remote: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(text())
    recorded("first", module)
    remote()
    monkeypatch.setattr("warp_tiles._warp.hooks.in_kernel_cache", lambda _: True)
    recorded("second", module, wait=True)
    assert recorded.summary == "compiled ahead: 1"


@pytest.mark.parametrize("reason", ["Warp's folder", "another Warp", "off", "locked"])
def test_a_start_that_needs_nothing_compiles_nothing(
    reason: str, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(text())
    file = recorded("first", module)
    if reason == "another Warp":
        file.write_bytes(dataclasses.replace(read_start_list(file), warp="1.0").to_bytes())
    elif reason == "Warp's folder":
        monkeypatch.setattr("warp_tiles._warp.hooks.in_kernel_cache", lambda _: True)
    else:
        monkeypatch.setenv("WARP_TILES_POLICY", reason)
    before = file.read_bytes()
    monkeypatch.setattr(ProgramStart, "_queue", lambda *_: pytest.fail("nothing may be built"))
    recorded("second")
    assert file.read_bytes() == before, "a run that loads nothing writes nothing"
    if reason == "another Warp":
        recorded("third", module)
        assert read_start_list(file).warp == wp.__version__


# ---- modules with products and solvers

LOOP = gemm_loop(decorator=FORWARD_ONLY, dtype="float16")
SOLVER = """
@wp.kernel(enable_backward=False)
def solve(a: wp.array2d(dtype=float), b: wp.array2d(dtype=float)):
    wp.tile_store(b, wp.tile_cholesky(wp.tile_load(a, (16, 16))))
"""


@pytest.mark.parametrize(
    "source", some([LOOP, text(), gemm(m=8, n=8, k=8), SOLVER], 1, "slow"), ids=["loop", "plain", "adjoints", "solver"]
)
def test_what_a_run_loads_is_compiled_ahead_at_the_next_start(source: str, recorded: Any, toolchain: None) -> None:
    module = load(source, block_dim=128 if source == LOOP else 64)
    file = recorded("first", module)
    (kept,) = read_start_list(file).modules
    assert (kept.block_dim, kept.arch, kept.output) == (128 if source == LOOP else 64, 90, "cubin")
    assert (kept.linked and kept.linked.suffix) == (None if source == text() else "a" if source == LOOP else "")
    before = file.read_bytes()
    recorded("second", module, wait=True)
    assert (recorded.found, recorded.summary) == ([True], "compiled ahead: 1")
    assert file.read_bytes() == before, "the same modules give the same file"
    cubins = [next((recorded.folder / name / "0").glob("*.cubin")).read_bytes() for name in ("first", "second")]
    assert cubins[0] == cubins[1]
    shutil.rmtree(recorded.folder / "second" / "0")
    recorded("second", module)
    assert recorded.start_keys == ["found"], "it is not generated again"
    assert file.read_bytes() == before
    (row,) = json.loads(warm("--json", "--record", file, WARP_TILES_CACHE_DIR=recorded.folder / "second" / "cache"))[
        "modules"
    ]
    assert row["state"] == "present", "the command makes the same key as the program"
    if kept.linked is not None:
        (row,) = json.loads(warm("--json", "--arch", "80", "--record", file))["modules"]
        assert "depend on it" in row["reason"]


@pytest.mark.parametrize("change", some(["source", "functions", "register_limit", "source with functions"], 1, "slow"))
def test_a_changed_module_is_generated_and_replaces_the_stale_one(change: str, recorded: Any, toolchain: None) -> None:
    module = load(text() if change == "source" else TINY)
    file = recorded("first", module)
    stale = read_start_list(file)
    (kept,) = stale.modules
    changed = dataclasses.replace(kept, source=f"{kept.source}// of an earlier version\n")
    if change == "functions":  # the link fails
        others = tuple(dataclasses.replace(each, m=each.m * 2) for each in kept.linked.functions)
        changed = dataclasses.replace(kept, linked=dataclasses.replace(kept.linked, functions=others))
    elif change == "register_limit":
        changed = dataclasses.replace(kept, linked=dataclasses.replace(kept.linked, register_limit=32))
    rewrite(file, changed)
    recorded("second", module, wait=change == "source")
    assert recorded.found == [False]
    assert read_start_list(file) == stale
    if change == "source":
        assert "1 of them for no launch" in recorded.summary
        assert recorded.start.pop("unused_seconds") > 0
        assert recorded.start == {"file": str(file), "compiled": 1, "used": 0, "unused": 1}


def test_a_module_with_other_settings_is_not_recorded(recorded: Any) -> None:
    file = recorded("first", load(TINY, warp_tiles_register_accumulators=False))
    assert not file.exists()


# ---- hostile and damaged lists


@pytest.mark.parametrize(
    "line", ['#include "{}"', '#inc\\\r\nlude "{}"', '#inc\\ \nlude "{}"', '#in\\\ncl\\\r\nude "{}"']
)
def test_a_record_cannot_make_the_compiler_read_files(line: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("int secret;\n")
    hostile = dataclasses.replace(MODULE, source=f"#define WP_NO_CRT\n{line.format(secret)}\n")
    with enabled(tmp_path / "cache"):
        engine = installed().engine
        assert ahead.build_ahead(engine, engine.build_context(current()), hostile) is None
    assert not list((tmp_path / "cache").rglob("*.cubin"))
    module = ModuleSource("m.cu", 90, "cubin", hostile.request().native_dir, {})
    assert reason_without_key(module, hostile.source), "nor may a snippet of the user's own kernels"


@pytest.mark.usefixtures("digesting")
def test_a_record_stays_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(text())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with enabled(tmp_path / "cache", start="start.json"):
        compiled(module, tmp_path / "out")
        monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_start_list(tmp_path / "start.json").modules
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_is_compiled_ahead_is_not_pushed(recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kept,) = read_start_list(recorded("first", load(text()))).modules
    pushed: list[object] = []
    monkeypatch.setattr(BuildContext, "upstream", lambda *_: lambda: Upstream(None, pushed.append))
    with enabled(tmp_path / "other"):
        engine = installed().engine
        assert ahead.build_ahead(engine, engine.build_context(current()), kept)[1]
    assert pushed == []


def others_of(module: StartModule) -> list[StartModule]:
    """Three other modules of nearly the same source."""
    return [dataclasses.replace(module, name=f"other{n}", source=f"{module.source}// {n}\n") for n in range(3)]


def test_a_start_asks_a_remote_store_once_what_it_has(
    recorded: Any, remote: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = recorded("first", load(text()))
    SigningKey.generate().write(tmp_path / "key.pem")
    given = remote(SIGNING_KEY=tmp_path / "key.pem")
    warm("--push", "--record", file, WARP_TILES_CACHE_DIR=tmp_path / "a", **given)
    (kept,) = read_start_list(file).modules
    rewrite(file, *others_of(kept), kept)
    asked: list[str] = []
    names, read = Client.names, Client.read
    monkeypatch.setattr(Client, "names", lambda client, prefix: (asked.append(prefix), names(client, prefix))[1])
    monkeypatch.setattr(Client, "read", lambda client, name: (asked.append(name), read(client, name))[1])
    with enabled(tmp_path / "b", start=file):
        until(lambda: len(installed().program_start._compiled) == 3 and len(asked) == 2)
        cache = installed().engine.build_context(current()).modules
        until(lambda: len(cache.entries()) == 4)
    assert asked == ["v1/module/", f"v1/module/{asked[1][10:12]}/{asked[1][13:]}"]


def test_fetches_that_miss_hold_up_no_functions(recorded: Any, remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = recorded("first", load(TINY))
    rewrite(file, *others_of(*read_start_list(file).modules))
    remote(TRUSTED_KEYS=SigningKey.generate().public)
    asked: list[str] = []
    ask = RemoteStore.ask
    monkeypatch.setattr(RemoteStore, "ask", lambda store, kind, key: (asked.append(kind), ask(store, kind, key))[1])
    everything = type("Everything", (), {"__contains__": lambda *_: True})()
    monkeypatch.setattr(RemoteStore, "listed", lambda *_: everything)
    monkeypatch.setattr("warp_tiles.build.context._WAITING_THREADS", 2)  # fewer than modules
    with enabled(recorded.folder / "b", start=file):
        until(lambda: len(installed().program_start._compiled) == 3)
    assert asked.count("module") == 3, "each is asked for once"


@pytest.mark.slow
def test_a_source_that_does_not_compile_costs_nothing_but_its_build(recorded: Any, toolchain: None) -> None:
    module = load(text())
    file = recorded("first", module)
    (good,) = read_start_list(file).modules
    broken = dataclasses.replace(good, name="broken", source="nonsense")
    rewrite(file, broken, good)
    recorded("second", module)
    assert [kept.name for kept in read_start_list(file).modules] == [good.name, "broken"]


@pytest.mark.parametrize(
    "text",
    [
        '{"warp": "1", "modules": [' + "[]," * 600_000 + "[]]}", "[" * 600_000, "[" * 600_000 + '"',
        r'{"\\": "\"", "a": [' + "{}," * 600_000, '"",' * 1_200_000, "x" * (65 << 20),
    ],
)  # fmt: skip
def test_what_would_take_long_to_parse_is_refused_before(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_list, "parse_object", lambda _: pytest.fail("it is parsed"))
    with pytest.raises(start_list.DamagedError, match="more than"):
        StartList.from_bytes(text.encode())
    with pytest.raises(start_list.DamagedError, match="not ASCII"):
        StartList.from_bytes('{"∀": []}'.encode("utf-16-le"))


LARGE = 'float a[] = {1.0f, 2.0f}; printf("[%s]\\n", "{");\n' * 10_000
LONG = dataclasses.replace(MODULE, program=f"wp_{'é' * 117}.cu", arch=999, suffix="a")


FIFTY_MEGABYTES = tuple(dataclasses.replace(MODULE, name=f"m{n}", source=LARGE) for n in range(100))


@pytest.mark.parametrize("modules", [(LONG,), pytest.param(FIFTY_MEGABYTES, marks=pytest.mark.slow)], ids=len)
def test_what_is_written_is_read(modules: tuple[StartModule, ...]) -> None:
    data = StartList("1", modules).to_bytes()
    assert StartList.from_bytes(data).modules == modules
    assert len(Path(LONG.file).name.encode()) <= 255
    assert len(data) > 50 << 20 or len(modules) == 1


def test_random_changes_are_refused_or_harmless() -> None:
    data = StartList("1", (MODULE,)).to_bytes()
    assert StartList.from_bytes(data) == StartList("1", (MODULE,))
    chance = random.Random(1)
    for _ in range(2000):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            record = StartList.from_bytes(
                bytes(changed[: chance.choice([len(changed), chance.randrange(len(changed))])])
            )
        except start_list.DamagedError:
            continue
        assert all("/" not in module.program and module.arch > 0 for module in record.modules)


@pytest.mark.parametrize(
    "change",
    [
        {"program": "../../x.cu"}, {"program": "wp_a/b.cu"}, {"arch": -1}, {"arch": True}, {"output": "so"},
        {"linked": {}}, {"linked": {"functions": [{}], "suffix": "", "register_limit": None}},
        {"linked": {"functions": [], "suffix": "", "register_limit": -1}},
        {"name": "\x1b[2J"}, {"program": "wp_\x1b[2J.cu"},
        {"switches": [1, 0, 1, 0]}, {"meta": {"a": "b"}}, {"source": 3}, {"suffix": "a/b"}, {"more": 1},
        {"source": "\udc80"}, {"meta": {"\udc80": 1}}, {"program": f"wp_{'é' * 118}.cu"}, {"program": "wp_\udc80.cu"},
    ],
)  # fmt: skip
def test_a_field_of_another_kind_is_refused(change: dict[str, object]) -> None:
    body = json.loads(StartList("1", (MODULE,)).to_bytes())
    body["modules"][0].update(change)
    with pytest.raises(start_list.DamagedError):
        StartList.from_bytes(json.dumps(body).encode())
    with pytest.raises(start_list.DamagedError, match="warp is"):
        StartList.from_bytes(StartList("\x1b[2J", (MODULE,)).to_bytes())


def test_a_damaged_record_is_said_and_stays(tmp_path: Path, recorded: Any) -> None:
    file = tmp_path / "start.json"
    file.write_text("{")
    with pytest.raises(RecordError, match="cannot be used"):
        read_start_list(file)
    with pytest.warns(RuntimeWarning, match="start list .* cannot be used"):
        recorded("first", load(text()))
    assert file.read_text() == "{"


def test_with_a_record_all_modules_pass_through_the_cache_until_the_end(tmp_path: Path) -> None:
    assert current().modules == "auto"
    assert not current().all_modules
    with warp_tiles.override(cache_dir=tmp_path / "cache"):
        with warp_tiles.enabled(start=tmp_path / "start.json"):
            assert current().all_modules
            assert not current({"warp_tiles_modules": "tiles"}).all_modules, "the option of a module counts"
        assert not current().all_modules
        with warp_tiles.override(remote="https://store.example"):
            assert current().all_modules, "a store serves all of them"
            with warp_tiles.override(bundle=tmp_path / "bundle", policy="locked"):
                assert not current().all_modules, "a bundle takes the place of the store"


@pytest.mark.usefixtures("digesting")
def test_enable_takes_another_record_in_place_of_the_one_before(tmp_path: Path) -> None:
    with enabled(tmp_path / "cache"):
        for name in ("first.json", "second.json"):
            warp_tiles.enable(start=tmp_path / name)
            compiled(load(text(len(name))), tmp_path / name.removesuffix(".json"))
        with pytest.raises(SettingError, match="enabled already"), ThreadPoolExecutor() as executor:
            warp_tiles.enable(executor=executor)
    assert [len(read_start_list(tmp_path / "second.json").modules), (tmp_path / "first.json").exists()] == [2, False]


def test_enable_refuses_a_record_that_cannot_be_kept(tmp_path: Path) -> None:
    with warp_tiles.override(modules="all"), pytest.raises(SettingError, match="in no folder"):
        warp_tiles.enable(start=tmp_path / "missing" / "start.json")
    assert not warp_tiles.is_enabled()


# ---- machines, caches and ranks


def test_modules_of_other_architectures_are_not_compiled_here(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(text())
    file = recorded("first", module)
    (kept,) = read_start_list(file).modules
    ptx = dataclasses.replace(kept, name="ptx", output="ptx", arch=75)
    rewrite(file, dataclasses.replace(kept, arch=80), ptx, kept)
    monkeypatch.setattr("warp_tiles._warp.hooks.gpus_here", lambda: {90: None})
    recorded("second", module, wait=True)
    assert recorded.found == [True]
    assert ".sm_80.cubin" not in {found["target"] for found in entries(recorded.folder / "second")}
    assert [module.arch for module in read_start_list(file).modules] == [90, 80]


def record_of_eight(recorded: Any) -> Path:
    """A start list of one module with eight block sizes."""
    file: Path = recorded("first", load(text()))
    (kept,) = read_start_list(file).modules
    rewrite(file, *(dataclasses.replace(kept, block_dim=32 * n) for n in range(1, 9)))
    return file


@pytest.mark.slow
def test_a_cache_that_cannot_keep_modules_ends_the_builds(
    recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toolchain: None
) -> None:
    file = record_of_eight(recorded)
    monkeypatch.setenv("WARP_TILES_CACHE_MAX_BYTES", "1000")
    told = pytest.warns(RuntimeWarning, match="what it names cannot be kept.*WARP_TILES_CACHE_MAX_BYTES")
    with told, enabled(tmp_path / "full", start=file):
        start = installed().program_start
        until(lambda: start.is_stopped)
        built = installed().engine.build_context(current()).pool._processes
        assert sum(process._requests for process in built) <= 2


def test_a_start_that_is_stopped_while_it_begins_raises_nothing(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = record_of_eight(recorded)
    built: list[StartModule] = []

    class Threads(DaemonThreads):
        """Threads whose calls end before the next one is queued."""

        def submit(self, *given: Any, **named: Any) -> Future[Any]:
            future = super().submit(*given, **named)
            wait_all([future])
            return future

    def build(_: object, __: object, module: StartModule, **___: object) -> None:
        built.append(module)
        raise CacheError("it cannot be kept", "make room")

    monkeypatch.setattr("warp_tiles.build.context.DaemonThreads", Threads)
    monkeypatch.setattr(ahead, "build_ahead", build)
    monkeypatch.setattr(warn, "_once", WarnedTexts())
    with pytest.warns(RuntimeWarning, match="make room"), enabled(recorded.folder / "full", start=file):
        pass
    assert len(built) == 1


def test_a_cache_folder_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 300)  # longer than a name may be
    said = pytest.warns(RuntimeWarning, match="start list .* cannot be used")
    with enabled(root), said:
        installed().begin_start(start_file(root, Path("/script.py")))


@pytest.mark.usefixtures("digesting")
def test_the_record_of_a_script_follows_no_link(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "cache", tmp_path / "elsewhere.json"
    file = start_file(root, Path("/script.py"))
    file.parent.mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    elsewhere.write_bytes(StartList(wp.__version__, (MODULE,)).to_bytes())
    file.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with enabled(root):
            installed().begin_start(file)
            compiled(load(text()), tmp_path / "out")
    assert [word in str(one.message) for one, word in zip(said, ["cannot be used", "not written"])] == [True, True]
    assert file.is_symlink()
    assert elsewhere.read_bytes() == before


@pytest.mark.parametrize(
    "change", [{"name": "x" * 300}, {"program": f"wp_{'x' * 300}.cu"}, {"suffix": "aa"}, {"meta": {"k": 1.5}}]
)
def test_what_a_reader_refuses_is_not_written(change: dict[str, Any], tmp_path: Path) -> None:
    given = dataclasses.replace(MODULE, **change)
    file = tmp_path / "start.json"
    with enabled(tmp_path / "cache", start=file):
        installed().program_start.note(given, "0" * 64)
        installed().program_start.note(dataclasses.replace(MODULE, name="fine"), "1" * 64)
    assert read_start_list(file).modules[-1].name == "fine"


def test_a_list_that_is_too_large_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "start.json"
    monkeypatch.setattr(start_list, "STARTS", dataclasses.replace(STARTS, most_bytes=100))
    with pytest.warns(RuntimeWarning, match="more than 100 bytes"), enabled(tmp_path / "cache", start=file):
        installed().program_start.note(MODULE, "0" * 64)
    assert not file.exists()


def test_ranks_that_cannot_write_say_nothing(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_LOCK_S", 0.0)
    module = load(text())
    cache = recorded.folder / "first" / "cache"
    with TrustedFolder(cache).lock("starts/.locks/store.lock", 1.0):
        Cache(cache).clear(everything=True)  # which leaves the lock
        file = recorded("first", module)
    assert not file.exists()
