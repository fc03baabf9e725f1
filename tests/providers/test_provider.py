"""The providers that compile: every input of a build is in its cache key, and the transcript names each difference."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.gemm.test_problem import BASE, CHANGED
from warp_tiles.compile import sources
from warp_tiles.compile import toolchain as store_module
from warp_tiles.compile.compiler import Compiled
from warp_tiles.compile.search import Toolchain
from warp_tiles.compile.toolchain import ToolchainStore
from warp_tiles.errors import ToolchainError, UnsupportedVariant
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.providers import cublasdx, mma
from warp_tiles.providers.base import Recipe
from warp_tiles.providers.cublasdx import CublasdxProvider, promised, source_text
from warp_tiles.providers.mma import MmaProvider, translation_unit
from warp_tiles.providers.nvrtc import NvrtcProvider
from warp_tiles.store.explain import explain
from warp_tiles.store.key import CacheKey, KeyField

PROVIDERS: dict[str, type[NvrtcProvider]] = {"mma": MmaProvider, "cublasdx": CublasdxProvider}
FLAGS = {name: provider(ToolchainStore(Path("unused"))).flags(90) for name, provider in PROVIDERS.items()}
both_providers = pytest.mark.parametrize("name", PROVIDERS)


class FakeInstallation:
    """A small toolchain on disk: device sources, own headers, a library's header, and a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header = folder / "include/cublasdx.hpp"
        self.unused = folder / "include/unused.hpp"
        self.compiler = folder / "lib/libnvrtc.so.12"
        self.builtins = folder / "lib/libnvrtc-builtins.so.12.9"
        self.sources = {"mma": folder / "kernels/gemm/block_gemm.cuh", "cublasdx": folder / "kernels/cublasdx/gemm.cuh"}
        self.own_headers = {"mma": folder / "kernels/arch/mma.cuh", "cublasdx": folder / "kernels/cublasdx/tile.cuh"}
        for path, text in {
            self.sources["mma"]: '#include "arch/mma.cuh"\n',
            self.sources["cublasdx"]: '#include <cublasdx.hpp>\n#include "tile.cuh"\n',
            self.own_headers["mma"]: "// instructions\n",
            self.own_headers["cublasdx"]: "// tile\n",
            self.header: "// library\n",
            self.unused: "// unused\n",
            self.compiler: "compiler",
            self.builtins: "built-ins",
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def toolchain(self) -> Toolchain:
        """The toolchain with the paths of this folder."""
        return Toolchain(self.compiler, (12, 9), None, None, (self.header.parent,), "25.6.0")

    def provider(self, name: str) -> NvrtcProvider:
        """A new provider, as in a new process."""
        return PROVIDERS[name](ToolchainStore(self.folder / "memo"))

    def key(self, name: str, variant: GemmProblem | None = None, config: TileConfig | None = None) -> CacheKey:
        """The cache key of a recipe."""
        return self.provider(name).key_of(recipe(name, variant, config))


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeInstallation:
    installation = FakeInstallation(tmp_path)
    monkeypatch.setattr(store_module, "find_toolchain", installation.toolchain)
    monkeypatch.setattr(sources, "kernels_folder", lambda: tmp_path / "kernels")
    return installation


FMA = TileConfig("fma", 8, 4, lanes_m=8, lanes_n=4)


def recipe(name: str, variant: GemmProblem | None = None, config: TileConfig | None = None) -> Recipe:
    """A recipe of a provider. The default configuration fits every variant, while the chosen one would change."""
    variant = variant or BASE
    return Recipe("", variant, variant.symbol, (config or FMA) if name == "mma" else None)


def differing(before: Any, after: Any) -> set[str]:
    assert before.digest != after.digest
    return {difference.label for difference in explain(before, after)}


LABELS = {
    "m": {"variant.m"},
    "n": {"variant.n"},
    "k": {"variant.k"},
    "precision": {"variant.precision"},
    "threads": {"variant.threads"},
    "arch": {"variant.arch", "flags"},
    **{
        f"{name}.{field}": {label}
        for name in "abc"
        for field, label in {
            "dtype": f"variant.{name}_dtype",
            "arrangement": "variant.arrangement",
            "leading_dimension": "variant.leading_dimensions",
            "alignment": "variant.alignments",
        }.items()
    },
}


@both_providers
@pytest.mark.parametrize("field", CHANGED)
def test_every_field_of_the_variant_is_in_the_key(field: str, name: str, installation: FakeInstallation) -> None:
    labels = differing(installation.key(name), installation.key(name, CHANGED[field]))
    assert labels == LABELS[field] | {"translation_unit"}


@pytest.mark.parametrize("field", [item.name for item in fields(TileConfig)])
def test_every_field_of_the_tile_configuration_is_in_the_key(
    field: str, installation: FakeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mma, "register_accumulators", lambda variant, symbol, config: "")  # it need not be buildable
    value = getattr(FMA, field)
    other = {str: "mma_m16n8k8", bool: not value, int: 2 * value}[type(value)]
    changed = replace(FMA, **{field: other})
    found = differing(installation.key("mma"), installation.key("mma", BASE, changed))
    assert found == {f"tile_config.{field}", "translation_unit"}


def test_the_recipe_has_the_chosen_tile_configuration(installation: FakeInstallation) -> None:
    assert [found.tile_config for found in installation.provider("mma").recipes(BASE)] == [choose(BASE)]


def test_a_variant_that_cannot_be_built_has_no_recipe(installation: FakeInstallation) -> None:
    with pytest.raises(UnsupportedVariant, match="threads=48"):
        installation.provider("mma").recipes(replace(BASE, threads=48))


@both_providers
def test_equal_inputs_give_equal_keys(name: str, installation: FakeInstallation) -> None:
    assert installation.key(name) == installation.key(name, replace(BASE))


def test_keys_of_providers_differ(installation: FakeInstallation) -> None:
    assert {"provider", "source"} < differing(installation.key("mma"), installation.key("cublasdx"))


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, flags in FLAGS.items() for place in range(len(flags) + 1)]
)
def test_every_flag_is_in_the_key(
    name: str, place: int, installation: FakeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, flags = installation.key(name), FLAGS[name]
    changed = (*flags[:place], "--use_fast_math", *flags[place + 1 :])
    monkeypatch.setattr(PROVIDERS[name], "flags", lambda provider, arch: changed)
    assert differing(before, installation.key(name)) == {"flags"}


@pytest.mark.parametrize(
    ("name", "part", "label"),
    [
        ("mma", "source", "source"),
        ("mma", "own_header", "source"),
        ("mma", "compiler", "compiler"),
        ("mma", "builtins", "compiler"),
        ("cublasdx", "source", "source"),
        ("cublasdx", "own_header", "source"),
        ("cublasdx", "header", "source"),
        ("cublasdx", "compiler", "compiler"),
        ("cublasdx", "builtins", "compiler"),
    ],
)
def test_every_file_of_the_toolchain_is_in_the_key(
    name: str, part: str, label: str, installation: FakeInstallation
) -> None:
    before = installation.key(name)
    own = {"source": installation.sources[name], "own_header": installation.own_headers[name]}
    path: Path = own[part] if part in own else getattr(installation, part)
    path.write_text(path.read_text() + " ")
    assert differing(before, installation.key(name)) == {label}


@both_providers
def test_a_header_that_is_not_included_is_not_in_the_key(name: str, installation: FakeInstallation) -> None:
    before = installation.key(name)
    other = "mma" if name == "cublasdx" else "cublasdx"
    for path in (installation.unused, installation.sources[other], *([installation.header] if name == "mma" else [])):
        path.write_text("// changed\n")
    assert installation.key(name) == before


@both_providers
def test_the_path_of_the_toolchain_is_not_in_the_key(
    name: str, installation: FakeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = installation.key(name)
    moved = FakeInstallation(installation.folder / "elsewhere")
    monkeypatch.setattr(store_module, "find_toolchain", moved.toolchain)
    monkeypatch.setattr(sources, "kernels_folder", lambda: moved.folder / "kernels")
    assert moved.key(name) == before  # so a bundle of one machine hits on another


@both_providers
def test_the_schema_of_the_source_is_in_the_key(
    name: str, installation: FakeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = installation.key(name)
    monkeypatch.setattr(PROVIDERS[name], "schema", 99)
    assert differing(before, installation.key(name)) == {"provider"}


@both_providers
def test_the_translation_unit_is_in_the_key(
    name: str, installation: FakeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = installation.key(name)
    monkeypatch.setattr(cublasdx, "source_text", lambda variant: source_text(variant) + "\n")
    monkeypatch.setattr(mma, "translation_unit", lambda *arguments: translation_unit(*arguments) + "\n")
    assert differing(before, installation.key(name)) == {"translation_unit"}


@both_providers
def test_the_compile_request_agrees_with_the_key(name: str, installation: FakeInstallation) -> None:
    provider = installation.provider(name)
    request = provider.request(recipe(name))
    found = {field.label: field for field in installation.key(name).fields}
    assert found["translation_unit"] == KeyField.of("translation_unit", request.source)
    folders = request.include_dirs  # paths are not in the key; "source" has the content of the headers
    if name == "mma":
        assert folders == (str(installation.folder / "kernels"),), "only own headers"
    else:
        assert folders == (str(installation.sources[name].parent), str(installation.header.parent))
    assert found["flags"] == KeyField.of("flags", request.flags)
    assert request.flags[0] == "-arch=sm_90"
    assert request.name == f"{BASE.symbol}_{name}.cu"
    assert BASE.describe() in request.subject


@both_providers
def test_without_a_compiler_there_is_no_key(
    name: str, installation: FakeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Toolchain:
        raise ToolchainError("no NVRTC")

    monkeypatch.setattr(store_module, "find_toolchain", fail)
    with pytest.raises(ToolchainError, match="no NVRTC"):
        installation.key(name)


def test_without_headers_mma_builds_and_cublasdx_raises(
    installation: FakeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = installation.key("mma")
    found = replace(installation.toolchain(), include_dirs=(), missing_headers=("no cublasdx.hpp", "pip install it"))
    monkeypatch.setattr(store_module, "find_toolchain", lambda: found)
    shutil.rmtree(installation.folder / "memo")
    assert installation.key("mma") == before
    assert installation.provider("mma").request(recipe("mma")).source
    functions: tuple[Callable[[Recipe], object], ...] = (
        installation.provider("cublasdx").key_of,
        installation.provider("cublasdx").request,
    )
    for function in functions:
        with pytest.raises(ToolchainError, match=r"no cublasdx\.hpp") as caught:
            function(recipe("cublasdx"))
        assert caught.value.remedy == "pip install it"


def test_the_cache_stores_the_tile_configuration(installation: FakeInstallation) -> None:
    info = installation.provider("mma").manifest(recipe("mma"), Compiled(b"", 1.25, "", "NVRTC 12.9"))
    assert info == {
        "symbol": BASE.symbol,
        "variant": BASE.to_json(),
        "provider": "mma",
        "build_seconds": 1.25,
        "compiler": "NVRTC 12.9",
        "tile_config": FMA.to_json(),
    }


def test_the_last_recipe_of_cublasdx_promises_no_alignment(installation: FakeInstallation) -> None:
    half = replace(BASE, c=replace(BASE.c, dtype="float16", alignment=16))
    first, second = installation.provider("cublasdx").recipes(half)
    assert (first.variant, first.symbol) == (promised(half), promised(half).symbol)
    assert (second.variant, second.symbol) == (half.without_alignment(), half.without_alignment().symbol)
    (only,) = installation.provider("cublasdx").recipes(CHANGED["a.leading_dimension"])
    assert set(only.variant.alignments) <= set(DTYPE_BYTES.values())
