"""Explains why a key missed: the labels in which it differs from the nearest stored key.

Transcripts of missed keys are kept, so that ``warp-tiles cache explain`` can explain them later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from warp_tiles.store import MISSED_KEYS
from warp_tiles.store.documents import DamagedError, Documents, seal, unseal
from warp_tiles.store.key import CacheKey
from warp_tiles.util.threads import suppressed


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
    differences = {other.digest: explain(other, key) for other in stored}
    found = differences.pop(key.digest, None) is not None
    nearest = min(differences, key=lambda digest: len(differences[digest]), default=None)
    return Explanation(key, found, nearest, differences[nearest] if nearest else ())


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
        found: list[str] = []
        with suppressed(OSError):
            found = [name for name in self.names() if name.startswith(prefix)]
        return self.read(found[0]) if len(found) == 1 else None
