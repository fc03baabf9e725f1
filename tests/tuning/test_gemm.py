"""Tuning of GEMM variants with a measurer that needs no GPU: measuring, storing, resuming and sharing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import warp_tiles
from tests.bench import Bench, variant_of
from tests.tuning.gemm_fakes import GPU, H200, Clock, FakeMeasurer, timing, tuner_of
from warp_tiles import api, settings
from warp_tiles.build.engine import Engine
from warp_tiles.cli import tune_script as tune_script_module
from warp_tiles.cli.tune_script import tune_script
from warp_tiles.errors import ScriptError, ToolchainError
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.heuristics.choose import choose
from warp_tiles.settings import Settings
from warp_tiles.tuning import distribute, gemm
from warp_tiles.tuning.gemm import Tuner, tune_variant
from warp_tiles.tuning.gemm_key import source_of
from warp_tiles.tuning.gemm_space import candidates, config_of
from warp_tiles.tuning.open_store import open_store
from warp_tiles.tuning.record import Config, identity

HALF = variant_of(64, "float16", threads=128)
SINGLE = variant_of(32, threads=64)
WANTED = candidates(HALF, 12)
FAVOURITE = WANTED[5]


def time_us(config: Config) -> float:
    """The favourite is fast, one candidate is broken, and the chooser's pick is average."""
    if identity(config) == identity(WANTED[3]):
        raise ValueError("wrong result: C[0, 0] is 1 in place of 2")
    return 5.0 if identity(config) == identity(FAVOURITE) else 10.0 + len(identity(config)) % 7


@pytest.fixture
def measurer() -> FakeMeasurer:
    return FakeMeasurer(time_us)


