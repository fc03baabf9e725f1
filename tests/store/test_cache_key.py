"""Keys: every input changes the digest, the encoding is injective, a transcript proves its key."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.store.documents import seal
from warp_tiles.store.key import SCHEMA_VERSION, CacheKey, KeyField, MissedKeys, explain

BASE = {"problem": "64x64x64 f16", "source": "x" * 4000, "headers": "ab" * 32, "options": ("-O3", "-std=c++17")}
CHANGED = {
    "problem": "64x64x32 f16",
    "source": "x" * 3999 + "y",
    "headers": "ab" * 31 + "ac",
    "options": ("-O3", "-std=c++20"),
}

values = st.one_of(st.text(st.characters(), max_size=8), st.lists(st.text(max_size=3), max_size=3))
labels = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
mappings = st.dictionaries(labels, values, min_size=1, max_size=5)


def typed(fields: dict[str, object]) -> str:
    """A text in which "[]" differs from []."""
    return repr(sorted((label, type(value).__name__, repr(value)) for label, value in fields.items()))


@pytest.mark.parametrize("label", BASE)
def test_every_field_changes_the_digest_and_is_explained(label: str) -> None:
    without = {name: value for name, value in BASE.items() if name != label}
    before, missing, after = (CacheKey.of(fields) for fields in (BASE, without, {**BASE, label: CHANGED[label]}))
    assert len({before.digest, missing.digest, after.digest}) == 3
    (changed,), (gone,) = explain(before, after), explain(before, missing)
    assert changed.label == gone.label == label
    assert changed.old != changed.new
    assert gone.new is None


def test_the_digest_depends_on_the_schema_and_not_on_the_order_of_fields() -> None:
    """A change of the encoding, and so of a known key's digest, must come with a new schema version."""
    before, after = CacheKey.of(BASE), CacheKey(CacheKey.of(BASE).fields, SCHEMA_VERSION + 1)
    assert before.digest != after.digest
    assert [str(difference) for difference in explain(before, after)] == ["<schema>: 1 -> 2"]
    assert CacheKey.of(dict(reversed(BASE.items()))) == before
    key = CacheKey.of({"a": "text", "b": ["x", "y"], "c": "z" * 2000})
    assert key.digest == "a69c188566c0fb64d2b086c0b3358950cfff3244cb4d33f0d2b7fb1b91151101"


@given(mappings, mappings)
def test_different_fields_have_different_encodings(left: dict[str, object], right: dict[str, object]) -> None:
    same = typed(left) == typed(right)
    assert (CacheKey.of(left).encode() == CacheKey.of(right).encode()) == same


@given(mappings)
def test_a_transcript_restores_the_key_through_json(fields: dict[str, object]) -> None:
    key = CacheKey.of(fields)
    again = CacheKey.from_transcript(json.loads(json.dumps(key.transcript)))
    assert again == key
    assert again.digest == key.digest
    assert pickle.loads(pickle.dumps(key)).digest == key.digest


def test_long_values_are_kept_as_digest_and_length() -> None:
    fields = {field.label: field for field in CacheKey.of({"s": "x" * 5000, "l": ["y" * 4995], "t": "x"}).fields}
    assert fields["s"].kind == "text-sha256"
    assert fields["l"].kind == "list-sha256"
    assert fields["l"].shown.endswith(":4999")
    assert fields["t"] == KeyField("t", "text", "x")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        *((fields, ValueError) for fields in ({}, {"": "x"}, {"\ud800": "x"})),
        *(({"a": value}, TypeError) for value in (1, b"x", ["x", 1], object())),
    ],
)
def test_values_without_an_encoding_are_refused(fields: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        CacheKey.of(fields)


X = ["a", "text", "x"]


@pytest.mark.parametrize(
    "transcript",
    [
        *(None, [], {"schema": 1}),
        *({"schema": schema, "fields": [X]} for schema in (True, -1)),
        *(
            {"schema": 1, "fields": fields}
            for fields in ([], [X[:2]], [["a", "sort", "x"]], [["b", "text", "x"], X], [X, ["a", "text", "y"]])
        ),
        {"schema": 1, "fields": {"a": "x"}},
    ],
)
def test_a_malformed_transcript_is_refused(transcript: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the messages differ
        CacheKey.from_transcript(transcript)


# ---- missed keys are stored, so that a miss can be explained


def key(compiler: str = "12.9") -> CacheKey:
    return CacheKey.of({"compiler": compiler, "m": "16"})


def test_a_missed_key_is_found_by_its_first_digits(tmp_path: Path) -> None:
    keys = MissedKeys(tmp_path)
    assert keys.find(key().digest[:8]) is None
    keys.add(key())
    assert keys.find(key().digest[:8]) == key()
    assert keys.find("") == key()
    keys.add(key("13.0"))
    assert keys.find("") is None, "two keys match"


def test_a_file_of_another_key_is_no_key_and_an_unwritable_folder_raises_nothing(tmp_path: Path) -> None:
    keys, stored = MissedKeys(tmp_path), tmp_path / "asked" / f"{key().digest}.json"
    for data in (seal({"transcript": key("13.0").transcript}), seal({"transcript": 1}), seal({}), b"{"):
        keys.add(key())
        stored.write_bytes(data)
        assert keys.find(key().digest) is None
    assert not stored.exists()
    (tmp_path / "file").write_text("")
    MissedKeys(tmp_path / "file").add(key())
    assert MissedKeys(tmp_path / "file").find(key().digest) is None
