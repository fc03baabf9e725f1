"""Keys of Warp's modules: what they must not forget, late expressions, and why a module has none."""

import dataclasses
import enum
import itertools
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import FORWARD_ONLY, gemm, load
from tests.store.warp_modules import compiled, entries, exact, records, text
from warp_tiles._warp import installed
from warp_tiles._warp.internals import find
from warp_tiles._warp.lookups import exact_hashes
from warp_tiles._warp.modules import module_builder
from warp_tiles._warp.reload import generate_launched, this_thread
from warp_tiles.build import warp_module
from warp_tiles.compile.module import WarpCompileRequest, warp_library
from warp_tiles.compile.toolchain import FileFacts
from warp_tiles.errors import ToolchainError
from warp_tiles.gemm.rejected import Refused, Rejected
from warp_tiles.settings import current
from warp_tiles.store.key import CacheKey

pytestmark = pytest.mark.usefixtures("disabled", "everything")

# ---- what a key must not forget

OTHER_CONSTANTS = {
    "an int beyond 32 bits": (5, 5 + 2**32), "a float beyond float32": (0.1, 0.1 + 1e-12),
    "an int and a bool": (1, True), "a zero with a sign": (0.0, -0.0),
}  # fmt: skip
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
def test_what_a_kernel_refers_to_is_in_its_start_key(name: str) -> None:
    expression, *values = OTHER_TYPES[name]
    first, second = (load(FUNCTIONS.format(value) + text(3, expression)) for value in values)
    assert exact(first) == exact(load(FUNCTIONS.format(values[0]) + text(3, expression))) != exact(second)


def test_annotations_and_structs_are_in_the_start_key_and_an_unknown_object_has_none() -> None:
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
def test_default_values_are_in_the_start_key(argument: str) -> None:
    """A definition evaluates them, from values that no function refers to."""
    source = "VALUES = [{}]\ndef number(): return VALUES[0]\n@wp.func\ndef g(x: float, {}): return x * float(n)\n"
    first, same, second = (load(source.format(value, argument) + text(3, "g(x[i])")) for value in (1, 1, 2))
    assert exact(first) == exact(same) != exact(second)


def start_key(module: ModuleType, **options: Any) -> CacheKey | Rejected:
    """The start key of a module for sm_90, and for an output that is ``named`` so."""
    named = options.pop("named", "a.sm90.cubin")
    hooks, warp = installed(), wp.get_module(module.__name__)
    warp.get_module_hash(64)
    given = {**warp.resolved_options[64], "output_arch": 90, **options}
    with this_thread(compiling={"output_name": named}):
        return hooks._lookups.start_key(warp, given, hooks.engine.build_context(current()))


@pytest.mark.parametrize("name", OTHER_CONSTANTS)
def test_constants_count_at_their_full_width(name: str) -> None:
    module = load(text(OTHER_CONSTANTS[name][0]))
    first, warps = start_key(module), wp.get_module(module.__name__).hashers[64].warp_tiles_hash
    module.N = OTHER_CONSTANTS[name][1]
    module.plain.module.mark_modified()
    second = start_key(module)
    assert wp.get_module(module.__name__).hashers[64].warp_tiles_hash == warps or "sign" in name, "Warp's hash"
    assert CacheKey is type(first) is type(second)
    assert first != second


