"""A Warp that is newer than the newest tested one: what is checked, served, and left to it.

Each change that Warp has announced is simulated, so that a change of meaning is noticed and not only a missing name.
"""

import copy
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from benchmarks.speed.cubin import sections
from tests.integration.helpers import FORWARD_ONLY, WARP_VERSION, compile_module, gemm, load
from tests.loop_forms import FORMS
from warp_tiles._warp import probe, require_hooks
from warp_tiles._warp.hooks import Hooks
from warp_tiles._warp.internals import find, mathdx_enabled

TEXT = FORMS["bounds from a shape"].text
needs_mathdx = pytest.mark.skipif(not mathdx_enabled(), reason="this Warp was built without MathDx")


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Warp calls itself 1.20. Yields the warnings."""
    wp.init()
    monkeypatch.setattr(wp, "__version__", "1.20.0")
    found: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_: found.append(str(message)))
        yield found
    warp_tiles.disable()


def enable_and_plan(text: str = TEXT) -> warp_tiles.ModulePlan:
    warp_tiles.enable()
    return warp_tiles.plan(load(text), arch=90, block_dim=64)


def left_to_warp(found: list[str]) -> str:
    """The one warning after that of enable()."""
    first, second = found
    assert "Warp 1.20.0 is newer than 1.19" in first
    return second


def test_this_warp_generates_what_the_probe_expects_and_is_not_probed(
    enabled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = probe.generated(require_hooks("a test"))
    assert probe.difference(probe.PRODUCT, probe.product_of(made)) == ""
    assert probe.difference(probe.TRACE, probe.trace_of(made)) == ""
    assert not any("probe" in name for name in find("context.user_modules"))
    monkeypatch.setattr(probe, "generated", lambda hooks: 1 / 0)
    assert warp_tiles.plan(load(TEXT), arch=90, block_dim=64).loops


@needs_mathdx
def test_a_newer_warp_is_served_if_the_probe_is_as_expected(newer: list[str]) -> None:
    warp_tiles.enable()
    assert len(newer) == 1
    assert require_hooks("a test")._is_untested, "enable() generates nothing"
    plan = warp_tiles.plan(load(TEXT), arch=90, block_dim=64)
    assert plan.loops
    assert {item.provider for item in plan.needed} <= {"own", "stages"}
    assert len(newer) == 1, newer


def freeze_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = property(lambda tile: tile._storage, lambda tile, new: vars(tile).setdefault("_storage", new))
    monkeypatch.setattr(find("types.tile"), "storage", frozen, raising=False)


def refuse_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(var: Any) -> None:
        raise AttributeError("storage is frozen")

    monkeypatch.setattr("warp_tiles._warp.sites.put_in_shared_memory", refuse)


def pad_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    original = find("types.tile").__init__

    def padded(self: Any, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        if list(self.strides or ())[1:] == [1]:
            self.strides = [self.strides[0] + 8, 1]

    monkeypatch.setattr(find("types.tile"), "__init__", padded)


def write_adjoints_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hooks, "_codegen_func_reverse", lambda self, original, *args, **named: original(*args, **named))


@needs_mathdx
@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (freeze_storage, "('float32', (16, 16), 'register'"),
        (refuse_storage, "storage is frozen"),
        (pad_rows, "leading_dimension=24"),
        (write_adjoints_elsewhere, "('with an adjoint', False)"),
    ],
)
def test_another_product_is_left_to_warp(
    change: Callable[[pytest.MonkeyPatch], None], difference: str, newer: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    assert enable_and_plan().functions == ()
    said = left_to_warp(newer)
    assert "products and solvers are left to Warp 1.20.0" in said
    assert difference in said


@needs_mathdx
def test_another_trace_leaves_only_loops_to_warp(newer: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TRACE", (*probe.TRACE[:-1], ("tile_store", "another way")))
    plan = enable_and_plan()
    assert "loops of products are left as Warp generates them" in left_to_warp(newer)
    assert plan.loops == ()
    assert "expected ('tile_store', 'another way')" in plan.loops_reason
    assert {item.provider for item in plan.needed} == {"own"}


@needs_mathdx
def test_another_signature_of_build_lto_dot(newer: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    original = find("build").build_lto_dot

    def build_lto_dot(*args: Any, padding: int = 0, **named: Any) -> Any:
        return original(*args, **named)

    known = list(inspect.signature(original).parameters.values())
    extra = inspect.Parameter("padding", inspect.Parameter.KEYWORD_ONLY, default=0)
    build_lto_dot.__signature__ = inspect.Signature([*known, extra])  # type: ignore[attr-defined]
    monkeypatch.setattr(find("build"), "build_lto_dot", build_lto_dot)
    plan = enable_and_plan()
    assert find("build").build_lto_dot is build_lto_dot
    assert require_hooks("a test").engine._libmathdx is None
    assert "libmathdx" in left_to_warp(newer)
    assert "padding" in left_to_warp(newer)
    assert plan.loops


def test_a_required_part_that_is_gone(newer: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The program runs with Warp alone, and a warning names the part. A tested Warp without it is an error."""
    load_of = find("context.Module").load
    monkeypatch.delattr(find("context.Module"), "load")
    warp_tiles.enable()
    assert not warp_tiles.is_enabled()
    assert any(
        "everything is left to Warp: Warp 1.20.0 has no warp._src.context.Module.load" in text for text in newer
    ), newer
    assert find("build").build_cuda.__module__.startswith("warp.")
    with pytest.raises(warp_tiles.UnsupportedWarpError, match=r"context\.Module\.load"):
        warp_tiles.report()
    warp_tiles.disable()
    with pytest.raises(warp_tiles.PlanError, match="to be enabled"):
        warp_tiles.report()
    monkeypatch.setattr(find("context.Module"), "load", load_of, raising=False)
    warp_tiles.enable()
    assert warp_tiles.is_enabled()


