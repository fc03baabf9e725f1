"""Modules of Warp in the cache: equal bytes, two keys, what is left to Warp, and what a key must not forget."""

import dataclasses
import enum
import functools
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import warp as wp
from click.testing import CliRunner

import warp_tiles
from benchmarks.stand_in import ALIAS, StandIn
from tests.integration.helpers import load
from tests.nightly import some
from tests.store.warp_modules import TEXTS, compiled, enabled, entries, exact, records, text
from tests.waiting import until
from warp_tiles._warp import installed
from warp_tiles._warp.internals import find
from warp_tiles._warp.lookups import exact_hashes
from warp_tiles._warp.modules import module_builder
from warp_tiles._warp.reload import generate_launched, this_thread
from warp_tiles.build import ahead, warp_module
from warp_tiles.build.ahead import build_ahead
from warp_tiles.build.start_list import StartModule, read_start_list
from warp_tiles.build.warp_module import WarpOutput
from warp_tiles.cli import commands
from warp_tiles.compile import pool as pool_module
from warp_tiles.compile.compiler import Compiled
from warp_tiles.compile.module import WarpCompileRequest, warp_library
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.compile.toolchain import FileFacts
from warp_tiles.errors import ToolchainError
from warp_tiles.gemm.rejected import Refused, Rejected
from warp_tiles.settings import current
from warp_tiles.store import AHEAD, MODULE, MODULES
from warp_tiles.store.cache import Cache
from warp_tiles.store.key import CacheKey
from warp_tiles.store.keys import SigningKey
from warp_tiles.util import warn
from warp_tiles.util.warn import WarnedTexts


@pytest.fixture(autouse=True)
def _disabled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    warp_tiles.disable()
    monkeypatch.setattr(warn, "_once", WarnedTexts())
    yield
    warp_tiles.disable()


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


# ---- the bytes of Warp


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_files_are_byte_for_byte_those_of_warp(name: str, tmp_path: Path) -> None:
    module = load(TEXTS[name])
    expected = compiled(module, tmp_path / "warp")
    for again in range(2):
        with enabled(tmp_path / "cache"):
            assert compiled(module, tmp_path / str(again)) == expected
            (record,) = records()
        assert (record["found"], record["linker"], record["lto_builds"]) == (bool(again), "warp", 0)
        assert ("compile" in {phase["name"] for phase in record["phases"]}) == (not again)


@pytest.mark.parametrize(
    "options",
    some([{"fast_math": True, "optimization_level": 1, "enable_backward": False}, {"fuse_fp": False}], 1, "slow"),
    ids=["cubin", "ptx"],
)
def test_options_and_ptx_give_the_bytes_of_warp(options: Mapping[str, Any], tmp_path: Path) -> None:
    use_ptx = "fuse_fp" in options
    module = load(TEXTS["functions and adjoints"], **options)
    expected = compiled(module, tmp_path / "warp", use_ptx=use_ptx)
    with enabled(tmp_path / "cache"):
        assert compiled(module, tmp_path / "tiles", use_ptx=use_ptx) == expected
        assert [record["found"] for record in records()] == [False]


@pytest.mark.slow
def test_modules_of_warp_are_left_to_warp_by_default_and_by_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warp_tiles.override(cache_dir=tmp_path / "cache"), warp_tiles.enabled():
        compiled(load(text()), tmp_path / "out")
        monkeypatch.setenv("WARP_TILES_MODULES", "all")
        compiled(load(text(), warp_tiles_modules="tiles"), tmp_path / "another")
        assert (records(), entries(tmp_path)) == ([], [])
        compiled(load(text()), tmp_path / "other")
        assert len(records()) == 1


# ---- two keys, one entry


@pytest.mark.usefixtures("digesting")
def test_a_known_module_is_not_generated(everything: Path, no_generation: Callable[[], None]) -> None:
    module = load(text())
    expected = compiled(module, everything / "first")
    warp_tiles.disable()
    warp_tiles.enable()
    no_generation()
    assert compiled(module, everything / "second") == expected
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
    assert record is not None
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


# ---- what a key must not forget

OTHER_CONSTANTS = {
    "an int beyond 32 bits": (5, 5 + 2**32),
    "a float beyond float32": (0.1, 0.1 + 1e-12),
    "an int and a bool": (1, True),
    "a zero with a sign": (0.0, -0.0),
}


