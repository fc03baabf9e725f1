"""The manifest beside every payload: the key's transcript, the payload's digests, and facts from the builder."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from warp_tiles.store.documents import DamagedError, dump_json, parse_object, seal, unseal
from warp_tiles.store.key import CacheKey
from warp_tiles.store.paths import is_digest
from warp_tiles.util.warn import shown

MAX_MANIFEST_BYTES = 1 << 20
_KINDS: dict[str, type] = {
    "payload_sha256": str,
    "payload_crc32": int,
    "payload_bytes": int,
    "payload_mtime_ns": int,
    "stored_at_ns": int,
    "info": dict,
}


@dataclass(frozen=True)
class Manifest:
    """Facts about a stored payload.

    Attributes:
        payload_sha256: The payload's address, hex.
        payload_crc32: CRC-32 of the payload, checked on every read.
        payload_mtime_ns: Modification time of the payload's file when it was written. If the file has another one, a
            read checks the SHA-256. 0 if the payload is not stored.
        stored_at_ns: Time at which the entry was created, nanoseconds since 1970 (UTC).
        info: JSON from the builder: inputs, symbol, sizes, build time, versions.
    """

    key: CacheKey
    payload_sha256: str
    payload_crc32: int
    payload_bytes: int
    payload_mtime_ns: int
    stored_at_ns: int
    info: Mapping[str, object]

    @classmethod
    def describe(cls, key: CacheKey, payload: bytes, info: Mapping[str, object]) -> Manifest:
        """Create the manifest of a new payload that is not stored yet.

        Raises:
            TypeError: The payload is not bytes, or ``info`` holds a value without a JSON form.
            ValueError: The payload is empty, or ``info`` holds a number that is not finite.
        """
        if not isinstance(payload, bytes):
            raise TypeError(f"a payload must be bytes, got {type(payload).__name__}")
        if not payload:
            raise ValueError("a payload must not be empty")
        return cls(
            key=key,
            payload_sha256=hashlib.sha256(payload).hexdigest(),
            payload_crc32=zlib.crc32(payload),
            payload_bytes=len(payload),
            payload_mtime_ns=0,
            stored_at_ns=time.time_ns(),
            info=parse_object(dump_json(dict(info))),
        )

    def as_json(self) -> dict[str, object]:
        body: dict[str, object] = {name: getattr(self, name) for name in _KINDS}
        body["key"] = self.key.digest
        body["transcript"] = self.key.transcript
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Manifest:
        """Rebuild a manifest, and prove its key from the transcript.

        Raises:
            DamagedError: A part is missing or unknown, has a wrong type, or does not fit the key.
        """
        unknown = set(body) ^ (set(_KINDS) | {"key", "transcript"})
        if unknown:
            raise DamagedError(f"manifest fields missing or unknown: {', '.join(sorted(map(ascii, unknown)))}")
        for name, kind in _KINDS.items():
            value = body[name]
            if type(value) is not kind or (isinstance(value, int) and value < 0):
                raise DamagedError(f"manifest field {name} has the value {shown(value)}")
        try:
            key = CacheKey.from_transcript(body["transcript"])
        except ValueError as error:
            raise DamagedError(f"transcript: {error}") from error
        if key.digest != body["key"]:
            raise DamagedError(f"the transcript proves the key {key.digest}, the manifest claims {shown(body['key'])}")
        values = {name: body[name] for name in _KINDS}
        if not is_digest(str(values["payload_sha256"])):
            raise DamagedError(f"payload_sha256 has the value {shown(values['payload_sha256'])}")
        return cls(key=key, **values)  # type: ignore[arg-type]  # types checked above

    def encode(self) -> bytes:
        return seal(self.as_json())

    @classmethod
    def decode(cls, data: bytes, digest: str) -> Manifest:
        """Read the file of one key. Raises DamagedError if the bytes are damaged or belong to another key."""
        manifest = cls.from_json(unseal(data))
        if manifest.key.digest != digest:
            raise DamagedError(f"it describes the key {manifest.key.digest}, its name says {digest}")
        return manifest

    def check_payload(self, payload: bytes, *, full: bool) -> None:
        """Verify length and CRC-32 of a payload, and its SHA-256 if ``full``. Raises DamagedError if one differs."""
        if len(payload) != self.payload_bytes:
            raise DamagedError(f"payload of {len(payload)} bytes, {self.payload_bytes} were stored")
        if zlib.crc32(payload) != self.payload_crc32:
            raise DamagedError("payload does not match its CRC-32")
        if full and hashlib.sha256(payload).hexdigest() != self.payload_sha256:
            raise DamagedError("payload does not match its SHA-256")


@dataclass(frozen=True)
class Entry:
    """A payload, e.g. raw LTO-IR or a cubin, with its manifest."""

    payload: bytes
    manifest: Manifest

    @property
    def key(self) -> str:
        return self.manifest.key.digest

    @property
    def is_stored(self) -> bool:
        """True if it is stored in a cache of this machine."""
        return self.manifest.payload_mtime_ns > 0
