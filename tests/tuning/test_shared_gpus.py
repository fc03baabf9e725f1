"""The GPUs of a machine that share measurements."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import warp as wp

from warp_tiles.errors import ToolchainError
from warp_tiles.tuning.key import alike, sharing_gpus


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


def test_gpus_of_another_name_architecture_or_size_are_unlike() -> None:
    assert names(alike(FIRST, [SECOND, *UNLIKE, CPU, FIRST, SECOND, THIRD])) == ["cuda:1", "cuda:2"]


def test_no_device_is_like_the_cpu() -> None:
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


def test_a_machine_without_a_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp, "get_cuda_devices", list)
    with pytest.raises(ToolchainError, match="tuning needs an NVIDIA GPU, and Warp found none"):
        sharing_gpus()


def test_names_restrict_and_the_first_is_tuned_for(host: None) -> None:
    assert names(sharing_gpus(["cuda:2"])) == ["cuda:2"]
    assert names(sharing_gpus(["cuda:2", "cuda:0"])) == ["cuda:2", "cuda:0"]


def test_a_named_gpu_unlike_the_first_causes_a_warning(host: None) -> None:
    with pytest.warns(RuntimeWarning, match=r"cuda:5 \(NVIDIA H200, 66 multiprocessors\) is not used for tuning"):
        assert names(sharing_gpus(["cuda:0", "cuda:5", "cuda:1"])) == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize("name", ["cuda:9", "cpu", "cuda"])
def test_an_unknown_gpu_is_an_error_that_names_the_present_ones(host: None, name: str) -> None:
    with pytest.raises(ToolchainError, match=f"there is no GPU {name}\\n") as caught:
        sharing_gpus(["cuda:0", name])
    assert "cuda:4" in caught.value.remedy
    assert "CUDA_VISIBLE_DEVICES" in caught.value.remedy
