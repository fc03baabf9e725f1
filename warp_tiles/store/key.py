"""Cache keys: SHA-256 over labelled, length-prefixed, schema-versioned fields, with a printable transcript.

A manifest beside every payload has the key's transcript, the payload's digests, and facts from the builder.

The digest is taken over the transcript itself, so a stored transcript proves its key. A long value
is replaced by its SHA-256 and length. A short value is kept unchanged.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from warp_tiles.errors import shown, suppressed
from warp_tiles.store import MISSED_KEYS, is_digest
from warp_tiles.store.documents import DamagedError, Documents, dump_json, parse_object, seal, unseal

SCHEMA_VERSION = 1

#: Longer text enters a key, and its transcript, as a digest.
INLINE_TEXT_BYTES = 1024

KeyValue = str | Sequence[str]

_KINDS = frozenset({"text", "list", "text-sha256", "list-sha256"})
_MAGIC = b"warp_tiles cache key\0"


@dataclass(frozen=True, order=True)
class KeyField:
    """One labelled input of a key, in the printable form that is hashed.

    Attributes:
        label: Name of the input, unique within a key.
        kind: The encoding of ``shown``: ``text``, ``list`` (a JSON array of strings), ``text-sha256``, ``list-sha256``.
        shown: The value, or ``<sha256 hex>:<length in bytes>`` for the ``-sha256`` kinds.
    """

    label: str
    kind: str
    shown: str

    def __post_init__(self) -> None:
        if not self.label:
            raise ValueError("a key field needs a label, got an empty string")
        if self.kind not in _KINDS:
            raise ValueError(f"key field {self.label!r} has unknown kind {self.kind!r}")
        for text in (self.label, self.shown):
            text.encode("utf-8")  # a lone surrogate raises UnicodeEncodeError, a ValueError

    @classmethod
    def of(cls, label: str, value: KeyValue) -> KeyField:
        """Create the field of one value. Raises what :meth:`CacheKey.of` raises."""
        kind, text = "text", value
        if not isinstance(text, str):
            if not (isinstance(value, Sequence) and all(isinstance(item, str) for item in value)):
                raise TypeError(
                    f"key field {label!r} must be text or a sequence of strings, got {type(value).__name__}"
                )
            kind, text = "list", json.dumps(list(value), ensure_ascii=True, separators=(",", ":"))
        data = text.encode("utf-8", "surrogatepass")
        if len(data) <= INLINE_TEXT_BYTES and not any("\ud800" <= char <= "\udfff" for char in text):
            return cls(label, kind, text)
        return cls(label, f"{kind}-sha256", f"{hashlib.sha256(data).hexdigest()}:{len(data)}")


@dataclass(frozen=True)
class CacheKey:
    """The inputs of a cached payload.

    Attributes:
        fields: The inputs, sorted by label, labels unique.
        schema: Version of the meaning of the fields. Another version gives another key.
    """

    fields: tuple[KeyField, ...]
    schema: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        labels = [field.label for field in self.fields]
        if not labels:
            raise ValueError("a cache key needs at least one field")
        if labels != sorted(set(labels)):
            raise ValueError(f"key labels must be sorted and unique, got {labels}; CacheKey.of sorts them")
        if isinstance(self.schema, bool) or not isinstance(self.schema, int) or not 0 <= self.schema < 2**32:
            raise ValueError(f"the key schema must be an integer in [0, 2**32), got {self.schema!r}")

    @classmethod
    def of(cls, fields: Mapping[str, KeyValue]) -> CacheKey:
        """Create a key from labelled values. Their order does not matter.

        Raises a TypeError or a ValueError for a value that is neither a text nor a sequence of strings, for a label
        that is empty or cannot be encoded, and without a field.
        """
        return cls(tuple(sorted(KeyField.of(label, value) for label, value in fields.items())))

    @classmethod
    def from_transcript(cls, transcript: object) -> CacheKey:
        """Rebuild a key from a :attr:`transcript` that was read from JSON. Raises ValueError if it is malformed."""
        if not isinstance(transcript, dict) or set(transcript) != {"schema", "fields"}:
            raise ValueError("a transcript must be an object with 'schema' and 'fields'")
        rows = transcript["fields"]
        if not isinstance(rows, list):
            raise ValueError("the fields of a transcript must be a list")
        fields = []
        for row in rows:
            if not (isinstance(row, list) and len(row) == 3 and all(isinstance(part, str) for part in row)):
                raise ValueError(f"a transcript field must be three strings, got {shown(row, 200)}")
            fields.append(KeyField(*row))
        return cls(tuple(fields), transcript["schema"])

    @property
    def transcript(self) -> dict[str, object]:
        """The key as JSON: ``{"schema": 1, "fields": [[label, kind, shown], ...]}``."""
        return {"schema": self.schema, "fields": [[f.label, f.kind, f.shown] for f in self.fields]}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of :meth:`encode`, as 64 lower-case hex digits."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        """The hashed bytes: magic, schema, number of fields, then label, kind and value, each length-prefixed."""
        parts = [_MAGIC, self.schema.to_bytes(4, "big"), len(self.fields).to_bytes(4, "big")]
        for field in self.fields:
            for data in (text.encode("utf-8") for text in (field.label, field.kind, field.shown)):
                parts += len(data).to_bytes(8, "big"), data
        return b"".join(parts)


# ---- manifests and entries

MAX_MANIFEST_BYTES = 1 << 20
_MANIFEST_FIELDS: dict[str, type] = {
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
        """Create the manifest of a new payload that is not stored yet. ``info`` is JSON.

        Raises a TypeError or a ValueError if the payload is empty or not bytes, or ``info`` has no JSON form.
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
        body: dict[str, object] = {name: getattr(self, name) for name in _MANIFEST_FIELDS}
        body["key"] = self.key.digest
        body["transcript"] = self.key.transcript
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Manifest:
        """Rebuild a manifest, and prove its key from the transcript.

        Raises a DamagedError if a part is missing or unknown, has a wrong type, or does not fit the key.
        """
        unknown = set(body) ^ (set(_MANIFEST_FIELDS) | {"key", "transcript"})
        if unknown:
            raise DamagedError(f"manifest fields missing or unknown: {', '.join(sorted(map(ascii, unknown)))}")
        for name, kind in _MANIFEST_FIELDS.items():
            value = body[name]
            if type(value) is not kind or (isinstance(value, int) and value < 0):
                raise DamagedError(f"manifest field {name} has the value {shown(value)}")
        try:
            key = CacheKey.from_transcript(body["transcript"])
        except ValueError as error:
            raise DamagedError(f"transcript: {error}") from error
        if key.digest != body["key"]:
            raise DamagedError(f"the transcript proves the key {key.digest}, the manifest claims {shown(body['key'])}")
        values = {name: body[name] for name in _MANIFEST_FIELDS}
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


