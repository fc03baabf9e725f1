"""Objects: an entry of a cache with a signature over its key, its content and its toolchain.

Stores hold them one by one, and bundles hold many in one file (:mod:`warp_tiles.store.bundle`).

The signature is a DSSE envelope (https://github.com/secure-systems-lab/dsse, version 1.0.2) of a JSON statement:

    {"schema": 1, "kind": "ltoir", "toolchain": "...", "manifest": {"key": ..., "payload_sha256": ..., ...}}

An export without a signing key has the SHA-256 of the same bytes in place of the signature, with the key id ``sha256``.
It shows accidents, and only an import of the user accepts it.

The manifest's transcript proves the key, see :class:`warp_tiles.store.key.Manifest`. One object holds both:

    "warp_tiles entry\\n", the length of the envelope (8 bytes, big-endian), the envelope, the payload

so that one request fetches an entry, and the signature is verified before the payload is read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from warp_tiles.errors import shown
from warp_tiles.store import MAX_PAYLOAD_BYTES, SIGNED_BY
from warp_tiles.store.documents import DamagedError, dump_json, parse_object
from warp_tiles.store.key import MAX_MANIFEST_BYTES, Entry, Manifest
from warp_tiles.store.keys import PublicKey, SigningKey

PAYLOAD_TYPE = "application/vnd.warp-tiles.entry+json"
SCHEMA = 1
MAGIC = b"warp_tiles entry\n"
_LENGTH_BYTES = 8
_MAX_ENVELOPE_BYTES = 2 * MAX_MANIFEST_BYTES
_MOST_SIGNATURES = 16
_UNSIGNED = "sha256"  # no key has this id, because key ids have 16 digits


class RefusedError(Exception):
    """A reply of a store is not the requested entry, signed by a trusted key. The message gives the reason."""


class UntrustedError(RefusedError):
    """No trusted key signed the entry."""


class OtherToolchainError(RefusedError):
    """A trusted key signed the entry for another toolchain."""


@dataclass(frozen=True)
class Wanted:
    """What a reader asks for.

    Attributes:
        toolchain: The toolchain of the reader, as text; None for any.
        unsigned: True to accept an object that nobody signed.
    """

    kind: str
    key: str
    toolchain: str | None
    unsigned: bool = False
    most_bytes: int = MAX_PAYLOAD_BYTES


def authenticated_bytes(payload_type: str, payload: bytes) -> bytes:
    """The bytes that a DSSE signature covers: the pre-authentication encoding of the specification."""
    encoded = payload_type.encode("utf-8")
    return b"DSSEv1 %d %s %d %s" % (len(encoded), encoded, len(payload), payload)


def sign(payload: bytes, signer: SigningKey | None) -> bytes:
    """A DSSE envelope, as JSON; without a signer, one with a digest."""
    signed = authenticated_bytes(PAYLOAD_TYPE, payload)
    signature = hashlib.sha256(signed).digest() if signer is None else signer.sign(signed)
    key_id = _UNSIGNED if signer is None else signer.public.key_id
    return dump_json({
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode("ascii"),
        "signatures": [{"keyid": key_id, "sig": base64.b64encode(signature).decode("ascii")}],
    })  # fmt: skip


def verify(
    envelope: bytes, trusted: Mapping[str, PublicKey], *, unsigned: bool = False
) -> tuple[bytes, PublicKey | None]:
    """The payload of an envelope, and the trusted key that signed it; None if it is unsigned and may be.

    Raises a RefusedError if it is malformed, of another type, or no trusted key signed it.
    """
    try:
        content: Any = parse_object(envelope)
        payload = base64.b64decode(content["payload"], validate=True)
        signatures = content["signatures"]
        if not isinstance(signatures, list) or not 0 < len(signatures) <= _MOST_SIGNATURES:
            raise RefusedError("it has no signature")
        decoded = [(str(item.get("keyid", "")), base64.b64decode(item["sig"], validate=True)) for item in signatures]
    except (DamagedError, KeyError, AttributeError, TypeError, binascii.Error, ValueError) as error:
        raise RefusedError(f"its envelope is malformed: {error}") from error
    if content.get("payloadType") != PAYLOAD_TYPE:
        raise RefusedError(f"its type is {shown(content.get('payloadType'))}")
    signed = authenticated_bytes(PAYLOAD_TYPE, payload)
    if [key_id for key_id, _ in decoded] == [_UNSIGNED]:
        if not unsigned:
            raise UntrustedError("nobody signed it")
        if decoded[0][1] != hashlib.sha256(signed).digest():
            raise RefusedError("its statement does not match its digest")
        return payload, None
    for key_id, signature in decoded:
        key = trusted.get(key_id)
        if key is not None and key.verifies(signature, signed):
            return payload, key
    named = ", ".join(sorted({key_id for key_id, _ in decoded}))
    raise UntrustedError(f"no trusted key signed it; it names the key {ascii(named)[1:-1]:.100}")


def pack(kind: str, entry: Entry, toolchain: str, signer: SigningKey | None) -> bytes:
    """The object of an entry; without a signer, an unsigned one."""
    statement = {
        "schema": SCHEMA,
        "kind": kind,
        "toolchain": toolchain,
        "manifest": replace(entry.manifest, payload_mtime_ns=0).as_json(),
    }
    envelope = sign(dump_json(statement), signer)
    return b"".join((MAGIC, len(envelope).to_bytes(_LENGTH_BYTES, "big"), envelope, entry.payload))


def unpack(chunks: Iterable[bytes], wanted: Wanted, trusted: Mapping[str, PublicKey]) -> Entry:
    """The entry of an object, verified; its info names the key as ``signed_by``. Reads no more than the signed size.

    Raises a RefusedError if it is malformed, is not the wanted entry, or no trusted key signed it.
    """
    source = _Source(chunks)
    manifest, signer = _statement(source, wanted, trusted)
    payload = source.read(manifest.payload_bytes)
    if source.read(1):
        raise RefusedError(f"more than the signed {manifest.payload_bytes} bytes follow")
    if hashlib.sha256(payload).hexdigest() != manifest.payload_sha256:
        raise RefusedError("its content does not match the signed digest")
    try:
        manifest.check_payload(payload, full=False)
    except DamagedError as error:
        raise RefusedError(str(error)) from error
    info = manifest.info if signer is None else {**manifest.info, SIGNED_BY: signer.key_id}
    return Entry(payload, replace(manifest, info=info, payload_mtime_ns=0))  # it is not stored on this machine


def check_statement(chunks: Iterable[bytes], wanted: Wanted, trusted: Mapping[str, PublicKey]) -> None:
    """Verify the beginning of an object as :func:`unpack` does. Its payload is not read."""
    _statement(_Source(chunks), wanted, trusted)


def _statement(source: _Source, wanted: Wanted, trusted: Mapping[str, PublicKey]) -> tuple[Manifest, PublicKey | None]:
    if source.read(len(MAGIC)) != MAGIC:
        raise RefusedError("it is not an entry of this version")
    size = int.from_bytes(source.read(_LENGTH_BYTES), "big")
    if size > _MAX_ENVELOPE_BYTES:
        raise RefusedError(f"its envelope claims {size} bytes, the limit is {_MAX_ENVELOPE_BYTES}")
    statement, signer = verify(source.read(size), trusted, unsigned=wanted.unsigned)
    return _manifest(statement, wanted), signer


def _manifest(statement: bytes, wanted: Wanted) -> Manifest:
    try:
        content = parse_object(statement)
        body = content.get("manifest")
        if content.get("schema") != SCHEMA or not isinstance(body, dict):
            raise RefusedError(f"its statement has schema {shown(content.get('schema'), 40)}")
        manifest = Manifest.from_json(body)
    except DamagedError as error:
        raise RefusedError(f"its statement is malformed: {error}") from error
    if content.get("kind") != wanted.kind or manifest.key.digest != wanted.key:
        raise RefusedError(f"it is another entry: {shown(content.get('kind'), 40)} {manifest.key.digest}")
    if wanted.toolchain is not None and content.get("toolchain") != wanted.toolchain:
        raise OtherToolchainError(f"it was signed for another toolchain: {shown(content.get('toolchain'), 200)}")
    if not 0 < manifest.payload_bytes <= wanted.most_bytes:
        raise RefusedError(f"it claims a payload of {manifest.payload_bytes} bytes, and {wanted.most_bytes} are read")
    return manifest


class _Source:
    """Reads exact numbers of bytes from pieces."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = bytearray()

    def read(self, size: int) -> bytes:
        """The next bytes; fewer at the end."""
        while len(self._rest) < size and (chunk := next(self._chunks, None)) is not None:
            self._rest += chunk
        with memoryview(self._rest) as rest:
            data = bytes(rest[:size])
        del self._rest[:size]
        return data