OTHER_TYPES = {
    "a type": ("wp.tile_sum(wp.tile_zeros(shape=8, dtype=K))[0]", "wp.float32", "wp.float64"),
    "an attribute": ("wp.tile_sum(wp.tile_zeros(shape=8, dtype=names.K))[0]", "wp.float32", "wp.float64"),
    "a tuple": ("wp.tile_sum(wp.tile_zeros(shape=K, dtype=float))[0]", "(4, 8)", "(8, 4)"),
    "a list of functions": ("wp.static(K[0])(1.0)", "[half, wp.sin]", "[double, wp.sin]"),
    "a list of builtins": ("wp.static(K[0])(1.0)", "[wp.sin]", "[wp.cos]"),
    "functions in a list of lists": ("wp.static(K[0][0])(1.0)", "[[half]]", "[[double]]"),
}
FUNCTIONS = """
import types
@wp.func
def half(x: float): return 0.5 * x
@wp.func
def double(x: float): return 2.0 * x
K = {}
names = types.SimpleNamespace(K=K)
"""


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_what_a_kernel_refers_to_is_in_its_start_key(name: str, everything: Path) -> None:
    expression, *values = OTHER_TYPES[name]
    first, second = (load(FUNCTIONS.format(value) + text(3, expression)) for value in values)
    assert exact(first) == exact(load(FUNCTIONS.format(values[0]) + text(3, expression))) != exact(second)


def test_annotations_and_structs_are_in_the_start_key_and_an_unknown_object_has_none(everything: Path) -> None:
    annotated = "import typing\nK = {}\n@wp.func\ndef one(x: float) -> {}: return x, 1.0\n"
    first, second, whole = (
        load(annotated.format(value, name) + text(3, "one(1.0)[0]"))
        for value, name in (
            ("typing.Tuple[float, float]", "K"),
            ("typing.Tuple[float, wp.float64]", "K"),
            ("3", "typing.Tuple[float, float]"),
        )
    )
    assert exact(first) != exact(second)
    assert isinstance(start_key(whole), CacheKey)
    struct = "@wp.struct\nclass S:\n    m: wp.types.matrix(shape={}, dtype=float)\n\n\n"
    kernel = "@wp.kernel\ndef plain(x: wp.array(dtype=S)):\n    x[0] = x[1]\n"
    first, second = (load(struct.format(shape) + kernel) for shape in ((1, 11), (11, 1)))
    assert exact(first) != exact(second)
    unknown = "other = object()\n" + text(3, "wp.tile_sum(wp.tile_zeros(shape=8, dtype=other))[0]")
    assert start_key(load(unknown)) == Rejected("unknown_value", ("other", "plain"))


@pytest.mark.parametrize("argument", ["n: int = number()", "*, n: int = number()"])
def test_default_values_are_in_the_start_key(argument: str, everything: Path) -> None:
    """A definition evaluates them, from values that no function refers to."""
    source = "VALUES = [{}]\ndef number(): return VALUES[0]\n@wp.func\ndef g(x: float, {}): return x * float(n)\n"
    first, same, second = (load(source.format(value, argument) + text(3, "g(x[i])")) for value in (1, 1, 2))
    assert exact(first) == exact(same) != exact(second)


def start_key(module: ModuleType, **options: Any) -> CacheKey | Rejected:
    """The start key of a module for sm_90."""
    hooks, warp = installed(), wp.get_module(module.__name__)
    warp.get_module_hash(64)
    given = {**warp.resolved_options[64], "output_arch": 90, **options}
    with this_thread(compiling={"output_name": options.pop("named", "a.sm90.cubin")}):
        return hooks._lookups.start_key(warp, given, hooks.engine.build_context(current()))


@pytest.mark.parametrize("name", OTHER_CONSTANTS)
def test_constants_count_at_their_full_width(name: str, everything: Path) -> None:
    module = load(text(OTHER_CONSTANTS[name][0]))
    first, warps = start_key(module), wp.get_module(module.__name__).hashers[64].warp_tiles_hash
    module.N = OTHER_CONSTANTS[name][1]
    module.plain.module.mark_modified()
    second = start_key(module)
    assert wp.get_module(module.__name__).hashers[64].warp_tiles_hash == warps or "sign" in name, "Warp's hash"
    assert isinstance(first, CacheKey)
    assert isinstance(second, CacheKey)
    assert first != second


MISSING = Rejected("toolchain_missing", ("no headers", "install them"))


