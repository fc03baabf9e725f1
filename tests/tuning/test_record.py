"""Records: the winner, ties, merging, and JSON both ways; their keys, and the GPUs that share them."""

import itertools
import json
import math
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import warp as wp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuning.tuning_records import ENVIRONMENT, failure, key, timing
from warp_tiles.errors import ToolchainError
from warp_tiles.tuning.record import Environment, Record, Timing, TuningKey, alike, identity, settled, sharing_gpus

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CONFIGS = st.dictionaries(TEXT, JSON, max_size=4)
MEDIANS = st.floats(1.0, 100.0)


def measured(configs: st.SearchStrategy[Any]) -> st.SearchStrategy[Timing]:
    return st.builds(
        lambda config, median_us, width, shared: timing(
            config, median_us, low_us=median_us * (1 - width), high_us=median_us * (1 + width), shared_bytes=shared
        ),
        configs,
        MEDIANS,
        st.floats(0.0, 0.3),
        st.sampled_from([0, 1024, 4096]),
    )


NUMBERED = measured(st.fixed_dictionaries({"x": st.integers(0, 99)}))
DROPPED = st.builds(lambda config, median_us: timing(config, median_us, status="dropped"), CONFIGS, MEDIANS)
TIMINGS = measured(CONFIGS) | DROPPED | st.builds(failure, CONFIGS, TEXT)
RECORDS = st.builds(
    lambda timings: Record(key()).merged(timings),
    st.lists(TIMINGS, max_size=6, unique_by=lambda item: identity(item.config)),
)


def record(*timings: Timing) -> Record:
    return Record(key(), timings)


def winner(*timings: Timing) -> Any:
    found = record(*timings).winner()
    return None if found is None else found.config["x"]


def test_of_equals_the_least_shared_memory_wins_and_then_the_faster() -> None:
    assert record().winner() is None
    assert winner(failure({"x": 1}), timing({"x": 2}, 1.0, status="dropped")) is None
    fast = timing({"x": 1}, 10.0, low_us=9.0, high_us=11.0, shared_bytes=4096)
    equal = timing({"x": 2}, 10.5, low_us=10.0, high_us=11.5, shared_bytes=2048)
    slower = timing({"x": 3}, 11.1, low_us=10.0, high_us=12.0, shared_bytes=0)  # its median lies outside
    assert winner(fast, equal, slower) == 2
    assert winner(fast, replace(equal, shared_bytes=4096), slower) == 1
    assert winner(timing({"x": 1}, 10.2), timing({"x": 2}, 10.0), timing({"x": 3}, 10.1)) == 2
    # a wide interval of the fastest does not help a slower one
    vague = timing({"x": 1}, 8.0, low_us=6.0, high_us=10.0, shared_bytes=1024)
    sure = timing({"x": 2}, 8.0, low_us=8.0, high_us=8.0, shared_bytes=1024)
    slow = timing({"x": 3}, 9.0, low_us=9.0, high_us=9.0, shared_bytes=0)
    assert winner(vague, sure, slow) == 1
    assert winner(vague, slow) == 3


@settings(max_examples=40)
@given(st.lists(NUMBERED, min_size=1, max_size=4, unique_by=lambda item: identity(item.config)))
def test_the_winner_does_not_depend_on_the_order_and_none_is_clearly_faster(timings: list[Timing]) -> None:
    winners = [record(*order).winner() for order in itertools.permutations(timings)]
    assert all(found == winners[0] for found in winners)
    assert not any(other.high_us < winners[0].median_us for other in timings)


def test_only_requested_candidates_count() -> None:
    both = record(timing({"x": 1, "y": 1}, 10.0), timing({"x": 2, "y": 1}, 20.0))
    found = both.among({identity({"y": 1, "x": 2})}).winner()
    assert found.config == {"x": 2, "y": 1}
    assert both.among(()).winner() is None
    assert both.among({identity({"x": 3})}).winner() is None


