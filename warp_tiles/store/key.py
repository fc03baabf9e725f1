"""Cache keys: SHA-256 over labelled, length-prefixed, schema-versioned fields, with a printable transcript.

The digest is taken over the transcript itself, so a stored transcript proves its key. A long value
is replaced by its SHA-256 and length. A short value is kept unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from warp_tiles.store import MISSED_KEYS
from warp_tiles.store.documents import DamagedError, Documents, seal, unseal
from warp_tiles.util.threads import suppressed
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