@pytest.mark.parametrize(
    ("method", "error", "expected"),
    [
        ("digest", PermissionError("no"), ("unreadable_file", ("no",))),
        ("digest", TypeError("odd"), ("unknown_kind", ("odd",))),
        ("digest_folder", ToolchainError("no", "install it"), ("toolchain_missing", ("no", "install it"))),
        ("digest_folder", ToolchainError("no"), ("toolchain_missing", ("no", "see warp-tiles doctor"))),
    ],
)
def test_each_cause_has_its_sentence_and_remedy(
    method: str, error: Exception, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr(FileFacts, method, fail)
    found = start_key(load(text()))
    assert (found.code, str(found)) == (expected[0], str(Rejected(*expected)))


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


def generate_code(module: Any) -> None:
    module_builder(module, {**module.resolved_options[64], "output_arch": 90}, module.hashers[64]).codegen("cuda")


def generated(expression: str) -> tuple[Any, list[str]]:
    """A module whose code was generated, and its hashes before that."""
    module = late(expression)
    before = exact_of(module)
    generate_code(module)
    return module, before


@pytest.mark.parametrize("expression", [*FOLLOW, *DO_NOT_FOLLOW])
def test_an_expression_that_follows_from_constants_needs_no_generation(expression: str) -> None:
    """Another one counts with its value."""
    module, before = generated(expression)
    assert (exact_of(module) == before) == (expression in FOLLOW)
    module.kernels["kernel"].func.__globals__["K"] += 1
    assert exact_of(module) != before


def assert_refused(module: Any) -> None:
    with pytest.raises(Refused) as refused:
        exact_of(module)
    assert refused.value.args == (Rejected("static_of_instances", ("late",)),)


# functions whose instances evaluate expressions, which no hash covers: a generic one, and one that takes a function
instances = pytest.mark.parametrize(
    ("arguments", "call"), [("x: Any", ""), *([("f: wp.Function, x: float", "wp.sin, ")] * hasattr(wp, "Function"))]
)


def instance(expression: str, arguments: str, call: str) -> Any:
    source = LATE.replace("def late(x: {type}):", f"def late({arguments}):").replace("late(x[0])", f"late({call}x[0])")
    return late(expression, source=source)


@instances
@pytest.mark.parametrize("expression", [*FOLLOW, *DO_NOT_FOLLOW])
def test_an_instance_has_a_start_key_if_its_expressions_follow(expression: str, arguments: str, call: str) -> None:
    module = instance(expression, arguments, call)
    if expression in FOLLOW:
        assert exact_of(module)
    else:
        assert_refused(module)


@instances
@pytest.mark.parametrize("changes", [False, True])
def test_an_instance_with_another_value_than_the_definition_has_no_start_key(
    arguments: str, call: str, changes: bool
) -> None:
    """Warp evaluates ``wp.static`` at the definition, and again at the first use of each instance."""
    module = instance("K == 1", arguments, call)
    before = exact_of(module)
    module.kernels["kernel"].func.__globals__["K"] += changes
    generate_code(module)
    if not changes:
        assert exact_of(module) == before
    else:
        assert_refused(module)


@pytest.mark.parametrize("expression", [FOLLOW[0], DO_NOT_FOLLOW[0]])
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


def test_each_input_of_the_compiler_is_in_the_content_key() -> None:
    changes: list[dict[str, Any]] = [
        {}, {"source": b"other source"}, {"optimization_level": 2}, {"name": "b.cu"}, {"ltoirs": (b"a",)},
        *({"switches": tuple(on != (n == at) for n, on in enumerate(REQUEST.switches))} for at in range(4)),
        {"fatbins": (b"a",)},
    ]  # fmt: skip
    keys = [content_key(dataclasses.replace(REQUEST, **change)) for change in changes]
    keys += [content_key(REQUEST, target) for target in (".sm_90a.cubin", ".compute_90.ptx", ".sm_80.cubin")]
    assert len({key.digest for key in keys}) == len(keys)


def test_headers_and_library_are_in_both_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(text())

    def keys() -> tuple[CacheKey | Rejected, CacheKey]:
        return start_key(module), content_key(REQUEST)

    before = keys()
    for name in ("digest", "digest_folder"):
        with monkeypatch.context() as patch:
            patch.setattr(FileFacts, name, lambda *_: "0" * 64)
            assert all(old != new for old, new in zip(before, keys()))
    assert keys() == before


def test_target_and_options_are_in_the_start_key_which_changes_no_hash_of_warp() -> None:
    module = load(text())
    first = start_key(module, named="a.sm90.cubin")
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


# ---- why a module has no start key, or is not asked for: each reason has its code

PRODUCT = gemm(decorator=FORWARD_ONLY)


def looked_up(source: str, **options: Any) -> Any:
    """What is found for a kernel on sm_90, before its code is generated."""
    module = wp.get_module(load(source, block_dim=64).__name__)
    module.get_module_hash(64)
    return installed()._lookups.look_up(module, {**module.resolved_options[64], "output_arch": 90, **options})


@pytest.mark.parametrize(
    ("source", "settings", "options", "expected"),
    [
        (PRODUCT, {"modules": "auto"}, {}, Rejected("kept_nowhere")),
        (PRODUCT, {"policy": "max"}, {}, Rejected("tuned_first")),
        (PRODUCT, {}, {"deterministic": True}, Rejected("generation_has_effects", ("deterministic",))),
        (PRODUCT, {}, {"output_arch": None}, Rejected("no_calls")),
        (text(), {"modules": "tiles"}, {}, Rejected("no_calls")),
    ],
)
def test_settings_and_options(
    source: str, settings: Mapping[str, Any], options: Mapping[str, Any], expected: Rejected
) -> None:
    with warp_tiles.override(**settings):
        assert looked_up(source, **options) == expected


def test_a_module_that_is_left_to_warp_or_not_kept_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked_up(PRODUCT, mode="debug")
    assert (found.code, "debug" in str(found)) == ("left_to_warp", True)
    monkeypatch.setattr(wp.config, "cache_kernels", False)
    assert looked_up(PRODUCT) == Rejected("kernels_not_cached")


def test_what_has_changed_since_the_hash_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed().engine, "choices", lambda resolved: "other records")
    module = wp.get_module(load(PRODUCT, block_dim=64).__name__)
    module.get_module_hash(64)
    monkeypatch.setattr(installed().engine, "choices", lambda resolved: "newer records")
    options = {**module.resolved_options[64], "output_arch": 90}
    assert installed()._lookups.look_up(module, options) == Rejected("changed_since_hash")
