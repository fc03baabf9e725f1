"""Cache keys: SHA-256 over labelled, length-prefixed, schema-versioned fields, with a printable transcript.

The digest is taken over the transcript itself, so a stored transcript proves its key. A long value
is replaced by its SHA-256 and length. A short value is kept unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from warp_tiles.util.warn import shown

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

        Raises:
            TypeError: A value is neither a text nor a sequence of strings.
            ValueError: A label is empty or cannot be encoded, or there is no field.
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