@settings(max_examples=40)
@given(*(st.lists(NUMBERED, max_size=6, unique_by=lambda item: identity(item.config)) for _ in range(2)))
def test_merging_loses_no_configuration(one: list[Timing], other: list[Timing]) -> None:
    merged = record(*one).merged(other)
    names = [item.identity for item in merged.timings]
    assert len(names) == len(set(names))
    assert set(names) == {item.identity for item in (*one, *other)}
    assert all(merged.timing(item.config) == item for item in other)


def test_an_identity_does_not_depend_on_order_or_on_tuples() -> None:
    assert identity({"a": 1, "b": (1, 2)}) == identity({"b": [1, 2], "a": 1})
    assert identity({"a": 1}) != identity({"a": "1"})
    assert identity({"a": "\U0001d11e"}) == r'{"a":"\ud834\udd1e"}'
    for value in (object(), math.inf, math.nan, "a\ud800b"):
        with pytest.raises((TypeError, ValueError), match=r"JSON|surrogates"):
            identity({"a": [value]})


@settings(max_examples=40)
@given(RECORDS)
def test_json_gives_the_same_record_back(one: Record) -> None:
    text = json.dumps(one.to_json(), allow_nan=False)
    back = Record.from_json(json.loads(text))
    assert back.key == one.key
    assert json.dumps(back.to_json()) == text
    assert (back.winner() is None) == (one.winner() is None)


FIELDS = ["config", "status", "median_us", "low_us", "high_us", "samples", "shared_bytes", "reason", "soft"]


def test_a_timing_with_an_unknown_value_or_without_a_field_is_refused() -> None:
    sound = timing({"x": 1}).to_json()
    assert list(sound) == FIELDS, "each one is perturbed here"
    changes: list[dict[str, Any]] = [{name: value} for name in FIELDS for value in (["?"], object(), {1, 2})]
    changes += [
        {"status": "fast"},
        {"median_us": None},
        {"median_us": 10**400},
        {"unknown": 1},
        {"samples": 1.5},
        {"median_us": -1.0},
        {"config": {"mul": math.inf}},
        {"config": {"tile": {"m": [math.nan]}}},
        {"config": {"name": "\ud800"}},
        {"config": {"\udfff": 1}},
        {"soft": {"driver": math.inf}},
        {"soft": {"warp": "\udc80"}},
    ]
    wrong: list[Any] = [None, 3, "text", [], {}, True, *(sound | change for change in changes)]
    wrong += [{field: sound[field] for field in FIELDS if field != name} for name in FIELDS[:5]]
    for data in wrong:
        with pytest.raises(ValueError, match="not a timing"):
            Timing.from_json(data)


def test_a_record_with_an_unknown_value_is_refused() -> None:
    sound = record(timing({"x": 1})).to_json()
    changes: list[Any] = [{"schema": 2}, {"schema": None}, {"key": None}, {"timings": {}}, {"timings": [3]}]
    for data in (None, 3, "text", [], {}, True, *(sound | change for change in changes)):
        with pytest.raises(ValueError, match=r"not a t|it has schema 2"):
            Record.from_json(data)


def test_an_unfinished_timing_does_not_replace_a_finished_one() -> None:
    def timing_with(median_us: float, unfinished: bool, status: Any = "ok", driver: str = "13.0") -> Timing:
        return Timing(
            {"x": 1}, status, median_us, median_us, median_us, 5, soft={"driver": driver}, unfinished=unfinished
        )  # fmt: skip

    finished, cut = timing_with(1.0, False), timing_with(2.0, True)
    assert Record(key(), (finished,)).merged([cut]).timings == (finished,)
    assert Record(key(), (cut,)).merged([finished]).timings == (finished,)
    newer = timing_with(4.0, True)
    assert Record(key(), (cut,)).merged([newer]).timings == (newer,)
    other = timing_with(3.0, True, driver="12.0")
    assert Record(key(), (finished,)).merged([other]).timings == (other,)
    failed = timing_with(float("nan"), False, "failed")
    assert Record(key(), (failed,)).merged([cut]).timings == (cut,)
    assert [found.unfinished for found in settled([cut, replace(cut, config={"x": 2})], [cut])] == [False, True]
    assert Timing.from_json(cut.to_json()) == cut
    assert "unfinished" not in finished.to_json()