# ---- why a key missed: the labels in which it differs from the nearest stored key. Transcripts of missed ones are kept


@dataclass(frozen=True)
class Difference:
    """One label, or ``<schema>``, on which two keys disagree. A value is ``None`` if its key lacks the label."""

    label: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        old, new = ("(absent)" if value is None else value for value in (self.old, self.new))
        return f"{self.label}: {old} -> {new}"


@dataclass(frozen=True)
class Explanation:
    """The labels in which a key differs from the nearest other stored key, if there is one."""

    key: CacheKey
    stored: bool
    nearest: str | None
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        lines = [f"{self.key.digest} is {'stored' if self.stored else 'not stored'}"]
        if self.nearest is None:
            lines.append("no other key is stored to compare it with")
        else:
            lines.append(f"nearest stored key {self.nearest} differs in {len(self.differences)} field(s):")
            lines.extend(f"  {difference}" for difference in self.differences)
        return "\n".join(lines)


def explain(old: CacheKey, new: CacheKey) -> tuple[Difference, ...]:
    """List the labels on which two keys differ. The schema version comes first, then the labels in order."""
    before, after = _values(old), _values(new)
    labels = sorted(label for label in before.keys() | after.keys() if before.get(label) != after.get(label))
    return tuple(Difference(label, before.get(label), after.get(label)) for label in labels)


def _values(key: CacheKey) -> dict[str, str]:
    shown = {item.label: item.shown if item.kind == "text" else f"{item.kind} {item.shown}" for item in key.fields}
    return {"<schema>": str(key.schema), **shown}


def explain_among(key: CacheKey, stored: Iterable[CacheKey]) -> Explanation:
    """Compare a key with the nearest stored key. If several are equally near, the first of them is taken."""
    differences = {candidate.digest: explain(candidate, key) for candidate in stored}
    is_stored = differences.pop(key.digest, None) is not None
    nearest = min(differences, key=lambda digest: len(differences[digest]), default=None)
    return Explanation(key, is_stored, nearest, differences[nearest] if nearest else ())


def _missed(data: bytes, name: str) -> CacheKey:
    key = CacheKey.from_transcript(unseal(data).get("transcript"))
    if key.digest != name:
        raise DamagedError(f"it is the transcript of {key.digest}")
    return key


class MissedKeys(Documents[CacheKey]):
    """Transcripts of missed keys, one file per key. If their folder cannot be used, a miss has no explanation."""

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        super().__init__(root, MISSED_KEYS, _missed, lambda key: seal({"transcript": key.transcript}), shared=shared)

    def add(self, key: CacheKey) -> None:
        if self.read(key.digest) is None:
            self.write(key.digest, key)

    def find(self, prefix: str) -> CacheKey | None:
        """The one stored key whose digest has this prefix; None if none or several have it, or its file is damaged."""
        matches: list[str] = []
        with suppressed(OSError):
            matches = [name for name in self.names() if name.startswith(prefix)]
        return self.read(matches[0]) if len(matches) == 1 else None
