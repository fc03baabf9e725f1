"""Exports of a cache: a round trip, signatures, and refusals of unsound bundles."""

import os
import random
import struct
import sys
import zipfile
from pathlib import Path

import pytest

from tests.store.subjects import SIGNER, STRANGER, TRUSTED, entry, key, signed
from warp_tiles.errors import BundleError, CacheError, RemoteError
from warp_tiles.store import ANY_TOOLCHAIN, LTOIR, MODULE, MODULES, RECORDS, bundle, object_name
from warp_tiles.store.bundle import Bundle, write_bundle
from warp_tiles.store.cache import Cache
from warp_tiles.store.envelope import pack
from warp_tiles.store.folder import Folder
from warp_tiles.store.keys import SigningKey
from warp_tiles.store.transfer import BundleReport, export, import_bundle


class Machine:
    """The two caches of a machine."""

    def __init__(self, root: Path, **given: int) -> None:
        self.root = root
        self.functions = Cache(root, **given)
        self.modules = Cache(root, MODULES)
        self.caches = self.functions, self.modules

    def export(self, path: Path, signer: SigningKey | None = None, **only: Cache) -> BundleReport:
        return export(self.caches, path, signer, [(cache, key(name).digest) for name, cache in only.items()])

    def import_(self, path: Path) -> BundleReport:
        return import_bundle(self.caches, path, TRUSTED)


def payload(name: str) -> bytes:
    return name.encode() * 1000


def refused(path: Path, match: str) -> None:
    """The import is refused, and leaves nothing."""
    machine = Machine(path.parent / "refusing")
    with pytest.raises(BundleError, match=match):
        machine.import_(path)
    assert not machine.root.exists()


@pytest.fixture
def source(tmp_path: Path) -> Machine:
    """Two functions and a module. The module and one function have one payload."""
    made = Machine(tmp_path / "source")
    for name in "ab":
        made.functions.put(key(name), payload(name), {"name": name})
    made.modules.put(key("c"), payload("a"), {"name": "c"})
    return made


@pytest.fixture
def path(source: Machine, tmp_path: Path) -> Path:
    """Their export, unsigned."""
    assert source.export(tmp_path / "bundle") == BundleReport(3, 0, (), 3000, signed=False)
    return tmp_path / "bundle"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


# ---- a round trip


def test_a_round_trip(path: Path, source: Machine, machine: Machine) -> None:
    with zipfile.ZipFile(path) as archive:  # as other tools list it
        assert archive.testzip() is None
        names = sorted(object_name("module" if name == "c" else "ltoir", key(name).digest) for name in "abc")
        assert archive.namelist() == names
    assert machine.import_(path) == BundleReport(3, 0, (), 3000)
    for name in "abc":
        kind = "modules" if name == "c" else "functions"
        ours, theirs = (getattr(each, kind).get(key(name)) for each in (machine, source))
        assert ours.payload == theirs.payload
        assert ours.manifest.info == theirs.manifest.info == {"name": name}
        assert ours.manifest.stored_at_ns == theirs.manifest.stored_at_ns
    assert machine.import_(path) == BundleReport(0, 3)
    machine.export(path.with_name("second"))
    assert path.with_name("second").read_bytes() == path.read_bytes()


def test_an_export_of_named_keys(path: Path, source: Machine, machine: Machine) -> None:
    assert source.export(path, b=source.functions, c=source.modules).added == 2
    assert machine.import_(path).added == 2
    assert [item.key for item in machine.functions.entries()] == [key("b").digest]
    before = path.read_bytes()
    with pytest.raises(CacheError, match="no sound entry"):
        source.export(path, zz=source.functions)
    assert path.read_bytes() == before


def damage(cache: Cache, name: str) -> None:
    """Change the payload of an entry, which a read notices by its SHA-256 alone."""
    sha256 = cache.manifest(key(name)).payload_sha256  # type: ignore[union-attr]
    (file,) = (cache.root / "v2" / "objects").rglob(f"{sha256}.*")
    file.write_bytes(b"damaged")


