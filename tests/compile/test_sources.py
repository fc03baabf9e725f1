"""Device sources: every file that they can include, by the name of its include, and their flattened text."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from warp_tiles import settings
from warp_tiles.build.engine import Engine
from warp_tiles.codegen.prelude import MODULE_HEADER
from warp_tiles.compile import sources
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
        "top.h": src / "top.h", "local.h": src / "local.h", "lib/a.h": inc / "lib/a.h", "lib/b.h": inc / "lib/b.h",
        "c.h": inc / "c.h",
    }  # fmt: skip


# the files of a tree, the folders that are searched, and the files that one/a.h includes
CLOSURES: dict[str, tuple[dict[str, str], list[str], set[str]]] = {
    "a cycle, and missing headers": (
        {"one__a": '#include "gone.h"\n#include <cstdio>\n#include "b.h"', "one__b": '#include "a.h"\n#include "b.h"'},
        ["one"],
        {"one/b.h"},
    ),
    "a path upwards": ({"one__a": '#include "../two/b.h"', "two__b": ""}, ["."], {"two/b.h"}),
    "beside the file": ({"one__a": '#include "v.h"', "one__v": "", "two__v": ""}, ["two"], {"one/v.h"}),
    "beside the file, after another folder": (
        {
            "one__a": '#include "../two/b.h"\n#include "gone/c.h"\n#include "v.h"',
            "one__v": "",
            "two__b": "",
            "two__v": "",
        },
        ["."],
        {"two/b.h", "one/v.h"},
    ),
    "angles are not beside it": ({"one__a": "#include <v.h>", "one__v": "", "two__v": ""}, ["two"], {"two/v.h"}),
    "in order": ({"one__a": "#include <v.h>", "two__v": "", "three__v": ""}, ["two", "three"], {"two/v.h"}),
    "in another order": ({"one__a": "#include <v.h>", "two__v": "", "three__v": ""}, ["three", "two"], {"three/v.h"}),
    # there is a "v.h" beside one/a.h and another one beside two/b.h; a key must contain both
    "one name in two folders": (
        {"one__a": '#include "v.h"\n#include <two/b.h>', "one__v": "", "two__b": '#include "v.h"', "two__v": ""},
        ["."],
        {"one/v.h", "two/b.h", "two/v.h"},
    ),
    "one name in a folder and a searched one": (
        {"one__a": '#include "v.h"\n#include <b.h>', "one__v": "", "two__b": '#include "v.h"', "two__v": ""},
        ["two"],
        {"one/v.h", "two/b.h", "two/v.h"},
    ),
}


@pytest.mark.parametrize("name", CLOSURES)
def test_the_files_that_an_include_means(tmp_path: Path, name: str) -> None:
    files, folders, expected = CLOSURES[name]
    root = tree(tmp_path, **files)
    found = include_closure(root / "one/a.h", [root / folder for folder in folders])
    assert {path.relative_to(root).as_posix() for path in found.values()} == {"one/a.h", *expected}


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        *((line, True) for line in ("  #  include  <b.h>", "\t#include\t<b.h>", '#include "b.h" // why')),
        ("#if 0\n#include <b.h>\n#endif", True),
        *((line, False) for line in ("// #include <b.h>", "#include NAME", "#define X #include")),
        ('auto s = "#include <b.h>";', False),
    ],
)
def test_every_spelling_of_an_include_counts_and_nothing_else(tmp_path: Path, line: str, counts: bool) -> None:
    root = tree(tmp_path, a=line, b="")
    assert ("b.h" in include_closure(root / "a.h", [root])) is counts


# ---- flattened headers


OUTSIDE = '#include <cuda.h>\n#include "builtin.h"\n#include "../outside.h"\n'
# the headers in a folder, the one that is flattened, and its text
FLATTENED: dict[str, tuple[dict[str, str], str, str]] = {
    "each header once at its first include": (
        {
            "low__types": "#pragma once\nstruct T {};\n",
            "low__copy": '#pragma once\n#include "low/types.h"\nT x;\n',
            "top": '// top\n#pragma once\n#include "low/copy.h"\n#include "low/types.h"\nT y;\n',
        },
        "top.h",
        "// top\nstruct T {};\nT x;\nT y;\n",
    ),
    "the header beside comes first": (
        {"other": "far\n", "low__other": "near\n", "low__top": '#include "other.h"\n'}, "low/top.h", "near\n",
    ),
    "includes outside the root stay": ({"top": OUTSIDE}, "top.h", OUTSIDE),
    "a cycle ends": ({"a": '#include "b.h"\na\n', "b": '  # include "a.h"\nb\n'}, "a.h", "b\na\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", FLATTENED)
def test_headers_are_flattened(name: str, tmp_path: Path) -> None:
    headers, top, expected = FLATTENED[name]
    tree(tmp_path, outside="outside\n")
    assert flatten(f'#include "{top}"', tree(tmp_path / "root", **headers)) == expected


def test_the_flattened_module_header_has_no_includes() -> None:
    text = flatten(f'#include "{MODULE_HEADER}"', kernels_folder())
    assert "#include" not in text
    assert "#pragma once" not in text
    assert text.count("mad.wide.s32 %0") == 1


# ---- a module's hash depends on all files of the folders that affect the code, and on no other file of the package

PACKAGE = sources.PACKAGE
EVERY_MODULE = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
KERNELS = sources.kernels_folder()
EVERY_HEADER = sorted(path.relative_to(KERNELS).as_posix() for path in KERNELS.rglob("*.cuh"))


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package and of the device sources, used in their place."""
    monkeypatch.setattr(sources, "kernels_folder", lambda: tmp_path / "copy" / "kernels")
    monkeypatch.setattr(sources, "PACKAGE", tmp_path / "copy" / "warp_tiles")
    ignored = shutil.ignore_patterns("__pycache__", "kernels")
    shutil.copytree(PACKAGE, tmp_path / "copy" / "warp_tiles", ignore=ignored)
    shutil.copytree(KERNELS, tmp_path / "copy" / "kernels")
    with settings.override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "copy"


def fingerprint() -> str:
    """The fingerprint of a new process."""
    return Engine(warp_toolkit=(13, 4)).fingerprint()


def salt_of_changed(file: Path) -> str:
    """The fingerprint with one more byte in a file."""
    original = file.read_bytes()
    file.write_bytes(original + b"\n")
    try:
        return fingerprint()
    finally:
        file.write_bytes(original)


@pytest.mark.slow
def test_one_byte_in_a_code_folder_or_a_device_source_changes_the_salt(copied: Path) -> None:
    before = fingerprint()
    decisive = {f"warp_tiles/{name}": name.split("/")[0] in sources.CODE_FOLDERS for name in EVERY_MODULE}
    for name, decides in {**decisive, **{f"kernels/{name}": True for name in EVERY_HEADER}}.items():
        assert (salt_of_changed(copied / name) != before) is decides, name
    assert fingerprint() == before


def test_a_new_module_changes_the_salt(copied: Path) -> None:
    before = fingerprint()
    (copied / "warp_tiles" / "codegen" / "new.py").write_text("")
    assert fingerprint() != before