def test_launches_that_skip_the_load_find_no_hash_after_a_change(enabled: None) -> None:
    module = wp.get_module(load(gemm()).__name__)
    module.get_module_hash(64)
    planned = module.hashers[64]
    with warp_tiles.override(provider="scalar"):
        assert module.hashers.get(64) is not planned, "as after mark_modified(), which a launch plan has to obey"


def test_modules_that_are_generated_side_by_side(enabled: None) -> None:
    hooks, found, errors = require_hooks("a test"), [], []
    start = threading.Barrier(4)

    def generate(number: int) -> None:
        try:
            start.wait(30)
            found.append(probe.generated(hooks, f"side_by_side_{number}"))  # without Warp's lock
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=generate, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert {(probe.product_of(made), probe.trace_of(made)) for made in found} == {(probe.PRODUCT, probe.TRACE)}


@pytest.mark.skipif(WARP_VERSION < (1, 19), reason="blocks of several threads on the CPU came in Warp 1.19")
@pytest.mark.parametrize(("blocks", "threads"), [(False, 1), (True, 32)])
def test_prefetch_on_the_cpu_takes_the_block_of_the_launch(
    enabled: None, monkeypatch: pytest.MonkeyPatch, blocks: bool, threads: int
) -> None:
    monkeypatch.setattr(wp.config, "enable_cpu_blocks", blocks)
    hooks, found = require_hooks("a test"), []
    monkeypatch.setattr(hooks.reloads.prefetches, "start", lambda targets: found.extend(targets))
    warp_tiles.prefetch(load(gemm()), device="cpu", block_dim=32)
    assert [block_dim for _, _, block_dim in found] == [threads]


# ---- builtins for products that a newer Warp may have

LEFT = "not known yet, left to Warp"
UPDATE = "wp.tile_matmul_transpose_update(c, wp.tile_load(C, shape=(16, 16), storage='shared'))"
ZEROS = "wp.tile_zeros(shape=(16, 16), dtype=float, storage='shared')"
UPDATES = {
    name: gemm(decorator=FORWARD_ONLY, **call).replace("    wp.tile_store", f"    {UPDATE}\n    wp.tile_store")
    for name, call in {"beside a product": {}, "alone": {"call": ZEROS}}.items()
}


@pytest.fixture
def transpose_update(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A builtin of this name, which adds a tile to another: Newton 1.8 looks for both."""
    wp.init()
    builtins = find("context.builtin_functions")
    found = next(one for one in builtins["add_inplace"].overloads if one.native_func == "tile_add_inplace")
    for name in ("tile_matmul_transpose_update", "tile_matmul_left_transpose_update"):
        made = copy.copy(found)
        made.key, made.overloads = name, [made]
        monkeypatch.setitem(builtins, name, made)
    yield
    warp_tiles.disable()


@pytest.mark.parametrize("text", UPDATES.values(), ids=UPDATES)
@pytest.mark.parametrize("name", ["tile_matmul_transpose_update", "tile_matmul_left_transpose_update"])
def test_an_unknown_builtin_is_named_in_the_plan(transpose_update: None, text: str, name: str) -> None:
    plan = enable_and_plan(text.replace("tile_matmul_transpose_update", name))
    (left,) = (item for item in plan.functions if item.provider == "warp")
    assert (left.call, left.needed) == (name, True)
    assert LEFT in left.reason
    assert LEFT in str(plan)
    assert len(plan.needed) == text.count("tile_matmul("), "a product beside it is planned as ever"


@pytest.mark.slow
def test_an_unknown_builtin_alone_is_built_as_by_warp(transpose_update: None, tmp_path: Path) -> None:
    codes, module = [], load(UPDATES["alone"])
    for folder in ("warp", "tiles"):
        (cubin,) = wp.compile_aot_module(module, arch=90, module_dir=tmp_path / folder, use_ptx=False)
        codes.append([code for name, code in sections(Path(cubin).read_bytes()) if name.startswith(".text.")])
        warp_tiles.enable()
    assert codes[0] == codes[1] != []


def test_an_unknown_builtin_beside_a_product_is_built(transpose_update: None, tmp_path: Path) -> None:
    warp_tiles.enable()
    _, record = compile_module(load(UPDATES["beside a product"]), tmp_path)
    assert record["linker"] == "warp_tiles"


def test_a_function_of_the_user_is_no_builtin() -> None:
    named = gemm(call="tile_matmul_transpose_update(a, b)", decorator=FORWARD_ONLY)
    tile = "wp.tile(dtype=wp.float32, shape=(16, 16))"
    helper = f"@wp.func\ndef tile_matmul_transpose_update(a: {tile}, b: {tile}):\n    return wp.tile_matmul(a, b)\n\n"
    plan = enable_and_plan(helper + named)
    assert {item.call for item in plan.functions} == {"tile_matmul"}
    warp_tiles.disable()


def test_the_source_of_codegen_snippet_can_be_read() -> None:
    """Newton looks into it for what Warp's snippets can do."""
    snippet = find("codegen.codegen_snippet")
    with warp_tiles.enabled():
        assert find("codegen").codegen_snippet is snippet
        assert inspect.getsource(snippet).startswith("def codegen_snippet(")
        assert not hasattr(snippet, "__wrapped__")