@pytest.fixture
def clock(measurer: FakeMeasurer, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the tuner and of the measurer."""
    measurer.clock = Clock()
    for module in (gemm, distribute):
        monkeypatch.setattr(module, "time", measurer.clock)
    return measurer.clock


def test_every_candidate_has_a_timing_and_the_fastest_wins(bench: Bench, measurer: FakeMeasurer) -> None:
    found = tuner_of(bench, measurer).tune(HALF)
    assert {item.identity for item in found.record.timings} == {identity(config) for config in WANTED}
    assert found.measured == len(WANTED)
    assert found.winner is not None
    assert found.winner.config == FAVOURITE
    failed = found.record.timing(WANTED[3])
    assert failed is not None
    assert (failed.status, failed.reason) == ("failed", "wrong result: C[0, 0] is 1 in place of 2")
    assert all(item.soft == H200.soft() for item in found.record.timings)


def test_the_choosers_pick_is_measured_first(bench: Bench, measurer: FakeMeasurer) -> None:
    tuner_of(bench, measurer).tune(HALF)
    ((variant, configs),) = measurer.requests
    assert (variant, configs[0]) == (HALF, config_of("mma", choose(HALF)))


def test_known_timings_are_not_measured_again(bench: Bench, measurer: FakeMeasurer) -> None:
    first = tuner_of(bench, measurer).tune(HALF)
    again = tuner_of(bench, measurer).tune(HALF)
    assert (again.measured, again.record, again.winner) == (0, first.record, first.winner)
    assert len(measurer.requests) == 1


def test_a_new_candidate_races_the_best_alone(bench: Bench, measurer: FakeMeasurer) -> None:
    tuner_of(bench, measurer, limit=12).tune(HALF)
    more = tuner_of(bench, measurer, limit=16)
    new = more.missing(HALF, more.record(HALF))
    found = more.tune(HALF)
    assert new
    assert measurer.requests[1][1] == [FAVOURITE, *new]
    assert found.measured == len(new)


def test_an_interrupted_search_continues_where_it_stopped(bench: Bench, measurer: FakeMeasurer) -> None:
    measurer.batch, measurer.stop_after = 4, 2
    with pytest.raises(KeyboardInterrupt):
        tuner_of(bench, measurer).tune(HALF)
    assert len(tuner_of(bench, measurer).record(HALF).timings) == 8
    measurer.stop_after = None
    found = tuner_of(bench, measurer).tune(HALF)
    assert found.measured == len(WANTED) - 8
    assert measurer.requests[1][1] == [FAVOURITE, *WANTED[8:]]


def test_a_search_stops_at_its_budget_with_the_best_so_far(bench: Bench, measurer: FakeMeasurer, clock: Clock) -> None:
    measurer.batch, measurer.batch_s = 1, 10.0
    found = tuner_of(bench, measurer).tune(HALF, clock.monotonic() + 35.0)
    assert found.measured == 4
    assert found.winner is not None
    assert tuner_of(bench, measurer).tune(HALF, clock.monotonic() - 1).measured == 0


def test_variants_share_the_budget(bench: Bench, measurer: FakeMeasurer, clock: Clock) -> None:
    measurer.batch, measurer.batch_s = 1, 5.0
    start = clock.monotonic()
    found = tuner_of(bench, measurer).tune_all([HALF, SINGLE, HALF], budget_s=80.0)
    assert [(item.variant, item.measured) for item in found] == [(HALF, 8), (SINGLE, 8)]
    assert clock.monotonic() - start == 80.0


def test_variants_that_no_provider_serves_are_left_out(bench: Bench, measurer: FakeMeasurer) -> None:
    old = replace(HALF, arch=70)
    assert [item.variant for item in tuner_of(bench, measurer).tune_all([old, SINGLE])] == [SINGLE]


def test_progress_is_reported_after_each_batch(bench: Bench, measurer: FakeMeasurer) -> None:
    measurer.batch = 5
    counts: list[int] = []
    tuner_of(bench, measurer).tune_all(
        [HALF], progress=lambda variant, record, device: counts.append(len(record.timings))
    )
    assert counts == [5, 10, len(WANTED)]


def test_another_driver_is_measured_again_on_request(bench: Bench, measurer: FakeMeasurer) -> None:
    tuner_of(bench, measurer).tune(HALF)
    newer = replace(tuner_of(bench, measurer), environment=replace(H200, driver="13.1"))
    assert newer.tune(HALF).measured == 0
    again = replace(newer, reuse_stale=False).tune(HALF)
    assert again.measured == len(WANTED)
    assert {(item.soft or {})["driver"] for item in again.record.timings} == {"13.1"}


def test_if_all_candidates_fail_there_are_reasons_and_no_winner(bench: Bench) -> None:
    def broken(config: Config) -> float:
        raise ValueError("no block fits")

    found = tuner_of(bench, FakeMeasurer(broken)).tune(HALF)
    assert found.winner is None
    assert {item.reason for item in found.record.timings} == {"no block fits"}


def test_one_variant_is_tuned_and_the_engine_uses_it_at_once(
    bench: Bench, measurer: FakeMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warp_tiles.tuning.gemm_records.present_environments", lambda: (H200,))
    before = bench.build(HALF)
    record = tune_variant(bench.engine, HALF, open_store(settings.current()), H200, measurer=measurer)
    winner = record.winner()
    assert winner is not None
    after = bench.build(HALF)
    assert after.tile_config is not None
    assert after.tile_config.to_json() == winner.config["tile_config"] != before.tile_config


# ---- scripts

SCRIPT = """
import warp as wp

wp.set_module_options({"block_dim": 64})

@wp.kernel
def product(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    a = wp.tile_load(A, shape=(16, 16))
    b = wp.tile_load(B, shape=(16, 16))
    wp.tile_store(C, wp.tile_matmul(a, b))

arrays = [wp.zeros((16, 16), dtype=wp.float32, requires_grad=True) for _ in range(3)]
wp.launch_tiled(product, dim=[1], inputs=arrays, block_dim=64)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMeasurer]:
    """A measurer for an H200 that this machine does not have."""
    monkeypatch.setattr("warp_tiles.tuning.gemm_records.present_environments", lambda: (H200,))
    measurer = FakeMeasurer(lambda config: 5.0 if config["provider"] == "cublasdx" else 10.0)
    with settings.override(cache_dir=tmp_path / "cache", target_gpu=GPU), warp_tiles.enabled():
        yield measurer


def make_tuner(measurer: FakeMeasurer):  # type: ignore[no-untyped-def]
    def make(engine: Engine, now: Settings) -> list[Tuner]:
        return [Tuner(open_store(now), H200, measurer, source_of(engine.build_context(now).store), 90, 6)]

    return make


def test_a_script_is_tuned_once_and_its_plan_shows_it(script: Path, scripted: FakeMeasurer) -> None:
    reported: list[GemmProblem] = []
    found = tune_script(
        script, tuners=make_tuner(scripted), progress=lambda variant, record, device: reported.append(variant)
    )
    assert {(item.variant.m, item.variant.threads, item.variant.arch) for item in found} == {(16, 64, 90)}
    assert len(found) == len({item.variant for item in found}) >= 2, "the product and its adjoints"
    assert all(item.measured and item.winner for item in found)
    assert set(reported) == {item.variant for item in found}
    assert all(item.measured == 0 for item in tune_script(script, tuners=make_tuner(scripted)))

    from warp_tiles.launch.script import discover

    (target,) = discover(script).targets
    plan = warp_tiles.plan(target.module, arch=90, block_dim=64)
    assert {v.provider for v in plan.needed} == {"cublasdx"}
    assert all("tuned: 5.0 us against 10.0 us" in v.reason for v in plan.needed)
    other = warp_tiles.plan(target.module, arch=80, block_dim=64)
    assert {v.provider for v in other.needed} == {"mma"}, "nothing was measured for another architecture"


def test_the_reason_of_an_early_end_is_reported(script: Path, scripted: FakeMeasurer) -> None:
    script.write_text(f"{SCRIPT}\nraise SystemExit('the result is wrong')\n")
    reasons: list[str] = []
    assert tune_script(script, tuners=make_tuner(scripted), stopped=reasons.append)
    assert reasons == ["SystemExit: the result is wrong"]


def test_modules_are_hashed_again_after_tuning(script: Path, scripted: FakeMeasurer) -> None:
    from warp_tiles.launch.script import discover

    (target,) = discover(script).targets
    before = target.module.get_module_hash(64)
    assert target.module.get_module_hash(64) == before
    tune_script(script, tuners=make_tuner(scripted))
    assert target.module.get_module_hash(64) != before


def test_without_a_gpu_the_error_says_what_is_missing(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_device", lambda: None)
    with (
        warp_tiles.enabled(),
        pytest.raises(ToolchainError, match="needs an NVIDIA GPU, and Warp found none: cpu") as caught,
    ):
        tune_script(script)
    assert "warp-tiles tune export" in caught.value.remedy


@pytest.mark.parametrize("names", [(), ("cuda:1", "cuda:0")])
def test_a_script_is_tuned_on_the_gpus_that_share_it(
    script: Path, bench: Bench, scripted: FakeMeasurer, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(tune_script_module, "present_device", lambda: "cuda:0")
    monkeypatch.setattr(tune_script_module, "sharing_gpus", lambda default, names: list(names) or [default, "cuda:1"])
    monkeypatch.setattr(gemm, "environment_of", lambda device: H200)
    monkeypatch.setattr(gemm, "compile_arch", lambda device: 90)
    used: list[str] = []

    def measurer(context: object, device: str) -> FakeMeasurer:
        used.append(device)
        return FakeMeasurer(scripted.time_us, name=device)

    monkeypatch.setattr(gemm, "_measurer", measurer)
    found = tune_script(script, devices=names)
    assert used == (list(names) or ["cuda:0", "cuda:1"])
    assert {item.device for item in found} <= set(used)
    assert all(item.measured and item.winner for item in found)


def test_a_missing_script(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="there is no script"):
        tune_script(tmp_path / "missing.py")


# ---- the policy max


def test_before_a_build_only_variants_without_a_record_are_measured(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurer = FakeMeasurer(time_us)
    monkeypatch.setattr(gemm, "_device", lambda: object())
    monkeypatch.setattr(gemm, "compile_arch", lambda device: 90)
    monkeypatch.setattr(gemm, "default_tuner", lambda engine, now: tuner_of(bench, measurer))
    other = replace(SINGLE, arch=80)
    bench.engine.tune_missing([HALF, other], settings.current())
    bench.engine.tune_missing([HALF, SINGLE], settings.current())
    assert [variant for variant, _ in measurer.requests] == [HALF, SINGLE]


def test_before_a_build_without_a_gpu_nothing_is_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_device", lambda: None)
    monkeypatch.setattr(gemm, "default_tuner", lambda engine, now: pytest.fail("no GPU"))
    bench.engine.tune_missing([HALF], settings.current())


def test_before_a_build_a_lost_gpu_causes_a_warning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(engine: Engine, now: Settings) -> Tuner:
        raise ToolchainError("the GPU cannot be used any more")

    monkeypatch.setattr(gemm, "_device", lambda: object())
    monkeypatch.setattr(gemm, "compile_arch", lambda device: 90)
    monkeypatch.setattr(gemm, "default_tuner", lost)
    with pytest.warns(RuntimeWarning, match="cannot be used any more; building with the known records"):
        bench.engine.tune_missing([HALF], settings.current())


def test_the_engine_in_use_is_accessible() -> None:
    with warp_tiles.enabled():
        assert isinstance(api.engine(), Engine)


def test_fake_timings_do_not_overlap() -> None:
    assert timing(FAVOURITE, 5.0).high_us < timing(FAVOURITE, 10.0).low_us
