"""Modules of Warp in the cache: equal bytes, two keys for one entry, what is left to Warp, failures, other machines."""

import functools
import json
import os
import signal
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warp as wp
from click.testing import CliRunner

import warp_tiles
from benchmarks.stand_in import ALIAS, StandIn
from tests.integration.helpers import load
from tests.nightly import some
from tests.store.warp_modules import TEXTS, compiled, enabled, entries, records, text
from tests.waiting import until
from warp_tiles._warp import installed
from warp_tiles._warp.internals import find
from warp_tiles.build import ahead, warp_module
from warp_tiles.build.ahead import build_ahead
from warp_tiles.build.start_list import StartModule, read_start_list
from warp_tiles.build.warp_module import WarpOutput
from warp_tiles.cli import commands
from warp_tiles.compile import pool as pool_module
from warp_tiles.compile.compiler import Compiled
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.settings import current
from warp_tiles.store import AHEAD, MODULE, MODULES
from warp_tiles.store.cache import Cache
from warp_tiles.store.key import CacheKey
from warp_tiles.store.keys import SigningKey


@pytest.fixture(autouse=True)  # before the fixtures that enable it
def _disabled(disabled: None) -> None: ...


@pytest.fixture
def no_generation(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function after whose call no code is generated and nothing is compiled."""

    @functools.wraps(find("context.ModuleBuilder").__init__)
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("no code may be generated or compiled")

    def begin() -> None:
        monkeypatch.setattr(find("context.ModuleBuilder"), "__init__", refuse)
        monkeypatch.setattr(CompilerPool, "submit", refuse)
        monkeypatch.setattr(CompilerPool, "start_processes", refuse)

    return begin


MODULES_OF_WARP = [
    ("functions and adjoints", {"fast_math": True, "optimization_level": 1, "enable_backward": False}, False),
    ("functions and adjoints", {"fuse_fp": False}, True),
    *((name, {}, False) for name in TEXTS),
]


@pytest.mark.parametrize(("name", "options", "use_ptx"), some(MODULES_OF_WARP, 1, "slow"))
def test_files_are_byte_for_byte_those_of_warp(
    name: str, options: Mapping[str, Any], use_ptx: bool, tmp_path: Path
) -> None:
    module = load(TEXTS[name], **options)
    expected = compiled(module, tmp_path / "warp", use_ptx=use_ptx)
    for again in range(2):
        with enabled(tmp_path / "cache"):
            assert compiled(module, tmp_path / str(again), use_ptx=use_ptx) == expected
            (record,) = records()
        assert (record["found"], record["linker"], record["lto_builds"]) == (bool(again), "warp", 0)
        assert ("compile" in {phase["name"] for phase in record["phases"]}) == (not again)


# ---- two keys, one entry


def compile_twice(everything: Path, no_generation: Callable[[], None]) -> None:
    """The second time, in a new process, it is found."""
    module = load(text())
    expected = compiled(module, everything / "first")
    warp_tiles.disable()
    warp_tiles.enable()
    no_generation()
    assert compiled(module, everything / "second") == expected


@pytest.mark.usefixtures("digesting")
def test_a_known_module_is_not_generated(everything: Path, no_generation: Callable[[], None]) -> None:
    compile_twice(everything, no_generation)
    (record,) = records()
    assert (record["found"], record["start_key"]) == (True, "found")
    assert [phase["name"] for phase in record["phases"]] == ["look_up_module", "write_module"]
    kinds = sorted(entry["kind"] for entry in entries(everything))
    assert kinds == ["module of Warp", "start of a module of Warp"]
    assert len(list((everything / "cache").rglob("*.cubin"))) == 1, "one payload for both keys"


def test_a_start_key_is_not_bound_to_an_entry_that_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, key, bound = Cache(tmp_path, MODULES), CacheKey.of({"name": "m"}), []
    start = warp_module.Start(key, None, lambda *given: bound.append(given))
    module = StartModule("m", 256, "wp_m_1234567.cu", 90, "", "cubin", 3, (False,) * 4, {"k": 1}, "source")
    context: Any = SimpleNamespace(modules=cache, remote=None)
    monkeypatch.setattr(ahead, "build_ahead", lambda *_, **__: (key, True))
    for size, count in ((2, 0), (1, 1)):
        cache.put(key, WarpOutput(b"cubin", b"source", ".sm_90.cubin", {"k": size}, linked={"of": "others"}).pack(), {})
        assert ahead.compiled(None, ahead.AheadModule(module, key, start, context))  # type: ignore[arg-type]
        assert len(bound) == count
    bound_to: Any = SimpleNamespace(payload=bound[0][0])
    assert WarpOutput.of(bound_to) == WarpOutput(b"cubin", b"source", ".sm_90.cubin", {"k": 1}), "not to their parts"


@pytest.mark.usefixtures("digesting")
def test_a_launch_vouches_for_what_a_record_compiled(tmp_path: Path) -> None:
    module = load(text())
    with enabled(tmp_path / "first", start=tmp_path / "start.json"):
        compiled(module, tmp_path / "out")
    record = read_start_list(tmp_path / "start.json")
    with enabled(tmp_path / "second"):
        engine = installed().engine
        context = engine.build_context(current())
        assert build_ahead(engine, context, *record.modules)
        assert [AHEAD in item.manifest.info for item in context.modules.entries()] == [True]
        compiled(module, tmp_path / "out2")
        assert [AHEAD in item.manifest.info for item in context.modules.entries()] == [False, False]


@pytest.mark.usefixtures("digesting")
def test_a_module_is_found_by_its_content_but_not_with_another_name_or_other_metadata(
    everything: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(text())
    expected = compiled(module, everything / "first")
    compiled(load(text()), everything / "other name")  # symbols contain the name of the file
    lookups = installed()._lookups
    monkeypatch.setattr(lookups, "start_key", lambda *_: Rejected("no_calls"))  # so that it is generated
    assert compiled(module, everything / "second") == expected
    original = find("context.ModuleBuilder").build_meta
    monkeypatch.setattr(find("context.ModuleBuilder"), "build_meta", lambda b: {**original(b), "new": 1})
    found = compiled(module, everything / "third")
    assert [record["found"] for record in records()] == [False, False, True, False]
    (meta,) = (json.loads(data) for name, data in found.items() if name.endswith(".meta"))
    assert meta["new"] == 1
    assert {n: d for n, d in found.items() if n.endswith("cubin")} == {
        n: d for n, d in expected.items() if n.endswith("cubin")
    }


@pytest.mark.usefixtures("digesting")
def test_a_foreign_payload_under_a_key_is_not_served(everything: Path) -> None:
    module = load(text())
    expected = compiled(module, everything / "first")
    cache = Cache(everything / "cache", MODULES)
    for item in cache.entries():
        cache.put(item.manifest.key, b"\x7fELF of something else" * 9, {})
    assert compiled(module, everything / "second") == expected
    assert [record["found"] for record in records()] == [False, False]


def test_an_output_survives_packing_and_no_other_payload_is_one() -> None:
    output = WarpOutput(b"binary", "source ä".encode(), ".sm_90.cubin", {"a": 1})
    payload = output.pack()
    assert payload.startswith(b"binary")
    foreign = (b"\x7fELF of something else" * 9, b"x", b"\0" * 64, b"\xff" * 64)
    for data in (payload, *foreign, *(payload[:at] for at in range(len(payload)))):
        cache_entry: Any = SimpleNamespace(payload=data)
        assert (WarpOutput.of(cache_entry) == output) == (data == payload)


# ---- left to Warp


def snippet(body: str) -> str:
    kernel = "@wp.kernel\ndef plain(x: wp.array(dtype=float)):\n    x[0] = same(x[0])\n"
    return f"@wp.func_native({body!r})\ndef same(x: float) -> float: ...\n\n{kernel}"


# tests/compile/test_module.py has the spellings
INCLUDES = snippet("#if 0\n#in\\\nclude X\n#endif\nreturn x;")
LEFT = [
    (text(), {"lineinfo": True}, "lineinfo"),
    (INCLUDES, {}, "may include files"),
    (text(), {"mode": "debug"}, "debug builds"),
    (text(), {"strip_hash": True}, "strip_hash"),
]


@pytest.mark.parametrize(("source", "options", "reason"), some(LEFT, 2, "slow"), ids=[reason for *_, reason in LEFT])
def test_what_names_or_includes_files_or_hides_its_hash_is_left_to_warp(
    source: str, options: dict[str, Any], reason: str, everything: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompilerPool, "submit", lambda *_, **__: pytest.fail("nothing may be compiled in a worker"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in range(2):
            given = {"strip_hash": True} if "strip_hash" in options else {}
            files = compiled(load(source, **options), everything / str(number), **given)
            assert any(name.endswith("cubin") for name in files)
        monkeypatch.setattr(wp.config, "cache_kernels", False)
        compiled(load(text()), everything / "not kept")
    assert [reason in str(each.message) for each in said if "Warp itself" in str(each.message)] == [True]
    assert (records(), entries(everything)) == ([], [])


@pytest.mark.parametrize(("name", "value"), [("log_level", 10), ("verbose", True)])
@pytest.mark.usefixtures("digesting")
def test_a_log_of_the_compiler_is_written_in_this_process_and_found_modules_need_none(
    name: str, value: object, everything: Path, monkeypatch: pytest.MonkeyPatch, no_generation: Callable[[], None]
) -> None:
    monkeypatch.setattr(CompilerPool, "submit", lambda *_, **__: pytest.fail("a worker's output is not in the log"))
    monkeypatch.setattr(wp.config, name, value, raising=False)
    compile_twice(everything, no_generation)
    assert [record["found"] for record in records()] == [True]


@pytest.mark.parametrize("option", ["deterministic", "verify_autograd_array_access"])
@pytest.mark.usefixtures("digesting")
def test_generation_with_effects_is_not_left_out(
    option: str, everything: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if option == "deterministic":
        module = load(text(), deterministic=find("context").warp.DeterministicMode.RUN_TO_RUN)
    else:
        monkeypatch.setattr(wp.config, option, True)
        module = load(text())
    for folder in ("first", "second"):
        compiled(module, everything / folder)
    assert [record["found"] for record in records()] == [False, True]
    assert {entry["kind"] for entry in entries(everything)} == {"module of Warp"}, "by its content alone"


# ---- failures and processes


def test_an_error_of_the_source_is_that_of_warp(everything: Path, capfd: pytest.CaptureFixture[str]) -> None:
    module = load(snippet("return unknown(x);"))
    with pytest.raises(Exception, match="CUDA kernel build failed with error code"):
        compiled(module, everything / "out")
    assert capfd.readouterr().err.count('identifier "unknown" is undefined') == 1, "said once, by Warp"
    assert entries(everything) == []


def test_a_build_after_disable_is_warps(everything: Path) -> None:
    module, original = load(text()), find("context.ModuleBuilder").codegen

    def codegen(builder: Any, device: str) -> str:
        installed().engine.close()
        return str(original(builder, device))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(find("context.ModuleBuilder"), "codegen", codegen)
        built = compiled(module, everything / "out")
    assert any(name.endswith("cubin") for name in built)


def test_a_forked_child_has_workers_of_its_own(everything: Path) -> None:
    compiled(load(text(1)), everything / "parent")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
        child = os.fork()
    if child == 0:
        status = 1
        signal.alarm(60)  # it would wait for a worker of its parent
        try:
            compiled(load(text(2)), everything / "child")
            status = 0 if [phase["name"] for phase in records()[-1]["phases"]][-1] == "compile" else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
def test_a_signed_start_key_needs_no_generation(tmp_path: Path, no_generation: Callable[[], None]) -> None:
    SigningKey.generate().write(tmp_path / "key.pem")
    public = str(SigningKey.read(tmp_path / "key.pem").public)
    (tmp_path / "store").mkdir()
    module, remote = load(text()), (tmp_path / "store").as_uri()
    given: dict[str, Any] = {"remote": remote, "modules": "all", "jobs": 1, "remote_wait_s": 60}
    writes = {"remote_push": True, "signing_key": tmp_path / "key.pem"}
    with warp_tiles.override(cache_dir=tmp_path / "ci", **given, **writes), warp_tiles.enabled():
        installed().engine.build_context(current()).remote.require()
        expected = compiled(module, tmp_path / "first")
    assert len(list((tmp_path / "store").glob(f"v1/{MODULE}/*/*"))) == 2
    for trusted, found in (([], False), ([public], True)):
        if found:
            no_generation()
        cache = tmp_path / f"cache {len(trusted)}"
        with warp_tiles.override(cache_dir=cache, trusted_keys=trusted, **given), warp_tiles.enabled():
            installed().engine.build_context(current()).remote.require()
            files = compiled(module, tmp_path / str(found))
            assert [record["found"] for record in records()] == [found]
        assert [d for n, d in sorted(files.items())] == [d for n, d in sorted(expected.items())]


# ---- side by side


@pytest.mark.slow
def test_prefetched_modules_are_compiled_by_several_workers(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, original = [0], [0], pool_module._Process.run

    def run(process: Any, *request: Any) -> Compiled:
        running[0] += 1
        until(lambda: running[0] == 2 or most[0] == 2)
        most[0] = max(most[0], running[0])
        try:
            return original(process, *request)
        finally:
            running[0] -= 1

    monkeypatch.setattr(pool_module._Process, "run", run)
    modules = [load(text(value)) for value in range(4)]
    with enabled(tmp_path / "cache", jobs=2):
        warp_tiles.prefetch(*modules, device=ALIAS)
        for module in modules:
            stand_in.load(module.__name__)
        assert len(records()) == 4
    assert most[0] in (2, 3)  # a launch that waits gets one more than `jobs`
    assert len(stand_in.loaded) == 4


@pytest.mark.usefixtures("digesting")
def test_a_launch_finds_what_a_start_key_has_found_ahead(
    stand_in: StandIn, everything: Path, no_generation: Callable[[], None]
) -> None:
    module = load(text())
    compiled(module, everything / "out")  # of another output folder; the file has the same name
    no_generation()
    warp_tiles.prefetch(module, device=ALIAS)
    until(lambda: not installed().reloads.prefetches.pending)
    stand_in.load(module.__name__)
    (path,) = stand_in.loaded
    source = Path(path).with_name(Path(path).name.partition(".sm")[0] + ".cu")
    assert source.read_bytes() == next((everything / "out").glob("*.cu")).read_bytes()


@pytest.mark.usefixtures("digesting")
def test_the_key_of_a_module_is_explained(everything: Path) -> None:
    compiled(load(text()), everything / "out")
    key = records()[0]["module_key"]
    done = CliRunner().invoke(commands, ["cache", "explain", key[:16], "--json"])
    found = json.loads(done.stdout)
    assert (found["key"], found["stored"]) == (key, True)
    assert {"source", "headers", "warp", "options", "target"} <= {row[0] for row in found["transcript"]["fields"]}