# ---- keys: what makes another one

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
TEXTS = st.text(st.characters(codec="utf-8"))
ENVIRONMENTS = st.builds(
    Environment,
    TEXTS,
    st.none() | st.integers(50, 130),
    st.integers(1, 200),
    st.from_regex(r"\A\d\.\d{1,2}\.\d\Z"),
    TEXTS,
    TEXTS,
    st.integers(1, 9),
)
KEYS = st.builds(TuningKey.of, TEXTS, st.dictionaries(TEXTS, SCALARS, max_size=5), TEXTS, ENVIRONMENTS)
OTHER_ENVIRONMENT: dict[str, Any] = {
    "device": "NVIDIA B200", "arch": 100, "multiprocessors": 114, "warp": "1.18.0", "warp_tiles": "0.3.0",
    "measurement": 2,
}  # fmt: skip
SOFT = {"driver": "13.1", "warp": "1.19.5"}


def test_each_hard_field_of_the_environment_makes_another_key_and_soft_ones_are_noted() -> None:
    assert {field.name for field in fields(Environment)} == OTHER_ENVIRONMENT.keys() | SOFT.keys()
    for name, value in (OTHER_ENVIRONMENT | SOFT).items():
        other = replace(ENVIRONMENT, **{name: value})
        assert (key(environment=other).digest == key().digest) is (name in SOFT), name
        assert name not in SOFT or other.soft() != ENVIRONMENT.soft(), name


@pytest.mark.parametrize(
    "other",
    [
        replace(key(), subject="gemm"),
        replace(key(), source="6" * 64),
        key(m=512, dtype="float32"),
        key(m=513, dtype="float16"),
        key(n=512, dtype="float16"),
        key(m=512),
        key(m=512, dtype="float16", n=None),
        replace(key(), environment=replace(ENVIRONMENT, arch=None)),
    ],
)
def test_each_part_of_the_question_makes_another_key(other: TuningKey) -> None:
    assert other.digest != key().digest


def test_values_of_different_types_make_different_keys() -> None:
    values = [1, 1.0, True, "1", "true", None, "null", "None", 0, False, ""]
    assert len({key(x=value).digest for value in values}) == len(values)


def test_a_value_is_not_confused_with_a_field_of_the_same_name() -> None:
    assert TuningKey.of("a", {"subject": "b"}, "s", ENVIRONMENT) != TuningKey.of(
        "b", {"subject": "a"}, "s", ENVIRONMENT
    )
    named = {TuningKey.of(subject, {"subject": value}, "s", ENVIRONMENT).digest for subject, value in ("ab", "ba")}
    assert len(named) == 2
    first, second = (TuningKey.of("a", {"device": name}, "s", ENVIRONMENT) for name in "ab")
    assert first.digest != second.digest, "the environment has a device too"


@settings(max_examples=30)
@given(st.permutations([("m", 512), ("n", 1.0), ("", "x"), ("dtype", None), ("is_c", True)]))
def test_the_order_of_names_does_not_matter(shuffled: list[tuple[str, Any]]) -> None:
    first = TuningKey.of("gemm", dict(sorted(shuffled)), "s", ENVIRONMENT)
    assert TuningKey.of("gemm", dict(shuffled), "s", ENVIRONMENT).digest == first.digest


@settings(max_examples=40)
@given(KEYS)
def test_json_gives_the_same_key_back(one: TuningKey) -> None:
    back = TuningKey.from_json(json.loads(json.dumps(one.to_json())))
    assert back == one
    assert back.digest == one.digest


