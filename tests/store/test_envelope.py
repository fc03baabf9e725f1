"""Signed entries: nothing but the wanted entry, whole and signed by a trusted key, is read."""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.subjects import SIGNER, STRANGER, TOOLCHAIN, TRUSTED, entry, signed
from warp_tiles.store.documents import dump_json
from warp_tiles.store.envelope import (
    MAGIC,
    PAYLOAD_TYPE,
    OtherToolchainError,
    RefusedError,
    Wanted,
    authenticated_bytes,
    sign,
    unpack,
    verify,
)
from warp_tiles.store.key import Entry

ENTRY = entry()
OBJECT = signed(ENTRY)
WANTED = Wanted("ltoir", ENTRY.key, TOOLCHAIN)
ENVELOPE_AT = len(MAGIC) + 8


def read(data: bytes, wanted: Wanted = WANTED) -> Entry:
    return unpack([data], wanted, TRUSTED)


def with_envelope(envelope: bytes, payload: bytes = ENTRY.payload) -> bytes:
    return MAGIC + len(envelope).to_bytes(8, "big") + envelope + payload


def statement() -> dict[str, object]:
    size = int.from_bytes(OBJECT[len(MAGIC) : ENVELOPE_AT], "big")
    return json.loads(verify(OBJECT[ENVELOPE_AT : ENVELOPE_AT + size], TRUSTED)[0])


def signed_without(part: str) -> bytes:
    return with_envelope(sign(dump_json({name: value for name, value in statement().items() if name != part}), SIGNER))


def signed_with(**manifest: object) -> bytes:
    """An object whose manifest has other values, or none if there are none."""
    made = {**statement()["manifest"], **manifest} if manifest else {}  # type: ignore[dict-item]
    return with_envelope(sign(dump_json({**statement(), "manifest": made}), SIGNER))


def test_the_encoding_of_the_specification() -> None:
    # https://github.com/secure-systems-lab/dsse/blob/v1.0.2/protocol.md, "Test Vectors"
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert authenticated_bytes("http://example.com/HelloWorld", b"hello world") == expected


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_an_entry_in_pieces_of_any_size(sizes: list[int]) -> None:
    def pieces() -> Iterator[bytes]:
        at = 0
        while at < len(OBJECT):
            for size in sizes:
                yield OBJECT[at : at + size]
                at += size

    found = unpack(pieces(), WANTED, TRUSTED)
    assert (found.payload, found.key) == (ENTRY.payload, ENTRY.key)
    assert found.manifest.info == {**ENTRY.manifest.info, "signed_by": SIGNER.public.key_id}


@given(st.integers(0, len(OBJECT) - 1), st.integers(1, 255))
def test_a_changed_byte_or_a_cut_is_refused(place: int, change: int) -> None:
    with pytest.raises(RefusedError):
        read(OBJECT[:place])
    data = bytearray(OBJECT)
    data[place] ^= change
    try:
        found = read(bytes(data))
    except RefusedError:
        return
    # "keyid" and its name are hints that a signature does not cover, and JSON has many spellings of one text
    assert found.payload == ENTRY.payload
    info = {**ENTRY.manifest.info, "signed_by": SIGNER.public.key_id}
    assert found.manifest == replace(ENTRY.manifest, info=info, payload_mtime_ns=0)


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "more bytes": (lambda: OBJECT + b"x", "more than the signed"),
    "another payload": (lambda: OBJECT[:-1] + b"x", "signed digest"),
    "another key": (lambda: signed(entry("b")), "another entry"),
    "another kind": (lambda: signed(ENTRY, kind="module"), "another entry: 'module'"),
    "another toolchain": (lambda: signed(ENTRY, toolchain="NVRTC 12.8"), "another toolchain: 'NVRTC 12.8'"),
    "a stranger": (lambda: signed(ENTRY, signer=STRANGER), "no trusted key signed it"),
    "no signature": (
        lambda: with_envelope(dump_json({"payload": "", "payloadType": PAYLOAD_TYPE, "signatures": []})),
        "no signature",
    ),
    "another version": (lambda: b"warp_tiles entrx\n" + OBJECT[len(MAGIC) :], "not an entry of this version"),
    "a huge envelope": (lambda: MAGIC + (1 << 40).to_bytes(8, "big") + b"x", "claims 1099511627776 bytes"),
    "a page": (lambda: b"<!DOCTYPE html><html>not found</html>", "not an entry of this version"),
    "nothing": (lambda: b"", "not an entry of this version"),
    "no JSON": (lambda: with_envelope(b"{" * 100), "malformed"),
    "deep JSON": (lambda: with_envelope(b"[" * 100_000), "malformed"),
    "a list": (lambda: with_envelope(b"[]"), "malformed"),
    "no text": (lambda: with_envelope(b'{"payload":1,"signatures":[{}]}'), "malformed"),
    "no base64": (lambda: with_envelope(b'{"payload":"?","signatures":[{}]}'), "malformed"),
    "signatures of no kind": (lambda: with_envelope(b'{"payload":"","signatures":["x"]}'), "malformed"),
    "a signed statement that is no JSON": (lambda: with_envelope(sign(b"{", SIGNER)), "statement is malformed"),
    "a signed manifest without a key": (signed_with, "statement is malformed"),
    "an empty payload": (lambda: signed_with(payload_bytes=0), "claims a payload of 0 bytes"),
    "a huge payload": (lambda: signed_with(payload_bytes=1 << 30), "claims a payload of 1073741824 bytes"),
    "no schema": (lambda: signed_without("schema"), "has schema None"),
    "no kind": (lambda: signed_without("kind"), "another entry: None"),
    "no toolchain": (lambda: signed_without("toolchain"), "another toolchain: None"),
    "no manifest": (lambda: signed_without("manifest"), "has schema 1"),
    "a thousand signatures": (
        lambda: with_envelope(dump_json({"payload": "", "signatures": [{}] * 1000})),
        "no signature",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_reply_is_refused(name: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(RefusedError, match=reason) as caught:
        read(make())
    assert isinstance(caught.value, OtherToolchainError) == ("another toolchain" in reason)


def test_a_signature_of_another_type_of_statement_is_refused() -> None:
    body = dump_json(statement())
    signature = base64.b64encode(SIGNER.sign(authenticated_bytes("text/plain", body))).decode()
    envelope = {
        "payload": base64.b64encode(body).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": SIGNER.public.key_id, "sig": signature}],
    }
    with pytest.raises(RefusedError, match="no trusted key signed it"):
        read(with_envelope(dump_json(envelope)))
    envelope["payloadType"] = "text/plain"
    with pytest.raises(RefusedError, match="its type is 'text/plain'"):
        read(with_envelope(dump_json(envelope)))


def test_the_payload_of_a_stranger_is_not_read() -> None:
    def pieces() -> Iterator[bytes]:
        data = signed(ENTRY, signer=STRANGER)
        yield data[: -len(ENTRY.payload)]
        raise AssertionError("the signature is wrong, so nothing more is read")

    with pytest.raises(RefusedError, match="no trusted key"):
        unpack(pieces(), WANTED, TRUSTED)


def test_one_trusted_signature_is_enough() -> None:
    size = int.from_bytes(OBJECT[len(MAGIC) : ENVELOPE_AT], "big")
    content = json.loads(OBJECT[ENVELOPE_AT : ENVELOPE_AT + size])
    content["signatures"].insert(0, {"keyid": STRANGER.public.key_id, "sig": "AAAA"})
    assert read(with_envelope(dump_json(content))).payload == ENTRY.payload
