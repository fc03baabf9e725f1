"""The provider of solver functions: recipes, cache keys, device sources and translation units."""

from __future__ import annotations

import re
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.solver.test_variant import BASE, CHANGED, L
from warp_tiles.compile import sources
from warp_tiles.compile import toolchain as store_module
from warp_tiles.compile.compiler import Compiled
from warp_tiles.compile.search import Toolchain
from warp_tiles.compile.toolchain import ToolchainStore
from warp_tiles.errors import UnsupportedVariant
from warp_tiles.providers.base import Recipe
from warp_tiles.providers.mma import SolverProvider, header_of, solver_translation_unit
from warp_tiles.solver.variant import OPERANDS, Function, SolverConfig, SolverVariant, choose
from warp_tiles.store.explain import explain
from warp_tiles.store.key import CacheKey, KeyField

KERNELS = sources.kernels_folder()
SOLVER_HEADERS = sorted(path.name for path in (KERNELS / "solver").glob("*.cuh"))
LANES = SolverConfig(4)


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the device sources, and a compiler that is never run."""
    shutil.copytree(KERNELS, tmp_path / "kernels")
    compiler = tmp_path / "lib/libnvrtc.so.12"
    compiler.parent.mkdir()
    compiler.write_text("compiler")
    monkeypatch.setattr(sources, "kernels_folder", lambda: tmp_path / "kernels")
    monkeypatch.setattr(store_module, "find_toolchain", lambda: Toolchain(compiler, (12, 9), None, None, (), "25.6.0"))
    return tmp_path / "kernels"


def provider(kernels: Path) -> SolverProvider:
    """A new provider, as in a new process."""
    return SolverProvider(ToolchainStore(kernels.parent / "memo"))


def recipe(variant: SolverVariant = BASE, config: SolverConfig = LANES) -> Recipe:
    """A recipe with a given configuration."""
    return Recipe("", variant, variant.symbol, config)


def key(kernels: Path, variant: SolverVariant = BASE, config: SolverConfig = LANES) -> CacheKey:
    """The cache key of a recipe."""
    return provider(kernels).key_of(recipe(variant, config))


def any_variant(function: Function) -> SolverVariant:
    """A small variant of a function."""
    return SolverVariant(function, 24, 24, (L,) * len(OPERANDS[function]), False, 64, 90)


def differing(before: CacheKey, after: CacheKey) -> set[str]:
    assert before.digest != after.digest
    return {difference.label for difference in explain(before, after)}


# ---- recipes


@pytest.mark.parametrize("function", get_args(Function))
def test_there_is_one_recipe_with_the_chosen_configuration(function: Function, kernels: Path) -> None:
    variant = any_variant(function)
    (found,) = provider(kernels).recipes(variant)
    assert (found.variant, found.symbol, found.tile_config) == (variant, variant.symbol, choose(variant))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"threads": 48}, "mma cannot serve threads=48: "), ({"arch": 70}, "mma cannot serve arch=70: ")],
)
def test_an_unsupported_variant_is_refused_with_the_field(changes: dict[str, int], words: str, kernels: Path) -> None:
    with pytest.raises(UnsupportedVariant, match=words):
        provider(kernels).recipes(replace(BASE, **changes))  # type: ignore[arg-type]


# ---- keys

LABELS = {
    "function": {"variant.solver"},
    "arch": {"variant.arch", "flags"},
    **{
        f"{name}.{field}": {label}
        for name in OPERANDS["lower_solve"]
        for field, label in {
            "arrangement": "variant.arrangement",
            "leading_dimension": "variant.leading_dimensions",
            "alignment": "variant.alignments",
        }.items()
    },
}


@pytest.mark.parametrize("field", CHANGED)
def test_every_field_of_the_variant_is_in_the_key(field: str, kernels: Path) -> None:
    found = differing(key(kernels), key(kernels, CHANGED[field]))
    assert found == LABELS.get(field, {f"variant.{field}"}) | {"translation_unit"}


@pytest.mark.parametrize("field", [item.name for item in fields(SolverConfig)])
def test_every_field_of_the_configuration_is_in_the_key(field: str, kernels: Path) -> None:
    changed = replace(LANES, **{field: 2 * getattr(LANES, field)})
    found = differing(key(kernels), key(kernels, BASE, changed))
    assert found == {f"tile_config.{field}", "translation_unit"}


def test_the_schema_is_in_the_key(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(kernels)
    monkeypatch.setattr(SolverProvider, "schema", 99)
    assert differing(before, key(kernels)) == {"provider"}


def test_the_compile_request_agrees_with_the_key(kernels: Path) -> None:
    request = provider(kernels).request(recipe())
    found = {field.label: field for field in key(kernels).fields}
    assert found["translation_unit"] == KeyField.of("translation_unit", request.source)
    assert (request.flags, request.include_dirs) == (("-arch=sm_90", "--std=c++17"), (str(kernels),))
    assert request.name == f"{BASE.symbol}_mma.cu"
    assert BASE.describe() in request.subject


def test_the_cache_stores_the_configuration(kernels: Path) -> None:
    info = provider(kernels).manifest(recipe(), Compiled(b"", 1.25, "", "NVRTC 12.9"))
    assert info == {
        "symbol": BASE.symbol,
        "variant": BASE.to_json(),
        "provider": "mma",
        "build_seconds": 1.25,
        "compiler": "NVRTC 12.9",
        "tile_config": {"lanes": 4},
    }


# ---- device sources


def test_the_source_includes_every_solver_header(kernels: Path) -> None:
    found = ToolchainStore(kernels.parent / "memo").closure(provider(kernels).source())
    inside = {Path(path).resolve().relative_to(kernels.resolve()).as_posix() for path in found.values()}
    assert {f"solver/{name}" for name in SOLVER_HEADERS} <= inside
    assert {path.partition("/")[0] for path in inside} == {"solver", "arch"}
    assert SolverProvider.header in inside


@pytest.mark.parametrize("name", SOLVER_HEADERS)
def test_every_solver_header_is_in_the_key(name: str, kernels: Path) -> None:
    before = key(kernels)
    with (kernels / "solver" / name).open("a") as file:
        file.write("\n")
    assert differing(before, key(kernels)) == {"source"}


def test_sources_of_products_are_not_in_the_key(kernels: Path) -> None:
    before = key(kernels)
    (kernels / "gemm/block_gemm.cuh").write_text("// changed\n")
    assert key(kernels) == before


# ---- translation units


@pytest.mark.parametrize("function", get_args(Function))
def test_a_translation_unit_takes_a_pointer_for_each_operand_and_for_scratch_memory(function: Function) -> None:
    variant = any_variant(function)
    text = solver_translation_unit(variant, SolverConfig(2))
    match = re.search(rf'extern "C" __device__ void {variant.symbol}\((.*)\)\n', text)
    assert match is not None
    names = [*OPERANDS[function], *(["w"] if variant.scratch_elements else [])]
    assert match[1] == ", ".join(f"void* {name}" for name in names)
    assert text.startswith(f'#include "{header_of(variant)}"\n')
    assert (KERNELS / header_of(variant)).is_file()
    assert "n = 24, columns = 24, threads = 64, lanes = 2" in text
    assert text.count("Order::") == function.startswith(("lower_solve", "upper_solve"))


def test_a_matrix_has_the_strides_of_its_arrangement() -> None:
    text = solver_translation_unit(BASE, SolverConfig())
    assert "using T = wt::solver::Matrix<float, 24, 1, 16>;" in text, "row-major"
    assert "using Y = wt::solver::Matrix<float, 1, 24, 8>;" in text, "column-major"
    assert "in_place = false" in text
    assert "in_place = true" in solver_translation_unit(replace(BASE, in_place=True), SolverConfig())


def test_templates_of_different_variants_have_different_names() -> None:
    texts = [solver_translation_unit(variant, LANES) for variant in (BASE, *CHANGED.values())]
    texts.append(solver_translation_unit(BASE, SolverConfig(8)))
    names = [_name(text) for text in texts]
    assert len(set(names)) == len(names), "with equal names, the linker would use one variant's templates for all"


def _name(text: str) -> Any:
    found = re.search(r"^struct (w\w{8}) \{$", text, re.M)
    assert found is not None
    return found[1]
