"""Keys: what makes another one, JSON both ways, and the GPUs that share their records."""

import json
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import warp as wp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuning.tuning_records import ENVIRONMENT, key
from warp_tiles.errors import ToolchainError
from warp_tiles.tuning.record import Environment, TuningKey, alike, sharing_gpus

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
TEXT = st.text(st.characters(codec="utf-8"))
ENVIRONMENTS = st.builds(
    Environment,
    TEXT,
    st.none() | st.integers(50, 130),
    st.integers(1, 200),
    st.from_regex(r"\A\d\.\d{1,2}\.\d\Z"),
    TEXT,
    TEXT,
    st.integers(1, 9),
)
KEYS = st.builds(TuningKey.of, TEXT, st.dictionaries(TEXT, SCALARS, max_size=5), TEXT, ENVIRONMENTS)
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