def _changed(path: str, *value: Any) -> Any:
    """A key as JSON with another value of a field, or without the field."""
    data = key().to_json()
    *parents, last = path.split(".")
    task = data
    for parent in parents:
        task = task[parent]
    task.pop(last, None)
    task.update(zip([last], value))
    return data


PATHS = ["subject", "values", "source", "environment", *(f"environment.{field.name}" for field in fields(Environment))]
OPTIONAL = {"environment.measurement"}


def test_json_that_lacks_a_field_or_has_another_type_is_refused() -> None:
    wrong: list[Any] = [None, 3, "text", [], {}, [1, 2], True]
    wrong += [_changed(path) for path in PATHS if path not in OPTIONAL]
    wrong += [
        _changed(path, value)
        for path in (*PATHS, "values.m", "environment.unknown")
        for value in ([], {"a": [1]}, ["b"])
    ]
    for data in wrong:
        with pytest.raises(ValueError, match="not a tuning key"):
            TuningKey.from_json(data)


# ---- GPUs that tune together


@dataclass(frozen=True)
class Device:
    alias: str
    name: str = "NVIDIA H200"
    arch: int = 90
    sm_count: int = 132
    is_cuda: bool = True

    def __eq__(self, other: object) -> bool:
        raise AssertionError("to compare devices, Warp would create their contexts")


FIRST, SECOND, THIRD = (Device(f"cuda:{number}") for number in range(3))
UNLIKE = [Device("cuda:3", name="NVIDIA H100"), Device("cuda:4", arch=89), Device("cuda:5", sm_count=66)]
CPU = Device("cpu", is_cuda=False)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp, "get_cuda_devices", lambda: [FIRST, *UNLIKE, SECOND, THIRD])
    monkeypatch.setattr(wp, "get_device", lambda: CPU)


def names(devices: list[Device]) -> list[str]:
    return [device.alias for device in devices]


def test_gpus_of_another_name_architecture_or_size_and_the_cpu_are_unlike() -> None:
    assert names(alike(FIRST, [SECOND, *UNLIKE, CPU, FIRST, SECOND, THIRD])) == ["cuda:1", "cuda:2"]
    assert alike(CPU, [FIRST, CPU, Device("cpu:1", is_cuda=False)]) == []


@pytest.mark.parametrize(
    ("default", "found"),
    [(CPU, ["cuda:0", "cuda:1", "cuda:2"]), (SECOND, ["cuda:1", "cuda:0", "cuda:2"]), (UNLIKE[0], ["cuda:3"])],
    ids=["CPU", "GPU", "another GPU"],
)
def test_without_names_all_gpus_like_the_default_share(
    host: None, monkeypatch: pytest.MonkeyPatch, default: Device, found: list[str]
) -> None:
    monkeypatch.setattr(wp, "get_device", lambda: default)
    assert names(sharing_gpus()) == found


def test_names_restrict_and_the_first_is_tuned_for(host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(sharing_gpus(["cuda:2"])) == ["cuda:2"]
    assert names(sharing_gpus(["cuda:2", "cuda:0"])) == ["cuda:2", "cuda:0"]
    with pytest.warns(RuntimeWarning, match=r"cuda:5 \(NVIDIA H200, 66 multiprocessors\) is not used for tuning"):
        assert names(sharing_gpus(["cuda:0", "cuda:5", "cuda:1"])) == ["cuda:0", "cuda:1"]
    for name in ("cuda:9", "cpu", "cuda"):
        with pytest.raises(ToolchainError, match=f"there is no GPU {name}\\n") as caught:
            sharing_gpus(["cuda:0", name])
        assert "cuda:4" in caught.value.remedy
        assert "CUDA_VISIBLE_DEVICES" in caught.value.remedy
    monkeypatch.setattr(wp, "get_cuda_devices", list)
    with pytest.raises(ToolchainError, match="tuning needs an NVIDIA GPU, and Warp found none"):
        sharing_gpus()