def test_an_export_skips_a_damaged_entry_and_an_import_replaces_one(
    path: Path, source: Machine, machine: Machine, tmp_path: Path
) -> None:
    machine.functions.put(key("a"), b"mine", {})
    machine.functions.put(key("b"), payload("b"), {})
    for damaged in (machine, source):
        damage(damaged.functions, "b")
    assert machine.import_(path) == BundleReport(2, 1, (), 2000)
    assert machine.functions.get(key("a")).payload == b"mine"  # type: ignore[union-attr]
    assert machine.functions.get(key("b")).payload == payload("b")  # type: ignore[union-attr]
    assert machine.functions.verify().ok
    report = source.export(tmp_path / "second")
    assert (report.added, report.skipped) == (2, (key("b").digest,))


def test_an_import_keeps_the_bound_and_measures_a_cache_once(
    path: Path, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Machine(tmp_path / "small", max_bytes=2000)
    assert small.import_(path).added == 3
    assert small.functions.info().size_bytes <= 2000
    assert small.functions.info().entries == 1
    measured = []
    size_bytes = Folder.size_bytes
    monkeypatch.setattr(Folder, "size_bytes", lambda folder: measured.append(folder.root) or size_bytes(folder))
    assert machine.import_(path).added == 3
    assert sorted(measured) == sorted([machine.functions.root, machine.modules.root])
    assert Machine(tmp_path / "nothing").export(tmp_path / "empty").added == 0
    assert machine.import_(tmp_path / "empty") == BundleReport()


def test_records_and_facts_of_a_deployment_are_verified_and_left_out(tmp_path: Path, machine: Machine) -> None:
    write_bundle(tmp_path / "b", [(LTOIR, entry().key, signed(entry())), (RECORDS, entry("r").key, b"damaged")])
    refused(tmp_path / "b", "records .*not an entry of this version")
    write_bundle(
        tmp_path / "b",
        [(LTOIR, entry().key, signed(entry())), (RECORDS, entry("r").key, signed(entry("r"), kind=RECORDS))],
    )
    assert machine.import_(tmp_path / "b").added == 1


# ---- signatures


def test_a_signed_export_needs_a_trusted_signer(source: Machine, machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    assert source.export(path, SIGNER).signed
    assert machine.import_(path).added == 3
    found = machine.functions.get(key("a"))
    assert found.manifest.info["signed_by"] == SIGNER.public.key_id, "a push leaves it to its signer"
    source.export(path, STRANGER)
    refused(path, "no trusted key signed it")


def test_an_unsigned_object_counts_only_where_the_user_vouches(path: Path) -> None:
    with Bundle(path, TRUSTED) as strict:
        assert strict.fetch(LTOIR, key("a").digest, ANY_TOOLCHAIN) is None
        with pytest.raises(BundleError, match="nobody signed it"):
            strict.read(LTOIR, key("a").digest)


def test_neither_an_unsigned_export_nor_its_import_needs_cryptography(
    source: Machine, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bundle"
    source.export(path, SIGNER)
    for name in ("cryptography", "cryptography.hazmat.primitives.asymmetric.ed25519", "obstore"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RemoteError, match="need the package cryptography") as caught:
        machine.import_(path)
    assert "warp-tiles[remote]" in caught.value.remedy
    source.export(path)
    assert machine.import_(path).added == 3


def test_a_digest_is_no_signature_of_another_statement(source: Machine, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    data = pack(LTOIR, entry("a"), ANY_TOOLCHAIN, None)
    write_bundle(path, [(LTOIR, entry("b").key, data)])
    refused(path, "it is another entry")
    write_bundle(path, [(MODULE, entry("a").key, data)])
    refused(path, "it is another entry")
    write_bundle(path, [(LTOIR, entry("a").key, data.replace(b"sha256", b"sha255"))])
    refused(path, "no trusted key signed it; it names the key sha255")


# ---- what is no bundle


KEY = "a" * 64


@pytest.mark.parametrize(
    "name",
    [
        "../../../escape", "/etc/escape", f"v1/ltoir/ab/../../../{KEY}", f"v1/ltoir/ab/{KEY}", f"v1/ltoir/aa/{KEY}/",
        f"v1\\ltoir\\aa\\{KEY}", f"v1/other/aa/{KEY}", f"v1/ltoir/aa/{KEY.upper()}", f"v2/ltoir/aa/{KEY}", "README",
    ],
)  # fmt: skip
def test_another_name_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(bundle, "object_name", lambda kind, key: name)
        write_bundle(tmp_path / "bundle", [(LTOIR, entry().key, signed(entry()))])
    refused(tmp_path / "bundle", "is no object of this version")
    assert not (tmp_path.parent / "escape").exists()


@pytest.mark.parametrize("place", ["before", "between", "after the objects", "after the end"])
def test_bytes_that_belong_to_no_object_are_refused(path: Path, place: str) -> None:
    data = path.read_bytes()
    at = {"before": 0, "after the end": len(data), "after the objects": data.index(b"PK\1\2")}.get(place)
    if at is None:
        at = data.index(b"PK\3\4", 10)
    changed = data[:at] + b"hidden" + data[at:]
    path.write_bytes(changed)
    refused(path, "cannot be used")
    if place in ("after the objects", "between"):  # with an end that knows the place of the directory
        end = bytearray(changed[-bundle._END.size :])
        struct.pack_into("<Q", end, 48, changed.index(b"PK\1\2"))
        path.write_bytes(changed[: -len(end)] + end)
        refused(path, "not as warp_tiles writes it")


@pytest.mark.parametrize("signer", [None, SIGNER])
def test_every_changed_byte_and_cuts_anywhere_are_refused(tmp_path: Path, signer: SigningKey | None) -> None:
    sound = entry("a", b"payload" * 10)
    write_bundle(tmp_path / "b", [(LTOIR, sound.key, pack(LTOIR, sound, ANY_TOOLCHAIN, signer))])
    whole, chance = (tmp_path / "b").read_bytes(), random.Random(1)
    for at in range(len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ chance.randint(1, 255)]) + whole[at + 1 :]
        for data in (changed, whole[:at]) if at % 9 == 0 else (changed,):
            (tmp_path / "b").write_bytes(data)
            with pytest.raises(BundleError), Bundle(tmp_path / "b", TRUSTED, unsigned=True) as opened:
                opened.check()


def test_a_bundle_that_changes_during_the_import_is_refused(
    source: Machine, path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.functions.put(key("large"), random.Random(1).randbytes(100_000), {})
    source.export(path)
    check = Bundle.check

    def check_then_cut(opened: Bundle) -> None:
        check(opened)
        os.truncate(path, path.stat().st_size // 2)

    monkeypatch.setattr(Bundle, "check", check_then_cut)
    with pytest.raises(BundleError):
        machine.import_(path)
    assert machine.functions.verify().ok


def test_the_error_names_a_file_that_cannot_be_read_or_written(path: Path, machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="absent cannot be used: No such file"):
        machine.import_(tmp_path / "absent")
    with pytest.raises(CacheError, match="nowhere"):
        machine.export(tmp_path / "nowhere" / "bundle")
    blocked = tmp_path / "blocked"
    blocked.write_text("in the way")
    with pytest.raises(CacheError, match="blocked"):
        Machine(blocked).import_(path)
    assert not (tmp_path / "nowhere").exists()


def test_an_export_that_could_not_be_imported_is_refused(
    source: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MOST_OBJECTS", 2)
    with pytest.raises(BundleError, match="more than 2 objects") as caught:
        source.export(tmp_path / "bundle")
    assert "--key" in caught.value.remedy
    assert not (tmp_path / "bundle").exists()
