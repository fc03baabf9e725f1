"""Archives of an attacker, and damaged members: each is refused with one message, and takes little memory."""

import io
import shutil
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hardening.memory import less_than
from tests.store.subjects import TOOLCHAIN, TRUSTED, entry, signed
from warp_tiles.errors import BundleError
from warp_tiles.store import LTOIR, bundle, object_name
from warp_tiles.store.bundle import MOST_OBJECTS, Bundle, write_bundle

NAME = object_name(LTOIR, entry().key)
MOST_BYTES = 16 << 20  # of memory


def archive(method: int = zipfile.ZIP_STORED, comment: bytes = b"", **facts: object) -> bytes:
    """An archive of another tool, with one sound object and facts about it."""
    stream, info = io.BytesIO(), zipfile.ZipInfo(NAME)
    for name, value in facts.items():
        setattr(info, name, value)
    with zipfile.ZipFile(stream, "w", method) as file:
        info.compress_type = method
        file.writestr(info, signed(entry()))
        file.comment = comment
    return stream.getvalue()


def patched(form: str, offset: int, value: int, signature: bytes = b"PK\1\2") -> bytes:
    """An archive with another value behind a signature."""
    data = bytearray(archive())
    struct.pack_into(form, data, data.index(signature) + offset, value)
    return bytes(data)


def end(count: int, size: int, at: int) -> bytes:
    """The end of a bundle that claims some directory."""
    data = bytearray(bundle._directory([]))
    struct.pack_into("<4Q", data, 24, count, count, size, at)
    struct.pack_into("<Q", data, 64, (at + size) % 2**64)
    return bytes(data)


def twice() -> bytes:
    """A bundle whose directory names its one object twice."""
    data = signed(entry())
    member = bundle._Member(NAME, len(data), zlib.crc32(data))
    record = bundle._directory([member])[: -bundle._END.size]
    body = member.header + data
    return body + 2 * record + end(2, 2 * len(record), len(body))