@pytest.mark.parametrize(
    ("method", "error", "expected"),
    [
        ("digest", PermissionError("no"), Rejected("unreadable_file", ("no",))),
        ("digest", TypeError("odd"), Rejected("unknown_kind", ("odd",))),
        ("digest_folder", ToolchainError("no headers", "install them"), MISSING),
        (
            "digest_folder",
            ToolchainError("no headers"),
            dataclasses.replace(MISSING, values=("no headers", "see warp-tiles doctor")),
        ),
    ],
)
def test_each_cause_has_its_sentence_and_remedy(
    method: str, error: Exception, expected: Rejected, everything: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr(FileFacts, method, fail)
    found = start_key(load(text()))
    assert isinstance(found, Rejected)
    assert (found.code, str(found)) == (expected.code, str(expected))


# ---- expressions that Warp evaluates while it generates the code

LATE = """
from typing import Any
import enum
class Kind(enum.IntEnum):
    one = 1
class Odd(enum.IntEnum):
    one = 1
    def __lt__(self, other): return other in KS
Bits = enum.IntFlag("Bits", "a b", **({{"boundary": enum.CONFORM}} if hasattr(enum, "CONFORM") else {{}}))
K, KS = {value}, [{value}]
def pick(i): return i == K
@wp.func
def late(x: {type}):
    s = x
    for i in range(2):
        if wp.static({expression}):
            s += type(x)(1.0)
    return s
@wp.kernel(module="unique", enable_backward=False)
def kernel(x: wp.array(dtype=float)):
    x[0] = late(x[0]) + {number}.0
"""
NUMBERS = itertools.count()
FOLLOW = ["i == K", "not (i + 1) % 2 or i == K", "K if i else i < Kind.one"]
DO_NOT_FOLLOW = ["i in KS", "pick(i)", "KS[0] == i", "Kind(1) == i", "Odd.one < i", "__debug__ == i"]
DO_NOT_FOLLOW += ["~Bits.a == i"] * hasattr(enum, "CONFORM")  # as all members together have it


def late(expression: str, type_: str = "float", source: str = LATE) -> Any:
    """A module whose source no other test has: Warp has one unique module for equal kernels."""
    given = {"expression": expression, "type": type_, "value": 1, "number": next(NUMBERS)}
    return load(source.format(**given)).kernel.module


def exact_of(module: Any) -> list[str]:
    module.get_module_hash(64)
    return exact_hashes(module.hashers[64])


@pytest.mark.parametrize("expression", FOLLOW)
@pytest.mark.usefixtures("everything")
def test_an_expression_that_follows_from_constants_needs_no_generation(expression: str) -> None:
    module = late(expression)
    before = exact_of(module)
    module_builder(module, {**module.resolved_options[64], "output_arch": 90}, module.hashers[64]).codegen("cuda")
    assert exact_of(module) == before
    module.kernels["kernel"].func.__globals__["K"] += 1
    assert exact_of(module) != before


@pytest.mark.parametrize("expression", DO_NOT_FOLLOW)
@pytest.mark.usefixtures("everything")
def test_another_expression_counts_with_its_value(expression: str) -> None:
    module = late(expression)
    before = exact_of(module)
    module_builder(module, {**module.resolved_options[64], "output_arch": 90}, module.hashers[64]).codegen("cuda")
    assert exact_of(module) != before


@pytest.mark.parametrize("expression", [*FOLLOW, *DO_NOT_FOLLOW])
@pytest.mark.usefixtures("everything")
def test_a_generic_function_has_a_start_key_if_its_expressions_follow(expression: str) -> None:
    module = late(expression, "Any")  # each instance evaluates them, and no hash covers instances
    if expression in FOLLOW:
        assert exact_of(module)
    else:
        with pytest.raises(Refused) as refused:
            exact_of(module)
        assert refused.value.args == (Rejected("static_of_instances", ("late",)),)


@pytest.mark.skipif(not hasattr(wp, "Function"), reason="this Warp has no functions as arguments")
@pytest.mark.usefixtures("everything")
def test_a_function_that_takes_a_function_counts_as_a_generic_one() -> None:
    source = LATE.replace("def late(x: {type}):\n    s = x", "def late(f: wp.Function, x: float):\n    s = f(x)")
    source = source.replace("late(x[0])", "late(wp.sin, x[0])")
    for expression in (FOLLOW[0], DO_NOT_FOLLOW[1]):
        module = late(expression, source=source)
        if expression in FOLLOW:
            assert exact_of(module)
        else:
            with pytest.raises(Refused) as refused:
                exact_of(module)
            assert refused.value.args == (Rejected("static_of_instances", ("late",)),)


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize(
    ("arguments", "call"), [("x: Any", ""), *([("f: wp.Function, x: float", "wp.sin, ")] * hasattr(wp, "Function"))]
)
@pytest.mark.usefixtures("everything")
def test_an_instance_with_another_value_than_the_definition_has_no_start_key(
    arguments: str, call: str, changes: bool
) -> None:
    """Warp evaluates ``wp.static`` at the definition, and again at the first use of each instance."""
    source = LATE.replace("def late(x: {type}):", f"def late({arguments}):").replace("late(x[0])", f"late({call}x[0])")
    module = late("K == 1", source=source)
    before = exact_of(module)
    module.kernels["kernel"].func.__globals__["K"] += changes
    module_builder(module, {**module.resolved_options[64], "output_arch": 90}, module.hashers[64]).codegen("cuda")
    if not changes:
        assert exact_of(module) == before
    else:
        with pytest.raises(Refused) as refused:
            exact_of(module)
        assert refused.value.args == (Rejected("static_of_instances", ("late",)),)


@pytest.mark.parametrize("expression", [FOLLOW[0], DO_NOT_FOLLOW[0]])
@pytest.mark.usefixtures("everything")
def test_a_module_is_generated_for_each_architecture_as_its_launch_would(expression: str) -> None:
    """Warp's hash covers the expressions that an earlier generation has evaluated."""
    module = late(expression)
    ahead = [generate_launched(module, 64, {"device": None, "output_arch": arch}) for arch in (80, 90, 80)]
    assert all(one is not None for one in ahead)
    assert len({one.module.program for one in ahead if one is not None}) == 1
    assert [one.start is not None for one in ahead if one is not None] == [expression in FOLLOW] * 3


@pytest.mark.parametrize(("type_", "code"), [("float", "late_static"), ("Any", "static_of_instances")])
@pytest.mark.usefixtures("digesting")
def test_a_report_says_why_a_module_has_no_start_key(type_: str, code: str, everything: Path) -> None:
    module = late(DO_NOT_FOLLOW[0], type_)
    compiled(module, everything / "out")
    (record,) = records()
    assert record["start_key_code"] == code
    assert record["start_key"].startswith("not asked: ")
    assert "wp.static expression" in record["start_key"]


REQUEST = WarpCompileRequest(
    str(warp_library()), "a.cu", b"source", 90, "", "cubin", "native", 3, (False, False, True, True)
)


def content_key(request: WarpCompileRequest, target: str = ".sm_90.cubin") -> CacheKey:
    context = installed().engine.build_context(current())
    return warp_module.content_key(context, dataclasses.replace(request, native_dir=str(Path(__file__).parent)), target)


def test_each_input_of_the_compiler_is_in_the_content_key(everything: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"source": b"other source"},
        {"optimization_level": 2},
        *({"switches": tuple(on != (n == at) for n, on in enumerate(REQUEST.switches))} for at in range(4)),
        {"ltoirs": (b"a",)},
        {"fatbins": (b"a",)},
        {"name": "b.cu"},
    ]
    keys = [content_key(dataclasses.replace(REQUEST, **change)) for change in changes]
    keys += [content_key(REQUEST, target) for target in (".sm_90a.cubin", ".compute_90.ptx", ".sm_80.cubin")]
    assert len({key.digest for key in keys}) == len(keys)


