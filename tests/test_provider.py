"""The cuBLASDx provider: every input of a build is in its key, and the transcript names what differs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.test_variant import BASE, CHANGED
from warp_tiles import toolchain as toolchain_module
from warp_tiles.cache import explain
from warp_tiles.errors import ToolchainError
from warp_tiles.providers import cublasdx
from warp_tiles.providers.cublasdx import CublasdxProvider, kernels_folder, options, source_text
from warp_tiles.toolchain import Toolchain, ToolchainStore
from warp_tiles.variant import GemmVariant


class Place:
    """A small toolchain on disk: a device source, its own header, a library's header, and a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "kernels/cublasdx/gemm.cuh"
        self.own_header = folder / "kernels/cublasdx/tile.cuh"
        self.header = folder / "include/cublasdx.hpp"
        self.unused = folder / "include/unused.hpp"
        self.compiler = folder / "lib/libnvrtc.so.12"
        self.builtins = folder / "lib/libnvrtc-builtins.so.12.9"
        for path, text in {
            self.source: '#include <cublasdx.hpp>\n#include "tile.cuh"\n',
            self.own_header: "// tile\n",
            self.header: "// library\n",
            self.unused: "// unused\n",
            self.compiler: "compiler",
            self.builtins: "built-ins",
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def provider(self) -> CublasdxProvider:
        """A provider as a new process would make it."""
        return CublasdxProvider(ToolchainStore(self.folder / "memo"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    found = Toolchain(made.compiler, (12, 9), None, None, (made.header.parent,), "25.6.0")
    monkeypatch.setattr(toolchain_module, "find_toolchain", lambda: found)
    monkeypatch.setattr(cublasdx, "kernels_folder", lambda: tmp_path / "kernels")
    return made


def differing(before: Any, after: Any) -> set[str]:
    assert before.digest != after.digest
    return {difference.label for difference in explain(before, after)}


LABELS = {
    "m": {"variant.m"},
    "n": {"variant.n"},
    "k": {"variant.k"},
    "precision": {"variant.precision"},
    "threads": {"variant.threads"},
    "arch": {"variant.arch", "option.arch"},
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


@pytest.mark.parametrize("field", CHANGED)
def test_every_field_of_the_variant_changes_the_key_and_is_named(field: str, place: Place) -> None:
    provider = place.provider()
    labels = differing(provider.key(BASE), provider.key(CHANGED[field]))
    assert labels == LABELS[field] | {"translation_unit"}


def test_equal_inputs_give_equal_keys(place: Place) -> None:
    assert place.provider().key(BASE) == place.provider().key(replace(BASE))


@pytest.mark.parametrize("name", sorted(options(BASE)))
def test_every_option_changes_the_key_and_is_named(name: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.provider().key(BASE)
    monkeypatch.setattr(cublasdx, "options", lambda variant: {**options(variant), name: "other"})
    assert differing(before, place.provider().key(BASE)) == {f"option.{name}"}


def test_a_new_option_changes_the_key(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.provider().key(BASE)
    monkeypatch.setattr(cublasdx, "options", lambda variant: {**options(variant), "use_fast_math": True})
    assert differing(before, place.provider().key(BASE)) == {"option.use_fast_math"}


@pytest.mark.parametrize(
    ("part", "label"),
    [
        ("source", "source"),
        ("own_header", "source"),
        ("header", "source"),
        ("compiler", "compiler"),
        ("builtins", "compiler"),
    ],
)
def test_every_byte_of_the_toolchain_changes_the_key_and_is_named(part: str, label: str, place: Place) -> None:
    before = place.provider().key(BASE)
    path: Path = getattr(place, part)
    path.write_text(path.read_text() + " ")
    assert differing(before, place.provider().key(BASE)) == {label}


def test_a_header_that_is_not_included_does_not_matter(place: Place) -> None:
    before = place.provider().key(BASE)
    place.unused.write_text("// changed\n")
    assert place.provider().key(BASE) == before


def test_the_place_of_the_toolchain_does_not_matter(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.provider().key(BASE)
    moved = Place(place.folder / "elsewhere")
    found = Toolchain(moved.compiler, (12, 9), None, None, (moved.header.parent,), "25.6.0")
    monkeypatch.setattr(toolchain_module, "find_toolchain", lambda: found)
    monkeypatch.setattr(cublasdx, "kernels_folder", lambda: moved.folder / "kernels")
    assert moved.provider().key(BASE) == before  # a bundle made on one machine hits on another


def test_the_schema_of_the_source_is_in_the_key(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.provider().key(BASE)
    monkeypatch.setattr(cublasdx, "SOURCE_SCHEMA", cublasdx.SOURCE_SCHEMA + 1)
    assert differing(before, place.provider().key(BASE)) == {"provider"}


def test_the_translation_unit_is_in_the_key(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.provider().key(BASE)
    monkeypatch.setattr(cublasdx, "source_text", lambda variant: source_text(variant) + "\n")
    assert differing(before, place.provider().key(BASE)) == {"translation_unit"}


def test_what_is_compiled_is_what_the_key_says(place: Place) -> None:
    provider = place.provider()
    request = provider.request(BASE)
    fields = {field.label: field for field in provider.key(BASE).fields}
    assert fields["translation_unit"].shown == request.source
    given = dict(request.options)
    folders = given.pop("include_path")  # where the headers lie, not what they say: their content is in "source"
    assert folders == [str(place.source.parent), str(place.header.parent)]
    assert {label.removeprefix("option."): field.shown for label, field in fields.items() if "option." in label} == {
        name: str(value) for name, value in given.items()
    }
    assert given["arch"] == "sm_90"
    assert request.name == f"{BASE.symbol}.cu"
    assert BASE.describe() in request.subject


def test_without_a_toolchain_there_is_no_key(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Toolchain:
        raise ToolchainError("no NVRTC")

    monkeypatch.setattr(toolchain_module, "find_toolchain", fail)
    calls: tuple[Callable[[GemmVariant], object], ...] = (place.provider().key, place.provider().request)
    for call in calls:
        with pytest.raises(ToolchainError, match="no NVRTC"):
            call(BASE)


# ---- the translation unit


def macros(variant: GemmVariant) -> dict[str, str]:
    return dict(re.findall(r"^#define WT_(\w+) (.+)$", source_text(variant), re.M))


def test_macros_of_a_packed_variant() -> None:
    assert macros(BASE) == {
        "SYMBOL": BASE.symbol,
        "M": "24",
        "N": "20",
        "K": "16",
        "A_DTYPE": "__half",
        "A_ROW_MAJOR": "1",
        "B_DTYPE": "__nv_bfloat16",
        "B_ROW_MAJOR": "0",
        "C_DTYPE": "float",
        "C_ROW_MAJOR": "1",
        "LDA": "0",
        "LDB": "0",
        "LDC": "0",
        "ALIGN_A": "16",
        "ALIGN_B": "8",
        "ALIGN_C": "4",
        "TF32": "0",
        "THREADS": "128",
        "SM": "900",
    }


def test_an_explicit_leading_dimension_states_all_and_promises_nothing() -> None:
    found = macros(CHANGED["a.leading_dimension"])
    assert [found[f"LD{name}"] for name in "ABC"] == ["99", "16", "20"]
    assert [found[f"ALIGN_{name}"] for name in "ABC"] == ["0", "0", "0"]


def test_the_weakest_alignment_is_not_stated() -> None:
    found = macros(BASE.without_alignment())
    assert [found[f"ALIGN_{name}"] for name in "ABC"] == ["0", "0", "0"]


@pytest.mark.parametrize("field", CHANGED)
def test_every_field_changes_the_translation_unit(field: str) -> None:
    changed, base = macros(CHANGED[field]), macros(BASE)
    same_symbol = {**changed, "SYMBOL": base["SYMBOL"]}
    assert changed["SYMBOL"] == CHANGED[field].symbol
    assert same_symbol != base


def test_every_macro_is_used_by_the_device_source() -> None:
    text = "".join(path.read_text() for path in (kernels_folder() / "cublasdx").glob("*.cuh"))
    for name in macros(BASE):
        assert re.search(rf"\bWT_{name}\b", text), name
