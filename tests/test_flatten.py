"""Which includes are put in place, and what becomes of the header's own text."""

from __future__ import annotations

from pathlib import Path

from warp_tiles.flatten import flattened
from warp_tiles.providers.nvrtc import MODULE_HEADER, kernels_folder


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.cuh").write_text(text)


def test_each_header_is_put_in_place_once_where_it_is_first_included(tmp_path: Path) -> None:
    write(tmp_path / "low", types="#pragma once\nstruct T {};\n", copy='#pragma once\n#include "low/types.cuh"\nT x;\n')
    write(tmp_path, top='// top\n#pragma once\n#include "low/copy.cuh"\n#include "low/types.cuh"\nT y;\n')
    assert flattened(tmp_path / "top.cuh", tmp_path) == "// top\nstruct T {};\nT x;\nT y;\n"


def test_a_header_beside_the_one_that_includes_it_comes_first(tmp_path: Path) -> None:
    write(tmp_path, other="far\n")
    write(tmp_path / "low", other="near\n", top='#include "other.cuh"\n')
    assert flattened(tmp_path / "low" / "top.cuh", tmp_path) == "near\n"


def test_headers_of_others_stay(tmp_path: Path) -> None:
    text = '#include <cuda.h>\n#include "builtin.h"\n#include "../outside.cuh"\n'
    write(tmp_path, outside="outside\n")
    write(tmp_path / "root", top=text)
    assert flattened(tmp_path / "root" / "top.cuh", tmp_path / "root") == text


def test_headers_that_include_each_other_end(tmp_path: Path) -> None:
    write(tmp_path, a='#include "b.cuh"\na\n', b='  # include "a.cuh"\nb\n')
    assert flattened(tmp_path / "a.cuh", tmp_path) == "b\na\n"


def test_what_is_written_into_modules_includes_nothing() -> None:
    text = flattened(kernels_folder() / MODULE_HEADER, kernels_folder())
    assert "#include" not in text
    assert "#pragma once" not in text
    assert text.count("mad.wide.s32 %0") == 1