def test_headers_and_library_are_in_both_keys(everything: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(text())

    def keys() -> tuple[CacheKey | Rejected, CacheKey]:
        return start_key(module), content_key(REQUEST)

    before = keys()
    for name in ("digest", "digest_folder"):
        with monkeypatch.context() as patch:
            patch.setattr(FileFacts, name, lambda *_: "0" * 64)
            assert all(old != new for old, new in zip(before, keys()))
    assert keys() == before


def test_target_and_options_are_in_the_start_key_which_changes_no_hash_of_warp(everything: Path) -> None:
    module = load(text())
    first = start_key(module)
    before = module.plain.hash, wp.get_module(module.__name__).hashers[64]
    assert start_key(module) == first
    assert (module.plain.hash, wp.get_module(module.__name__).hashers[64]) == before
    changes: list[dict[str, Any]] = [{"output_arch": 80}, {"named": "a.sm90a.cubin"}, {"named": "a.sm90.ptx"}]
    for change in (*changes, {"fast_math": True}, {"verify_fp": True}):
        assert start_key(module, **change) != first, change


@pytest.mark.usefixtures("digesting")
def test_a_constant_that_changes_during_the_generation_binds_nothing(everything: Path) -> None:
    module = load(text())
    original = find("context.ModuleBuilder").codegen

    def codegen(builder: Any, device: str) -> str:
        module.N = 4
        return str(original(builder, device))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(find("context.ModuleBuilder"), "codegen", codegen)
        compiled(module, everything / "out")
    assert [entry["kind"] for entry in entries(everything)] == ["module of Warp"]


def test_hashes_of_modules_cover_who_may_choose_their_code(tmp_path: Path) -> None:
    module, hashes = load(text()), []
    for given in ({}, {"modules": "all"}, {"modules": "all", "cache_shared": True}, {"cache_shared": True}):
        with warp_tiles.override(cache_dir=tmp_path / "cache", **given), warp_tiles.enabled():
            hashes.append(wp.get_module(module.__name__).get_module_hash(64))
    assert hashes[0] == hashes[1] == hashes[3] != hashes[2]


# ---- left to Warp


@pytest.mark.parametrize(
    ("options", "reason"),
    some(
        [({"lineinfo": True}, "lineinfo"), ({"mode": "debug"}, "debug builds"), ({"strip_hash": True}, "strip_hash")],
        1,
        "slow",
    ),
    ids=["lineinfo", "debug", "strip_hash"],
)
def test_what_names_files_or_hides_its_hash_is_left_to_warp(
    options: dict[str, Any], reason: str, everything: Path
) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in range(2):
            given = {"strip_hash": True} if "strip_hash" in options else {}
            compiled(load(text(number), **options), everything / str(number), **given)
    assert [reason in str(each.message) for each in said if "Warp itself" in str(each.message)] == [True]
    assert (records(), entries(everything)) == ([], [])


def test_code_that_includes_files_is_left_to_warp(everything: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/compile/test_module.py has the spellings."""
    monkeypatch.setattr(CompilerPool, "submit", lambda *_, **__: pytest.fail("nothing may be compiled in a worker"))
    body = "#if 0\n#in\\\nclude X\n#endif\nreturn x;"
    module = load(f"@wp.func_native({body!r})\ndef same(x: float) -> float: ...\n\n{USES_SNIPPET}")
    with pytest.warns(RuntimeWarning, match="may include files"):
        assert any(name.endswith("cubin") for name in compiled(module, everything / "out"))
    assert (records(), entries(everything)) == ([], [])


USES_SNIPPET = "@wp.kernel\ndef plain(x: wp.array(dtype=float)):\n    x[0] = same(x[0])\n"


def test_a_cache_of_kernels_that_is_off_is_honoured(everything: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp.config, "cache_kernels", False)
    compiled(load(text()), everything / "out")
    assert (records(), entries(everything)) == ([], [])


@pytest.mark.parametrize(("name", "value"), [("log_level", 10), ("verbose", True)])
@pytest.mark.usefixtures("digesting")
def test_a_log_of_the_compiler_is_written_in_this_process_and_found_modules_need_none(
    name: str, value: object, everything: Path, monkeypatch: pytest.MonkeyPatch, no_generation: Callable[[], None]
) -> None:
    monkeypatch.setattr(CompilerPool, "submit", lambda *_, **__: pytest.fail("a worker's output is not in the log"))
    monkeypatch.setattr(wp.config, name, value, raising=False)
    module = load(text())
    expected = compiled(module, everything / "first")
    warp_tiles.disable()
    warp_tiles.enable()
    no_generation()
    assert compiled(module, everything / "second") == expected
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


@pytest.mark.slow
def test_several_architectures_in_one_process(everything: Path, tmp_path: Path) -> None:
    module = load(text())
    found = {arch: compiled(module, everything / str(arch), arch=arch) for arch in (80, 90)}
    assert [record["found"] for record in records()] == [False, False]
    warp_tiles.disable()
    for arch, files in found.items():
        assert compiled(module, tmp_path / "warp" / str(arch), arch=arch) == files


def test_an_error_of_the_source_is_that_of_warp(everything: Path, capfd: pytest.CaptureFixture[str]) -> None:
    module = load(f'@wp.func_native("return unknown(x);")\ndef same(x: float) -> float: ...\n\n{USES_SNIPPET}')
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
        try:
            compiled(load(text(2)), everything / "child")
            status = 0 if [phase["name"] for phase in records()[-1]["phases"]][-1] == "compile" else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- of other machines


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
