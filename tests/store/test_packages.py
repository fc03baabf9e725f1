"""Installed kernel packages: what is found where, whose files count, and what a damaged one costs."""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import warp_tiles
from warp_tiles.errors import SettingError
from warp_tiles.settings.table import package_names
from warp_tiles.store import MODULES
from warp_tiles.store import packages as packages_module
from warp_tiles.store.cache import Cache
from warp_tiles.store.documents import DamagedError, seal, unseal
from warp_tiles.store.key import CacheKey, Entry, Manifest
from warp_tiles.store.packages import (
    INDEX,
    NAMESPACE,
    Distribution,
    KernelIndex,
    KernelPackages,
    kernel_files,
    package_of,
)
from warp_tiles.util.warn import WarnedTexts

WARP = "1.19.0, CUDA 13.0"
PAYLOAD = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(20))
TARGETS = {"client.kernels": [(80, 64, False), (90, 64, False), (90, 128, True)]}


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages_module, "_said", WarnedTexts())


def key(number: int) -> CacheKey:
    return CacheKey.of({"kind": "module of Warp", "number": str(number)})


def entry(number: int, payload: bytes = PAYLOAD) -> Entry:
    return Entry(payload, Manifest.describe(key(number), payload, {"module": "client.kernels"}))


def install(
    site: Path, name: str = "client-kernels", entries: Sequence[Entry] = (), warp: str = WARP, version: str = "1.0"
) -> Path:
    """Install a package as pip does. Returns its folder."""
    distribution = Distribution(name, version, "", "py3-none-any", ())
    for file, data in kernel_files(
        distribution, warp, "NVRTC 13.0 a", TARGETS, [("module", one) for one in entries or (entry(1), entry(2))]
    ).items():
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return site / NAMESPACE / distribution.stem


def found(*sites: Path, chosen: str = "auto", warp: str = WARP) -> KernelPackages:
    return KernelPackages(chosen, warp, [str(site) for site in sites])


def payload_of(packages: KernelPackages, number: int) -> bytes | None:
    item = packages.find("module", key(number))
    loaded = None if item is None else item.entry()
    return None if loaded is None else loaded.payload


