"""Device sources: every file that they can include, by the name of its include, and their flattened text."""

from __future__ import annotations

from pathlib import Path

import pytest

from warp_tiles.codegen.prelude import MODULE_HEADER
from warp_tiles.compile.sources import flatten, include_closure, kernels_folder


def tree(root: Path, **files: str) -> Path:
    """Create files from keywords: ``__`` stands for a slash, and the suffix is ``.h``."""
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".h")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# ---- include_closure


def test_a_closure_names_files_as_they_are_included(tmp_path: Path) -> None:
    src = tree(tmp_path / "src", top='#include "local.h"\n#include <lib/a.h>\n', local="")
    inc = tree(tmp_path / "inc", lib__a='#include "b.h"\n', lib__b="#include <c.h>", c="", unused="")
    closure = include_closure(src / "top.h", [src, inc])
    assert closure == {
        "top.h": src / "top.h",
        "local.h": src / "local.h",
        "lib/a.h": inc / "lib/a.h",
        "lib/b.h": inc / "lib/b.h",
        "c.h": inc / "c.h",
    }


def test_cycles_end_and_missing_headers_are_left_out(tmp_path: Path) -> None:
    root = tree(tmp_path, a='#include "gone.h"\n#include <cstdio>\n#include "b.h"', b='#include "a.h"\n#include "b.h"')
    assert set(include_closure(root / "a.h", [root])) == {"a.h", "b.h"}


def test_paths_upwards_are_followed(tmp_path: Path) -> None:
    root = tree(tmp_path, lib__x__a='#include "../y/b.h"', lib__y__b="", top="#include <lib/x/a.h>")
    assert include_closure(root / "top.h", [root]).keys() == {"top.h", "lib/x/a.h", "lib/y/b.h"}


def test_a_name_beside_the_file_wins_over_the_folders(tmp_path: Path) -> None:
    root = tree(tmp_path, one__a='#include "v.h"', one__v="", two__v="")
    closure = include_closure(root / "one/a.h", [root / "two"])
    assert closure["v.h"] == root / "one/v.h"


def test_an_angle_include_is_not_searched_beside_the_file(tmp_path: Path) -> None:
    root = tree(tmp_path, one__a="#include <v.h>", one__v="", two__v="")
    assert root / "two/v.h" in include_closure(root / "one/a.h", [root / "two"]).values()


def test_folders_are_searched_in_order(tmp_path: Path) -> None:
    root = tree(tmp_path, src__a="#include <v.h>", one__v="", two__v="")
    assert include_closure(root / "src/a.h", [root / "one", root / "two"])["v.h"] == root / "one/v.h"
    assert include_closure(root / "src/a.h", [root / "two", root / "one"])["v.h"] == root / "two/v.h"


@pytest.mark.parametrize(
    "line", ["  #  include  <b.h>", "\t#include\t<b.h>", "#if 0\n#include <b.h>\n#endif", '#include "b.h" // why']
)
def test_every_spelling_of_an_include_counts(tmp_path: Path, line: str) -> None:
    root = tree(tmp_path, a=line, b="")
    assert "b.h" in include_closure(root / "a.h", [root])


@pytest.mark.parametrize(
    "line", ["// #include <b.h>", "#include NAME", "#define X #include", 'auto s = "#include <b.h>";']
)
def test_text_that_is_no_include_does_not_count(tmp_path: Path, line: str) -> None:
    root = tree(tmp_path, a=line, b="")
    assert set(include_closure(root / "a.h", [root])) == {"a.h"}


def test_two_files_of_one_name_in_different_folders_both_count(tmp_path: Path) -> None:
    # there is a "detail.h" beside one/a.h and another one beside two/b.h; a key must contain both
    root = tree(
        tmp_path,
        top="#include <one/a.h>\n#include <two/b.h>",
        one__a='#include "detail.h"',
        one__detail="",
        two__b='#include "detail.h"',
        two__detail="",
    )
    found = set(include_closure(root / "top.h", [root]).values())
    assert {root / "one/detail.h", root / "two/detail.h"} <= found


def test_two_files_that_different_folders_hold_under_one_name_both_count(tmp_path: Path) -> None:
    # src/top.h includes src/v.h; inc/a.h, from another folder, includes inc/v.h
    src = tree(tmp_path / "src", top='#include "v.h"\n#include <a.h>', v="")
    inc = tree(tmp_path / "inc", a='#include "v.h"', v="")
    found = set(include_closure(src / "top.h", [inc]).values())
    assert {src / "v.h", inc / "v.h"} <= found


# ---- flattened headers


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.cuh").write_text(text)


def test_each_header_is_inlined_once_at_its_first_include(tmp_path: Path) -> None:
    write(tmp_path / "low", types="#pragma once\nstruct T {};\n", copy='#pragma once\n#include "low/types.cuh"\nT x;\n')
    write(tmp_path, top='// top\n#pragma once\n#include "low/copy.cuh"\n#include "low/types.cuh"\nT y;\n')
    assert flatten('#include "top.cuh"', tmp_path) == "// top\nstruct T {};\nT x;\nT y;\n"


def test_a_header_beside_the_one_that_includes_it_comes_first(tmp_path: Path) -> None:
    write(tmp_path, other="far\n")
    write(tmp_path / "low", other="near\n", top='#include "other.cuh"\n')
    assert flatten('#include "low/top.cuh"', tmp_path) == "near\n"


def test_includes_outside_the_root_stay(tmp_path: Path) -> None:
    text = '#include <cuda.h>\n#include "builtin.h"\n#include "../outside.cuh"\n'
    write(tmp_path, outside="outside\n")
    write(tmp_path / "root", top=text)
    assert flatten('#include "top.cuh"', tmp_path / "root") == text


def test_a_cycle_of_includes_ends(tmp_path: Path) -> None:
    write(tmp_path, a='#include "b.cuh"\na\n', b='  # include "a.cuh"\nb\n')
    assert flatten('#include "a.cuh"', tmp_path) == "b\na\n"


def test_the_flattened_module_header_has_no_includes() -> None:
    text = flatten(f'#include "{MODULE_HEADER}"', kernels_folder())
    assert "#include" not in text
    assert "#pragma once" not in text
    assert text.count("mad.wide.s32 %0") == 1
