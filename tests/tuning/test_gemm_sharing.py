"""Several fake GPUs tune GEMM variants: distribution of the variants, and timings that are kept if a GPU fails."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from tests.bench import Bench, variant_of
from tests.tuning.gemm_fakes import H200, FakeMeasurer, tuner_of
from warp_tiles import settings
from warp_tiles.errors import ToolchainError
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.tuning import gemm
from warp_tiles.tuning.gemm import TunedVariant, Tuner
from warp_tiles.tuning.gemm_space import candidates
from warp_tiles.tuning.record import Config, Record, identity

VARIANTS = [variant_of(size, threads=64) for size in (16, 32, 48, 64)]


def time_us(config: Config) -> float:
    return 10.0 + len(identity(config)) % 7


def gpus(count: int, batch: int = 4, batch_s: float = 0.02) -> list[FakeMeasurer]:
    return [FakeMeasurer(time_us, batch, batch_s, f"cuda:{number}") for number in range(count)]


def tuner_with(bench: Bench, measurers: list[FakeMeasurer]) -> Tuner:
    return replace(tuner_of(bench, measurers[0]), helpers=tuple(measurers[1:]))


def lose(measurer: FakeMeasurer, after_batches: int = 0) -> None:
    measurer.stop_after = after_batches
    measurer.stops_with = lambda: ToolchainError(f"the GPU {measurer.name} cannot be used any more")


def is_complete(item: TunedVariant) -> bool:
    known = {timing.identity for timing in item.record.timings}
    return known == {identity(config) for config in candidates(item.variant, 12)}


def test_two_gpus_share_the_variants_and_each_is_measured_on_one(bench: Bench) -> None:
    first, second = measurers = gpus(2)
    found = tuner_with(bench, measurers).tune_all(VARIANTS)
    assert [item.variant for item in found] == VARIANTS
    assert all(is_complete(item) and item.winner and not item.error for item in found)
    measured = {measurer.name: [variant for variant, _ in measurer.requests] for measurer in (first, second)}
    assert first.requests
    assert second.requests
    assert len(first.requests) + len(second.requests) == len(VARIANTS)
    assert all(item.variant in measured[item.device] for item in found)


def test_timings_of_several_gpus_are_not_measured_again(bench: Bench) -> None:
    tuner = tuner_with(bench, gpus(3))
    before = tuner.tune_all(VARIANTS)
    again = tuner.tune_all(VARIANTS)
    assert [(item.measured, item.device, item.record) for item in again] == [(0, "", item.record) for item in before]


def test_a_single_gpu_measures_one_variant_after_the_other_in_this_thread(bench: Bench) -> None:
    (only,) = gpus(1, batch_s=0)
    threads = set()
    found = tuner_with(bench, [only]).tune_all(VARIANTS, progress=lambda *news: threads.add(threading.current_thread()))
    assert [variant for variant, _ in only.requests] == VARIANTS
    assert {item.device for item in found} == {"cuda:0"}
    assert threads == {threading.main_thread()}


def test_the_loss_of_a_single_gpu_is_an_error_and_timings_are_kept(bench: Bench) -> None:
    (only,) = gpus(1, batch_s=0)
    lose(only, after_batches=4)
    tuner = tuner_with(bench, [only])
    with pytest.raises(ToolchainError, match="cuda:0 cannot be used"):
        tuner.tune_all(VARIANTS)
    assert sum(len(tuner.record(variant).timings) for variant in VARIANTS) >= 13


def test_another_gpu_continues_the_variant_of_one_that_fails(bench: Bench) -> None:
    first, second = measurers = gpus(2)
    lose(second, after_batches=1)
    tuner = tuner_with(bench, measurers)
    with pytest.warns(RuntimeWarning, match="cuda:1 is no longer used for tuning: the GPU cuda:1 cannot be used"):
        found = tuner.tune_all(VARIANTS)
    assert all(is_complete(item) and not item.error for item in found)
    assert all(item.measured == len(candidates(item.variant, 12)) for item in found), "on both GPUs together"
    ((lost, _),) = second.requests
    (again,) = [configs for variant, configs in first.requests if variant == lost]
    known = {identity(config) for config in candidates(lost, 12)[:4]}
    assert len(known & {identity(config) for config in again}) == 1, "the best so far races the rest"
    assert {item.device for item in found} == {"cuda:0"}


def test_if_all_gpus_fail_timings_are_kept_and_the_rest_are_errors(bench: Bench) -> None:
    measurers = gpus(2)
    lose(measurers[0], after_batches=5)
    lose(measurers[1])
    with pytest.warns(RuntimeWarning) as caught:
        found = tuner_with(bench, measurers).tune_all(VARIANTS)
    assert {str(item.message).split()[1] for item in caught} == {"cuda:0", "cuda:1"}
    assert [item.variant for item in found] == VARIANTS
    finished = [item for item in found if not item.error]
    assert finished
    assert all(is_complete(item) for item in finished)
    assert all("cannot be used any more" in item.error for item in found if item not in finished)
    assert found[-1].error


def test_the_budget_ends_all_gpus(bench: Bench) -> None:
    measurers = gpus(2, batch=1, batch_s=0.2)  # long enough that other processes on this machine do not matter
    start = time.monotonic()
    found = tuner_with(bench, measurers).tune_all(VARIANTS, budget_s=3.2)
    assert time.monotonic() - start < 30  # on a machine that others load, too
    assert all(1 <= item.measured < 12 for item in found), "each variant has a share"
    assert all(item.winner and not item.error for item in found)
    assert {item.device for item in found} == {"cuda:0", "cuda:1"}


def test_the_calling_thread_reports_the_progress_of_all_gpus_with_their_names(bench: Bench) -> None:
    reports: list[tuple[GemmProblem, str, int]] = []

    def progress(variant: GemmProblem, record: Record, device: str) -> None:
        assert threading.current_thread() is threading.main_thread()
        reports.append((variant, device, len(record.timings)))

    found = tuner_with(bench, gpus(2)).tune_all(VARIANTS, progress=progress)
    for item in found:
        counts = [count for variant, device, count in reports if (variant, device) == (item.variant, item.device)]
        assert counts == sorted(counts)
        assert counts[-1] == len(item.record.timings)
    assert len({(variant, device) for variant, device, _ in reports}) == len(VARIANTS)


def test_before_a_build_other_gpus_are_not_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[object] = []

    def measurer(context: object, device: object) -> FakeMeasurer:
        used.append(device)
        return FakeMeasurer(time_us)

    device = object()
    monkeypatch.setattr(gemm, "_device", lambda: device)
    monkeypatch.setattr(gemm, "_measurer", measurer)
    monkeypatch.setattr(gemm, "environment_of", lambda device: H200)
    monkeypatch.setattr(gemm, "compile_arch", lambda device: 90)
    bench.engine.tune_missing(VARIANTS[:1], settings.current())
    assert used == [device]


def test_a_tuner_of_several_gpus_measures_on_each(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_measurer", lambda context, device: FakeMeasurer(time_us, name=device))
    monkeypatch.setattr(gemm, "environment_of", lambda device: H200)
    monkeypatch.setattr(gemm, "compile_arch", lambda device: 90)
    tuner = gemm.default_tuner(bench.engine, settings.current(), ["cuda:1", "cuda:0"])
    assert [item.name for item in (tuner.measurer, *tuner.helpers)] == ["cuda:1", "cuda:0"]