def outcome(packages: KernelPackages, module: str = "client.kernels") -> tuple[bool, list[str]]:
    """True if packages serve a module, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        serves = packages.serve(module)
    return serves, [str(one.message) for one in caught]


def refusal(site: Path) -> str:
    """The warning about a package whose index is refused; empty if it serves."""
    serves, said = outcome(found(site))
    assert serves == (not said)
    return "".join(said)


# ---- what is found


def test_an_entry_is_found_by_its_key_and_names_its_package(tmp_path: Path) -> None:
    install(tmp_path)
    packages = found(tmp_path / "empty", tmp_path)
    assert payload_of(packages, 1) == PAYLOAD
    item = packages.find("module", key(2))
    assert item.manifest.key == key(2)
    assert package_of(item.entry()) == "client-kernels 1.0"
    assert packages.find("module", key(3)) is None
    assert packages.find("ltoir", key(1)) is None, "another kind"
    assert packages.serve("client.kernels")
    assert not packages.serve("client")


def test_equal_payloads_are_stored_once_and_the_order_of_inputs_changes_nothing(tmp_path: Path) -> None:
    folder = install(tmp_path, entries=[entry(1), entry(2), entry(3, b"other")])
    assert len(list(folder.iterdir())) == 3
    assert (folder / INDEX).stat().st_size < 2000
    distribution = Distribution("a", "1", "", "py3-none-any", ())
    entries = [("module", entry(1)), ("module", entry(2, b"other"))]
    other = {name: list(reversed(rows)) for name, rows in TARGETS.items()}
    files = kernel_files(distribution, WARP, "", TARGETS, entries)
    assert kernel_files(distribution, WARP, "", other, list(reversed(entries))) == files


def test_the_cache_asks_packages_after_its_own_files_and_keeps_nothing_of_them(tmp_path: Path) -> None:
    install(tmp_path / "site")
    packages = found(tmp_path / "site")
    cache = Cache(tmp_path / "cache", MODULES, packaged=lambda wanted: packages.find("module", wanted))
    with cache.lease(key(1)) as lease:
        assert lease.found is not None
        assert package_of(lease.found) == "client-kernels 1.0"
    assert (manifest := cache.manifest(key(1))) is not None
    assert manifest.payload_bytes == len(PAYLOAD)
    assert not (tmp_path / "cache").exists()
    cache.put(key(1), b"own", {})
    assert (own := cache.get(key(1))) is not None
    assert own.payload == b"own"


@pytest.mark.parametrize(
    ("chosen", "names"), [("auto", ["a", "b_c"]), ("b-c", ["b_c"]), ("b_c,a", ["a", "b_c"]), ("d", [])]
)
def test_a_setting_chooses_packages(chosen: str, names: list[str], tmp_path: Path) -> None:
    for name in ("a", "b-c"):
        install(tmp_path, name)
    chosen = package_names("the setting", chosen)
    assert [one.folder for one in found(tmp_path, chosen=chosen).found] == names


@pytest.mark.parametrize("value", ["", "auto,a", "a b", 5, [1], "../a", "none,none-"])
def test_a_wrong_choice_is_refused(value: Any) -> None:
    with pytest.raises(SettingError, match="kernel_packages"), warp_tiles.override(kernel_packages=value):
        pass


def test_relative_folders_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "lib")
    monkeypatch.chdir(tmp_path)
    assert len(KernelPackages("auto", WARP, ["", "lib", str(tmp_path / "lib")]).found) == 1


def test_the_first_of_two_packages_serves(tmp_path: Path) -> None:
    install(tmp_path / "first", entries=[entry(1, b"first")])
    install(tmp_path / "second", entries=[entry(1, b"second"), entry(2, b"second")])
    packages = found(tmp_path / "first", tmp_path / "second")
    assert [payload_of(packages, number) for number in (1, 2)] == [b"first", b"second"]
    ((first, other, count),) = packages.shared_modules()
    assert (first.parent, other.parent, count) == (str(tmp_path / "first"), str(tmp_path / "second"), 1)
    assert not list(found(tmp_path / "first", tmp_path / "second", warp="1.18.0, CUDA 13.0").shared_modules())


# ---- why a module does not come from a package


@pytest.mark.parametrize(
    ("target", "warp", "reason"),
    [
        ((75, 64), WARP, "it has it for sm_80, sm_90, and not for sm_75"),
        ((80, 128), WARP, "it has it with 64 threads per block, and not with 128"),
        ((90, 128), WARP, "it was made with NVRTC 13.0 a, and this is NVRTC 13.1 b"),
        ((90, 64), WARP, "it has it from another source, or with other options or constants"),
        ((90, 64), "1.18.0, CUDA 13.0", f"it was made for Warp {WARP}, and this is Warp 1.18.0, CUDA 13.0"),
    ],
)
def test_a_miss_has_a_reason(target: tuple[int, int], warp: str, reason: str, tmp_path: Path) -> None:
    install(tmp_path)
    packages = found(tmp_path, warp=warp)
    assert packages.missed("client.kernels", *target, "NVRTC 13.1 b") == f"client-kernels 1.0: {reason}"
    assert packages.missed("other", *target, "") == ""


def test_a_plan_says_what_a_package_has(tmp_path: Path) -> None:
    install(tmp_path)
    packages = found(tmp_path)
    assert packages.planned("client.kernels", 90, 128) == "kernel package client-kernels 1.0 has this module"
    assert "lacks this module: it has it for sm_80, sm_90" in packages.planned("client.kernels", 120, 64)
    assert packages.planned("other", 90, 64) == ""


def test_a_package_of_another_warp_is_said_once_and_serves_nothing(tmp_path: Path) -> None:
    install(tmp_path)
    packages = found(tmp_path, warp="1.18.0, CUDA 13.0")
    assert outcome(packages, "other") == (False, []), "no warning for a program that it does not concern"
    serves, (said,) = outcome(packages)
    assert not serves
    assert re.search(r"client-kernels 1\.0 in .*made for Warp 1\.19\.0.*this is Warp 1\.18\.0", said)
    assert outcome(packages) == (False, [])
    assert packages.find("module", key(1)) is None


# ---- whose files count


@pytest.mark.parametrize("part", ["", "..", INDEX], ids=["folder", "namespace", "index"])
def test_what_others_may_write_is_refused_unless_they_may_write_python_code(part: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    folder = install(site)
    for path in (site, site / NAMESPACE, folder):
        path.chmod(0o755)
    assert refusal(site) == ""
    (folder / part).chmod(0o775)
    assert "are wider than those of" in refusal(site)
    site.chmod(0o775)  # as with the umask 002
    assert refusal(site) == ""
    (folder / part).chmod(0o777)
    packages_module._said = WarnedTexts()
    assert "are wider than those of" in refusal(site)


def test_files_of_root_count_and_those_of_another_user_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)
    mine, real = os.geteuid(), os.fstat
    owner = 0

    def fstat(descriptor: int) -> os.stat_result:
        values = list(real(descriptor))
        values[4] = owner
        return os.stat_result(values)

    monkeypatch.setattr(os, "fstat", fstat)
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1000)
    assert refusal(tmp_path) == ""
    owner = mine + 1001
    assert f"belongs to user {owner}, neither to root nor to this user" in refusal(tmp_path)


@pytest.mark.parametrize("part", ["", "index.json"], ids=["folder", "index"])
def test_links_are_refused(part: str, tmp_path: Path) -> None:
    folder = install(tmp_path / "site")
    path = folder / part
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    serves, said = outcome(found(tmp_path / "site"))
    assert (serves, len(said)) == (False, part == INDEX), "a link is no folder of a package"


# ---- damage


def test_a_damaged_payload_is_said_once_and_nothing_is_lost(tmp_path: Path) -> None:
    folder = install(tmp_path, entries=[entry(1), entry(2, b"other")])
    packages = found(tmp_path)
    for change in (
        lambda data: data[:-1],
        lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
        lambda data: data + b"x",
        lambda data: b"",
    ):
        packages_module._said = WarnedTexts()
        assert payload_of(packages, 1) == PAYLOAD
        path = folder / f"{packages.find('module', key(1)).manifest.payload_sha256}.xz"  # type: ignore[union-attr]
        data = path.read_bytes()
        path.write_bytes(change(data))
        with pytest.warns(RuntimeWarning, match="What it does not serve is built") as caught:
            assert [payload_of(packages, 1) for _ in range(2)] == [None, None]
        assert len(caught) == 1
        assert payload_of(packages, 2) == b"other"
        assert "its file cannot be read, as a warning says" in packages.missed("client.kernels", 90, 64, "NVRTC 13.0 a")
        path.write_bytes(data)


LARGE_WINDOW = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 28}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.chmod(0o666), "are wider than those of"),
        (lambda path: path.write_bytes(lzma.compress(bytes(1 << 24))), "has not the 640 bytes of its index"),
        (lambda path: path.write_bytes(lzma.compress(PAYLOAD, filters=LARGE_WINDOW)), "Memory usage limit"),
        (lambda path: sys.modules.update(lzma=None), "built without the module lzma"),
    ],
    ids=["others may write it", "larger than its index says", "takes much memory", "a Python without lzma"],
)
def test_a_payload_is_not_served(
    change: Callable[[Path], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lzma", lzma)
    (payload,) = install(tmp_path).glob("*.xz")
    tmp_path.chmod(0o755)
    change(payload)
    with pytest.warns(RuntimeWarning, match=message):
        assert payload_of(found(tmp_path), 1) is None


@pytest.mark.parametrize("size", [0, 10, -1])
def test_a_truncated_index_is_said_once(size: int, tmp_path: Path) -> None:
    index = install(tmp_path) / INDEX
    index.write_bytes(index.read_bytes()[:size])
    packages = found(tmp_path)
    serves, (said,) = outcome(packages)
    assert (serves, outcome(packages)) == (False, (False, []))
    assert "do not match the digest" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 1}, "schema 1, and 2 is read"), ({"more": 1}, "other fields"), ({"modules": []}, "other fields"),
        ({"keys": {"module": {}}}, "has no keys"), ({"payloads": []}, "other fields"),
    ],
)  # fmt: skip
def test_another_index_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    body = unseal((install(tmp_path) / INDEX).read_bytes())
    with pytest.raises(DamagedError, match=message):
        KernelIndex.from_body({**body, **change})


ROW = f"{'0' * 64} 00000001 00000001;"


@pytest.mark.parametrize(
    ("number", "rows"),
    [
        ("0", ""), ("0", "a" + ROW[1:].replace("0", "g")), ("0", ROW.replace("1;", "0;")),
        ("0", ROW.replace("00000001;", "f0000000\n")), ("0", ROW.replace(" 00000001 ", " 0000000x ")), ("0", ROW[:-12]),
        ("1", ROW), ("-1", ROW), ("-1", ROW * 2), ("a", ROW), ("", ROW),
    ],
)  # fmt: skip
def test_a_wrong_row_of_an_index_is_said(number: str, rows: str, tmp_path: Path) -> None:
    index = install(tmp_path) / INDEX
    body = unseal(index.read_bytes())
    keys = {"module": f"{key(1).digest} {number};"}
    wrong = {"keys": keys, "payloads": rows, "modules": {"client.kernels": [["a", 1, 1], 5]}}
    index.write_bytes(seal({**body, **wrong}))
    packages = found(tmp_path)
    assert packages.serve("client.kernels")
    with pytest.warns(RuntimeWarning, match="its index has"):
        assert packages.find("module", key(1)) is None
    assert "and not for sm_90" in packages.missed("client.kernels", 90, 64, "")


def test_a_package_that_is_removed_while_the_program_runs(tmp_path: Path) -> None:
    folder = install(tmp_path)
    packages = found(tmp_path)
    assert payload_of(packages, 1) == PAYLOAD
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with pytest.warns(RuntimeWarning, match="No such file or directory") as caught:
        assert [payload_of(packages, number) for number in (1, 2)] == [None, None]
    assert len(caught) == 1


def test_a_folder_without_an_index_is_no_package(tmp_path: Path) -> None:
    (tmp_path / NAMESPACE / "left" / "__pycache__").mkdir(parents=True)
    assert outcome(found(tmp_path)) == (False, [])


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """The calls that open a file or a folder in the block."""
    counts: Counter[str] = Counter()

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return original(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("open", "scandir", "listdir", "stat"):
            patch.setattr(os, name, counting(name, getattr(os, name)))
        yield counts


def test_ten_packages_cost_enable_nothing_and_the_first_module_five_files_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warp_tiles.disable()
    enabling = []
    for count in (0, 10):
        for number in range(count):
            install(tmp_path / "site", f"client-{number}", [entry(number * 100 + one) for one in range(50)])
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        with warp_tiles.override(cache_dir=tmp_path / "cache"):
            with warp_tiles.enabled():
                pass
            with counted(monkeypatch) as counts, warp_tiles.enabled():
                enabling.append(dict(counts))
    assert enabling[0] == enabling[1]
    packages = found(tmp_path / "empty", tmp_path / "site")
    with counted(monkeypatch) as counts:
        assert not packages.serve("another module")
    assert (counts["scandir"], counts["listdir"], counts["stat"]) == (2, 0, 0)
    assert counts["open"] == 10 * 4, "the folder of sys.path, the namespace, the package, its index"
    with counted(monkeypatch) as counts:
        assert not packages.serve("another module")
        assert packages.find("module", key(5000)) is None
    assert not counts
