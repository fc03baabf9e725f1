"""Flattened headers: the inlined includes, and the remaining text."""

from __future__ import annotations

from pathlib import Path

from warp_tiles.codegen.prelude import MODULE_HEADER
from warp_tiles.compile.sources import flatten, kernels_folder


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.cuh").write_text(text)


def test_each_header_is_inlined_once_at_its_first_include(tmp_path: Path) -> None:
    write(tmp_path / "low", types="#pragma once\nstruct T {};\n", copy='#pragma once\n#include "low/types.cuh"\nT x;\n')
    write(tmp_path, top='// top\n#pragma once\n#include "low/copy.cuh"\n#include "low/types.cuh"\nT y;\n')
    assert flatten(tmp_path / "top.cuh", tmp_path) == "// top\nstruct T {};\nT x;\nT y;\n"


def test_a_header_beside_the_one_that_includes_it_comes_first(tmp_path: Path) -> None:
    write(tmp_path, other="far\n")
    write(tmp_path / "low", other="near\n", top='#include "other.cuh"\n')
    assert flatten(tmp_path / "low" / "top.cuh", tmp_path) == "near\n"


def test_includes_outside_the_root_stay(tmp_path: Path) -> None:
    text = '#include <cuda.h>\n#include "builtin.h"\n#include "../outside.cuh"\n'
    write(tmp_path, outside="outside\n")
    write(tmp_path / "root", top=text)
    assert flatten(tmp_path / "root" / "top.cuh", tmp_path / "root") == text


def test_a_cycle_of_includes_ends(tmp_path: Path) -> None:
    write(tmp_path, a='#include "b.cuh"\na\n', b='  # include "a.cuh"\nb\n')
    assert flatten(tmp_path / "a.cuh", tmp_path) == "b\na\n"


def test_the_flattened_module_header_has_no_includes() -> None:
    text = flatten(kernels_folder() / MODULE_HEADER, kernels_folder())
    assert "#include" not in text
    assert "#pragma once" not in text
    assert text.count("mad.wide.s32 %0") == 1