#: The beginning of a file and its end, between which it is sparse, and its size.
Hostile = tuple[bytes, bytes, int]
HOSTILE: dict[str, Callable[[], Hostile | bytes]] = {
    "of another tool": archive,
    "an object twice": twice,
    "deflated": lambda: archive(zipfile.ZIP_DEFLATED),
    "bzip2": lambda: archive(zipfile.ZIP_BZIP2),
    "lzma": lambda: archive(zipfile.ZIP_LZMA),
    "an unknown method": lambda: patched("<H", 10, 99),
    "a later version": lambda: patched("<H", 6, 99),
    "encrypted": lambda: patched("<H", 8, 1),
    "patched data": lambda: patched("<H", 8, 0x20),
    "an extra field": lambda: archive(extra=b"\1\0\2\0xx"),
    "a short extra field": lambda: archive(extra=b"\1\0"),
    "a comment": lambda: archive(comment=b"x" * 65_000),
    "a link": lambda: archive(external_attr=0o120777 << 16),
    "several disks": lambda: patched("<H", 4, 3, b"PK\5\6"),
    "a size of 4 GiB": lambda: patched("<L", 24, 0xFFFFFFFF),
    "an offset behind the end": lambda: patched("<L", 42, 0x7FFFFFFF),
    "a directory behind the end": lambda: patched("<L", 16, 0x7FFFFFFF, b"PK\5\6"),
    "3 GiB of nothing": lambda: (b"", b"", 3 << 30),
    "3 GiB of directory": lambda: (b"", end(1, (3 << 30) - bundle._END.size, 0), 3 << 30),
    "2 million names": lambda: (b"", end(2_000_000, 138 * 2_000_000, 0), 138 * 2_000_000 + bundle._END.size),
    "numbers of 64 bits": lambda: end(2**64 - 1, 2**64 - 1, 2**64 - 1),
    "a directory of zeros": lambda: (b"", end(9, 126 * MOST_OBJECTS, 0), 126 * MOST_OBJECTS + bundle._END.size),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_takes_little_memory(name: str, tmp_path: Path) -> None:
    made = HOSTILE[name]()
    start, tail, size = made if isinstance(made, tuple) else (made, b"", len(made))
    path = tmp_path / "bundle"
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(size)
        file.seek(size - len(tail))
        file.write(tail)
    with (
        less_than(MOST_BYTES),
        pytest.raises(BundleError, match="cannot be used") as caught,
        Bundle(path, TRUSTED, unsigned=True) as read,
    ):
        read.check()
    assert "make it again" in caught.value.remedy


def test_a_large_directory_takes_little_memory(tmp_path: Path) -> None:
    count = MOST_OBJECTS // 10
    objects = ((LTOIR, f"{number:064x}", b"") for number in range(count))
    write_bundle(tmp_path / "bundle", objects)
    with less_than(MOST_BYTES // 2), Bundle(tmp_path / "bundle", TRUSTED) as read:
        assert len(read.names(LTOIR)) == count


# fields of a local header by offset, and places behind it
DAMAGES = {
    "signature": 0, "version": 4, "flags": 6, "method": 8, "time": 10, "date": 12, "CRC-32": 14, "packed size": 18,
    "size": 22, "length of the name": 26, "length of extra fields": 28, "name": 30,
    "magic": 30 + len(NAME), "length of the envelope": 55 + len(NAME), "envelope": 70 + len(NAME), "payload": -1,
}  # fmt: skip


@pytest.mark.parametrize("bit", [0x01, 0x80])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_member_is_refused_and_the_others_are_read(
    name: str, bit: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, first, second = tmp_path / "bundle", entry("a"), entry("b")
    write_bundle(path, [(LTOIR, each.key, signed(each)) for each in (first, second)])
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\3\4", 4) - 1 if name == "payload" else DAMAGES[name]] ^= bit
    path.write_bytes(data)
    with Bundle(path, TRUSTED) as opened:
        assert [opened.fetch(LTOIR, first.key, TOOLCHAIN) for _ in range(2)] == [None, None]
        assert opened.fetch(LTOIR, second.key, TOOLCHAIN) is not None
        with pytest.raises(BundleError, match="cannot be used"):
            opened.read(LTOIR, first.key)
    (record,) = caplog.records
    assert f"ltoir {first.key[:12]} is refused" in record.getMessage()


def fields(data: bytes, signature: bytes, form: str, at: int = 0) -> list[int]:
    """The little-endian fields behind a signature."""
    assert data[at : at + 4] == signature
    return list(struct.unpack_from(f"<{form}", data, at + 4))


def test_each_field_of_the_archive_is_as_zip_says(tmp_path: Path) -> None:
    """APPNOTE.TXT 6.3.10, sections 4.3.7, 4.3.12 and 4.3.14 to 4.3.16. The reader compares only what it writes."""
    keys = [letter * 64 for letter in "ab"]
    contents = [b"first", b"the second"]
    file = tmp_path / "two.bundle"
    write_bundle(file, [(LTOIR, key, content) for key, content in zip(keys, contents)])
    data, names = file.read_bytes(), [object_name(LTOIR, key).encode() for key in keys]
    date, at, headers = (1 << 5) | 1, 0, []  # January 1st of 1980
    for name, content in zip(names, contents):
        headers.append(at)
        sizes = [zlib.crc32(content), len(content), len(content), len(name)]
        # needs ZIP64, no flags, stored, no time
        assert fields(data, b"PK\3\4", "HHHHHLLLHH", at) == [45, 0, 0, 0, date, *sizes, 0]
        assert data[at + 30 :].startswith(name + content)
        at += 30 + len(name) + len(content)
    directory = at
    for name, content, header in zip(names, contents, headers):
        sizes = [zlib.crc32(content), len(content), len(content), len(name), 12]
        made_on_unix, mode, elsewhere = 3 << 8 | 45, 0o600 << 16, 0xFFFFFFFF
        found = fields(data, b"PK\1\2", "HHHHHHLLLHHHHHLL", at)
        assert found == [made_on_unix, 45, 0, 0, 0, date, *sizes, 0, 0, 0, mode, elsewhere]
        assert data[at + 46 : at + 46 + len(name)] == name
        at += 46 + len(name)
        assert struct.unpack_from("<HHQ", data, at) == (1, 8, header)
        at += 12
    end_of_directory, size = at, at - directory
    assert fields(data, b"PK\6\6", "QHHLLQQQQ", at) == [44, 45, 45, 0, 0, 2, 2, size, directory]
    assert fields(data, b"PK\6\7", "LQL", at + 56) == [0, end_of_directory, 1]
    assert fields(data, b"PK\5\6", "HHHHLLH", at + 76) == [0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0]
    assert len(data) == at + 98


@pytest.mark.skipif(shutil.which("unzip") is None, reason="this machine has no unzip")
def test_unzip_reads_a_bundle(tmp_path: Path) -> None:
    write_bundle(tmp_path / "one.bundle", [(LTOIR, "a" * 64, b"content")])
    done = subprocess.run(["unzip", "-tq", tmp_path / "one.bundle"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert not done.stderr
