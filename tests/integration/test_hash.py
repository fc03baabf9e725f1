"""Warp's module hash under warp_tiles, and the effects of enable() and disable() on Warp."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import FORWARD_ONLY, WARP_VERSION, gemm, load, roles
from tests.integration.plans import ALL
from tests.integration.solvers import CALLS, IN_PLACE, solver
from tests.nightly import some
from warp_tiles._warp.internals import REQUIRED, SOLVERS, SUPPORTED_VERSIONS, TRACED, check_internals, find
from warp_tiles._warp.modules import module_builder
from warp_tiles._warp.reload import this_thread
from warp_tiles.build.engine import Engine

COPY = "@wp.kernel\ndef copy(x: wp.array(dtype=float)):\n    x[0] = 1.0\n"
HELPER = """
@wp.func
def helper(a: wp.tile(dtype=wp.float32, shape=(16, 16)), b: wp.tile(dtype=wp.float32, shape=(16, 16))):
    return wp.tile_matmul(a, b)

"""
# wp.tile_matmul is not a Python object; it exists only inside kernels and in Warp's own table
CAPTURED = "from warp._src.context import builtin_functions\nmm = builtin_functions['tile_matmul']\n\n"
WITH_PRODUCTS = {
    "a call": gemm(),
    "the package's own name": "import warp\n\n" + gemm(call="warp.tile_matmul(a, b)"),
    "another name of the package": "import warp as other\n\n" + gemm(call="other.tile_matmul(a, b)"),
    "a captured builtin": CAPTURED + gemm(call="mm(a, b)"),
    "an attribute": "import types\n" + CAPTURED + "ops = types.SimpleNamespace(go=mm)\n\n" + gemm(call="ops.go(a, b)"),
    "a helper": HELPER + gemm(call="helper(a, b)"),
    "a forward-only kernel": gemm(decorator=FORWARD_ONLY),
}
if WARP_VERSION >= (1, 19):  # in older versions a static expression cannot be a builtin function
    WITH_PRODUCTS["a static expression"] = CAPTURED + gemm(call="wp.static(mm)(a, b)")
CHOLESKY = solver("tile_cholesky")
SOLVER_CALLS = {call: solver(call) for call in CALLS} | {"upper": solver("tile_cholesky", 'a, fill_mode="upper"')}
MENTIONS = WITH_PRODUCTS | SOLVER_CALLS


@pytest.fixture(autouse=True)
def _disabled() -> Iterator[None]:
    warp_tiles.disable()
    yield
    warp_tiles.disable()


def warp_hash(module: Any, block_dim: int | None = None) -> bytes:
    """The hash that Warp would use now. Warp decides if an earlier one is still valid."""
    digest: bytes = wp.get_module(module.__name__).get_module_hash(block_dim)
    return digest


# ---- the hash


def test_a_module_without_products_keeps_its_hash() -> None:
    module = load(COPY)
    before = warp_hash(module)
    with warp_tiles.enabled():
        assert warp_hash(module) == before
        with warp_tiles.override(provider="scalar"):
            assert warp_hash(module) == before
    assert warp_hash(module) == before


@pytest.mark.parametrize("name", MENTIONS)
def test_a_module_with_products_or_solvers_gets_another_hash(name: str) -> None:
    module = load(MENTIONS[name])

    def hashes() -> list[bytes]:
        return [warp_hash(module, threads) for threads in (32, 64)]

    before = hashes()
    with warp_tiles.enabled():
        assert len({*before, *hashes()}) == 4
        with warp_tiles.override(policy="off"):
            assert hashes() == before
    assert hashes() == before
    if name in WITH_PRODUCTS:
        with warp_tiles.enabled():
            planned = warp_tiles.plan(module, arch=90, block_dim=64)
        assert roles(planned, needed=True) == (["forward"] if FORWARD_ONLY in MENTIONS[name] else ALL)


def test_settings_that_decide_about_code_have_hashes_of_their_own_and_kernels_keep_their_names(tmp_path: Path) -> None:
    module, names = load(gemm()), set()

    def hash_with(**settings: Any) -> bytes:
        with warp_tiles.override(**settings):
            found = warp_hash(module)
        names.add(module.gemm.hash)
        return found

    original = warp_hash(module)
    deciding = [{"provider": name} for name in ("own", "cublasdx", "libmathdx", "scalar")]
    deciding += [{"linker": "warp"}, {"policy": "scalar"}, {"policy": "fast"}]
    with warp_tiles.enabled():
        usual = warp_hash(module)
        assert len({original, usual, *(hash_with(**settings) for settings in deciding)}) == 2 + len(deciding)
        for policy in ("auto", "max", "locked"):
            assert hash_with(policy=policy) == usual
        assert hash_with(cache_dir=tmp_path / "cache", jobs=1) == usual
        assert hash_with(policy="off") == original
    assert len(names) == 1


def test_the_layer_of_a_setting_is_not_in_the_hash() -> None:
    module = load(gemm(), warp_tiles_provider="own", warp_tiles_jobs=3)
    with warp_tiles.enabled():
        by_option, found = warp_hash(module), []
        for provider in ("own", "cublasdx", "auto"):  # the default, too, overrides the option if code names it
            with warp_tiles.override(provider=provider):
                found.append(warp_hash(module))
        assert found[0] == warp_hash(module) == by_option
        assert len(set(found)) == 3


# ---- on the CPU


def cpu_source(module: Any) -> str:
    """What Warp generates of a module for the CPU, in blocks of one thread."""
    found = wp.get_module(module.__name__)
    with this_thread(on_cpu=True):
        found.get_module_hash(1)
    options = found.resolve_options(wp.config, block_dim=1) | {"output_arch": None}
    source = str(module_builder(found, options, found.hashers[1], "cpu").codegen("cpu"))
    source = source.replace(Path(str(module.__file__)).name, "case.py")  # in comments
    return re.sub(r"helper_\d+", "helper", source)  # Warp counts functions of one name


@pytest.mark.parametrize("text", MENTIONS.values(), ids=MENTIONS)
def test_the_source_for_the_cpu_is_warps(text: str) -> None:
    backward = not any(name in text for name in IN_PLACE)
    before = cpu_source(load(text, enable_backward=backward))
    with warp_tiles.enabled():  # a module of its own, because Warp's generator changes the types of parameters
        assert cpu_source(load(text, enable_backward=backward)) == before


def test_a_cpu_loads_what_warp_has_compiled_and_starts_no_compiler(tmp_path: Path, monkeypatch: Any) -> None:
    started: list[object] = []
    monkeypatch.setattr(Engine, "start_compilers", lambda self, *given: started.append(given))
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path / "warp"))
    module = wp.get_module(load(gemm(decorator='@wp.kernel(module="unique")')).gemm.module.name)
    hashed = module.load("cpu", 1).module_hash
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "warp").rglob("*")}
    with warp_tiles.enabled(), warp_tiles.override(cache_dir=tmp_path / "tiles"):
        unique = load(gemm(decorator='@wp.kernel(module="unique")')).gemm.module
        if WARP_VERSION >= (1, 19):  # in older versions nothing tells when a unique module is named
            assert unique is module
        assert module.load("cpu", 1).module_hash == hashed
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "warp").rglob("*")} == files
        assert not started
        with this_thread(on_cpu=False):
            assert module.get_module_hash(1) != hashed, "blocks of one thread on a GPU"
        assert started


# ---- enable and disable


def attributes_of_warp() -> dict[str, int]:
    """The identity of every attribute that could be hooked, of modules, their classes and builtin functions."""
    found: dict[str, int] = {}
    for name in ("build", "codegen", "context", "types", "logger"):
        module = find(name)
        for attribute, value in vars(module).items():
            found[f"{name}.{attribute}"] = id(value)
            if isinstance(value, type) and value.__module__.startswith("warp."):
                found.update({f"{name}.{attribute}.{key}": id(item) for key, item in vars(value).items()})
    for key, function in getattr(find("context"), "builtin_functions", {}).items():  # a test takes them away
        for number, overload in enumerate([function, *getattr(function, "overloads", ())]):
            found.update({f"{key}[{number}].{name}": id(item) for name, item in vars(overload).items()})
    return found


# counters and caches, which Warp itself changes
IGNORED = ("context.runtime", "context.user_modules", "codegen.options")


def changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} - set(IGNORED)


def test_disable_restores_every_attribute() -> None:
    wp.init()
    load(gemm())
    before = attributes_of_warp()
    warp_tiles.enable()
    hooked = changed(before, attributes_of_warp())
    expected = {
        "build.build_lto_dot",
        "build.build_cuda",
        "codegen.Adjoint.build",
        "codegen.codegen_func_reverse",
        *(["codegen.log_warning"] if "codegen.log_warning" in before else []),  # Warp 1.19
        *(name for name in TRACED if name.startswith("codegen.Adjoint.")),
        "context.Module._compile",
        "context.Module._run_codegen",
        "context.Module.load",
        "context.ModuleBuilder.codegen",
        "context.ModuleBuilder.get_link_inputs",
        "context.ModuleHasher.__init__",
        "context.ModuleHasher.hash_adjoint",
    }
    assert expected <= hooked
    dispatchers = {name for name in hooked if name.startswith("tile_")}
    assert {name.partition("[")[0] for name in dispatchers} == {"tile_matmul", *SOLVERS}
    assert all(name.endswith(".lto_dispatch_func") for name in dispatchers)
    assert not {name for name in hooked - dispatchers if name not in expected}
    warp_tiles.disable()
    assert changed(before, attributes_of_warp()) == set()


def test_enabling_again_changes_nothing_and_disabling_restores_hashes() -> None:
    wp.init()
    module = load(gemm())
    before, original = attributes_of_warp(), warp_hash(module)
    for _ in range(3):
        warp_tiles.enable()
        once, hooked = attributes_of_warp(), warp_hash(module)
        warp_tiles.enable()
        with warp_tiles.enabled():
            pass
        assert warp_tiles.is_enabled()
        assert changed(once, attributes_of_warp()) == set()
        assert warp_hash(module) == hooked
        assert len(warp_tiles.plan(module, arch=90).functions) == 3
        warp_tiles.disable()
        assert not warp_tiles.is_enabled()
        assert changed(before, attributes_of_warp()) == set()
        assert warp_hash(module) == original
        with pytest.raises(warp_tiles.PlanError, match="enable"):
            warp_tiles.plan(module, arch=90)


def test_a_with_block_ends_after_an_exception() -> None:
    with pytest.raises(KeyError), warp_tiles.enabled():
        raise KeyError
    assert not warp_tiles.is_enabled()


# ---- internals

MEMBERS = list(REQUIRED)


@pytest.mark.parametrize("path", some(MEMBERS, 6, "slow"))
def test_a_missing_member_is_named_and_warp_stays_unchanged(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wp.init()
    owner_path, _, name = path.rpartition(".")
    monkeypatch.delattr(find(owner_path), name)
    before = attributes_of_warp()
    with pytest.raises(warp_tiles.UnsupportedWarpError) as caught:
        warp_tiles.enable()
    assert f"warp._src.{path}" in str(caught.value)
    assert wp.__version__ in str(caught.value)
    assert not warp_tiles.is_enabled()
    assert changed(before, attributes_of_warp()) == set()


def test_a_missing_builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(find("context.builtin_functions"), "tile_matmul")
    with pytest.raises(warp_tiles.UnsupportedWarpError, match=rf"Warp {wp.__version__} has no builtin 'tile_matmul'"):
        warp_tiles.enable()


def test_a_missing_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find("build"), "build_cuda", lambda cu_path, arch, output_path, ltoirs: None)
    with pytest.raises(warp_tiles.UnsupportedWarpError, match=r"parameter 'fatbins' of warp\._src\.build\.build_cuda"):
        warp_tiles.enable()


def test_this_warp_has_every_member() -> None:
    assert check_internals() == [f"warp._src.{path}" for path in MEMBERS]
    low, high = SUPPORTED_VERSIONS
    assert low <= WARP_VERSION <= high


def test_an_unknown_setting_in_the_environment_leaves_warp_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_TILES_FOO", "1")
    before = attributes_of_warp()
    with pytest.raises(warp_tiles.SettingError, match="WARP_TILES_FOO"):
        warp_tiles.enable()
    assert changed(before, attributes_of_warp()) == set()


OPTED_OUT = [(gemm(), {"enable_mathdx_gemm": False}), (CHOLESKY, {"enable_mathdx_solver": False})]


@pytest.mark.parametrize(("text", "options"), OPTED_OUT, ids=["products", "solvers"])
@pytest.mark.parametrize(
    "settings", [{"mathdx_opt_out": "warp"}, {"provider": "cublasdx"}, {"policy": "scalar"}], ids=str
)
def test_a_module_that_opts_out_and_is_left_to_warp_keeps_warps_hash(
    text: str, options: dict[str, bool], settings: dict[str, Any]
) -> None:
    module = load(text, **options)
    before = warp_hash(module)
    with warp_tiles.enabled(), warp_tiles.override(**settings):
        assert warp_hash(module) == before
    assert warp_hash(module) == before


@pytest.mark.parametrize(("text", "options"), OPTED_OUT, ids=["products", "solvers"])
@pytest.mark.parametrize("opt_out", ["auto", "own"])
def test_own_templates_serve_a_module_that_opts_out(text: str, options: dict[str, bool], opt_out: str) -> None:
    module, hashes = load(text, **options, warp_tiles_mathdx_opt_out=opt_out), set()
    with warp_tiles.enabled():
        for policy in ("auto", "max", "locked"):
            with warp_tiles.override(policy=policy):
                hashes.add(warp_hash(module))
                planned = warp_tiles.plan(module, arch=90, block_dim=64)
            assert {planned.provider for planned in planned.needed} == {"own"}
    assert len(hashes) == 1
    assert hashes != {warp_hash(module)}
