"""Records of GEMM variants in use: their effect on plans, builds and hashes, and records that do not count."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import Bench, cublasdx, mma, variant_of
from tests.tuning.gemm_fakes import GPU, H200, another_tile, remember, store_of, timing, tuned_to
from warp_tiles import settings
from warp_tiles.gemm.problem import GemmProblem, Role
from warp_tiles.heuristics.choose import choose
from warp_tiles.plan.planning import ModulePlan, PlannedVariant, Session, resolve
from warp_tiles.providers.base import TunedChoice
from warp_tiles.tuning.gemm_key import values_of
from warp_tiles.tuning.gemm_records import TunedGemms
from warp_tiles.tuning.gemm_space import config_of
from warp_tiles.tuning.record import Timing

HALF = variant_of(64, "float16", threads=128)
SINGLE = variant_of(32, threads=64)
CUBLASDX = config_of("cublasdx")


@pytest.fixture(autouse=True)
def _on_a_machine_without_a_gpu(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("warp_tiles.tuning.gemm_records.present_environments", lambda: ())
    with settings.override(target_gpu=GPU):
        yield


def plan_of(variant: GemmProblem) -> ModulePlan:
    session = Session("module", variant.arch, variant.threads)
    session.add("tile_matmul", "k", {Role.FORWARD: variant})
    return resolve(session, (), ["k"], [])


def planned(bench: Bench, variant: GemmProblem) -> PlannedVariant:
    (found,) = bench.engine.annotate(plan_of(variant)).needed
    return found


def best(bench: Bench, variant: GemmProblem) -> TunedChoice | None:
    tuned = bench.engine.tuned.snapshot(settings.current(), bench.store)
    return tuned.best(variant, ("mma", "cublasdx")) if tuned else None


# ---- a record decides


def test_the_winner_is_planned_built_and_cached(bench: Bench) -> None:
    usual = bench.build(HALF)
    remember(bench, HALF, tuned_to(HALF))
    found, artifact = planned(bench, HALF), bench.build(HALF)
    assert found.tile_config == artifact.tile_config == another_tile(HALF) != usual.tile_config
    assert found.provider == artifact.provider == "mma"
    assert found.choice == found.to_json()["choice"] == "tuned"
    assert found.reason.endswith("; mma: tuned: 12.3 us against 14.1 us of the chooser's pick")
    assert found.key == artifact.key != usual.key
    assert not artifact.hit
    entry = bench.engine.cache.manifest(artifact.key)
    assert entry is not None
    assert entry.info["tile_config"] == another_tile(HALF).to_json()


def test_a_variant_without_a_record_is_left_to_the_chooser(bench: Bench) -> None:
    remember(bench, HALF, tuned_to(HALF))
    found = planned(bench, SINGLE)
    assert found.tile_config == choose(SINGLE)
    assert found.choice == "default"
    assert found.reason.endswith("; mma: the first provider")


def test_the_choosers_pick_can_win(bench: Bench) -> None:
    remember(bench, HALF, [timing(config_of("mma", choose(HALF)), 9.0), timing(CUBLASDX, 12.0)])
    found = planned(bench, HALF)
    assert found.tile_config == choose(HALF)
    assert found.reason.endswith("tuned: 9.0 us, also the chooser's pick")


def test_cublasdx_is_tried_first_if_it_won(bench: Bench) -> None:
    remember(bench, HALF, [*tuned_to(HALF), timing(CUBLASDX, 10.0)])
    found, artifact = planned(bench, HALF), bench.build(HALF)
    assert (found.provider, artifact.provider) == ("cublasdx", "cublasdx")
    assert found.reason.endswith("; cublasdx: tuned: 10.0 us against 14.1 us of the chooser's pick")
    assert bench.pool.requests[0].endswith("_cublasdx")
    assert mma(HALF) not in bench.pool.requests
    assert planned(bench, SINGLE).provider == "mma"


def test_a_named_provider_takes_its_own_best(bench: Bench) -> None:
    remember(bench, HALF, [*tuned_to(HALF), timing(CUBLASDX, 10.0)])
    with settings.override(provider="mma"):
        found = planned(bench, HALF)
    assert (found.provider, found.tile_config) == ("mma", another_tile(HALF))
    assert found.reason.endswith("names it; tuned: 12.3 us against 14.1 us of the chooser's pick")


def test_if_the_winner_cannot_be_built_the_next_best_is(bench: Bench) -> None:
    remember(bench, HALF, [*tuned_to(HALF), timing(CUBLASDX, 10.0)])
    name = planned(bench, HALF).symbol
    bench.refuse(f"{name}_cublasdx", cublasdx(HALF), cublasdx(HALF.without_alignment()))
    artifact, messages = bench.build_with_warnings(HALF)
    assert (artifact.provider, artifact.tile_config) == ("mma", another_tile(HALF))
    assert "using the provider mma as tuned" in messages[-1]


def test_if_the_tuned_tile_cannot_be_built_the_choosers_pick_is(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(bench, HALF, tuned_to(HALF))
    submit = bench.pool.submit

    def refuse_first(request):  # type: ignore[no-untyped-def]
        bench.pool.refuse.clear()
        if not bench.pool.requests:
            bench.refuse(mma(HALF))
        return submit(request)

    monkeypatch.setattr(bench.pool, "submit", refuse_first)
    artifact, messages = bench.build_with_warnings(HALF)
    assert (artifact.provider, artifact.tile_config) == ("mma", choose(HALF))
    assert "using the provider mma." in messages[-1]


# ---- the hash


def test_a_new_winner_changes_the_hash_and_other_timings_do_not(bench: Bench) -> None:
    without = bench.engine.fingerprint()
    remember(bench, HALF, tuned_to(HALF))
    tuned = bench.engine.fingerprint()
    remember(bench, HALF, [timing(config_of("mma", choose(HALF)), 14.2)])
    same = bench.engine.fingerprint()
    remember(bench, HALF, [timing(CUBLASDX, 10.0)])
    assert without != tuned == same != bench.engine.fingerprint()


def test_records_that_cannot_apply_leave_the_hash_alone(bench: Bench) -> None:
    without = bench.engine.fingerprint()
    remember(bench, HALF, tuned_to(HALF), replace(H200, device="NVIDIA A100"))
    remember(bench, HALF, tuned_to(HALF), source="of another release")
    assert bench.engine.fingerprint() == without


def test_choices_are_stable_within_a_process(bench: Bench) -> None:
    remember(bench, HALF, tuned_to(HALF))
    fingerprint, found = bench.engine.fingerprint(), planned(bench, HALF)
    key = store_of(bench).records("gemm")[0].record.key
    store_of(bench).merge(key, [timing(CUBLASDX, 1.0)])  # by another process
    assert (bench.engine.fingerprint(), planned(bench, HALF).tile_config) == (fingerprint, found.tile_config)
    bench.engine.tuned.forget()
    assert bench.engine.fingerprint() != fingerprint


def test_without_records_nothing_of_tuning_is_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_tiles.tuning.snapshots._read", lambda now, store: pytest.fail("records were read"))
    assert planned(bench, HALF).tile_config == choose(HALF)
    assert "tuned" not in bench.engine.fingerprint()


# ---- which records count


@pytest.mark.parametrize("policy", ["auto", "max", "locked"])
def test_policies_with_records(bench: Bench, policy: str) -> None:
    remember(bench, HALF, tuned_to(HALF))
    with settings.override(policy=policy):
        assert best(bench, HALF) is not None


@pytest.mark.parametrize("policy", ["fast", "scalar", "off"])
def test_policies_without_records(bench: Bench, policy: str) -> None:
    without = bench.engine.fingerprint()
    remember(bench, HALF, tuned_to(HALF))
    with settings.override(policy=policy):
        assert best(bench, HALF) is None
        assert bench.engine.chain(settings.current()).tuned is None
    assert bench.engine.fingerprint() != without


@pytest.mark.parametrize("change", [{"device": "another"}, {"warp": "1.0.0"}, {"warp_tiles": "0"}, {"measurement": 0}])
def test_records_of_another_environment_do_not_count(bench: Bench, change: dict[str, str]) -> None:
    remember(bench, HALF, tuned_to(HALF), replace(H200, **change))  # type: ignore[arg-type]
    assert best(bench, HALF) is None


def test_without_a_gpu_and_without_its_name_no_record_counts(bench: Bench) -> None:
    remember(bench, HALF, tuned_to(HALF))
    with settings.override(target_gpu=""):
        assert best(bench, HALF) is None


def test_the_present_gpu_counts_and_the_named_one_does_not(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(H200, device="NVIDIA L40S", arch=89, multiprocessors=142)
    monkeypatch.setattr("warp_tiles.tuning.gemm_records.present_environments", lambda: (other,))
    remember(bench, HALF, tuned_to(HALF))
    assert best(bench, HALF) is None
    remember(bench, HALF, tuned_to(HALF), other)
    assert best(bench, HALF) is not None


def test_of_two_gpus_the_first_ones_record_counts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(H200, device="NVIDIA L40S", multiprocessors=142)
    remember(bench, HALF, tuned_to(HALF))
    remember(bench, HALF, [timing(config_of("mma", choose(HALF)), 9.0)], other)
    for present, config in (((H200, other), another_tile(HALF)), ((other, H200), choose(HALF))):
        monkeypatch.setattr("warp_tiles.tuning.gemm_records.present_environments", lambda found=present: found)
        bench.engine.tuned.forget()
        found = best(bench, HALF)
        assert found is not None
        assert found.tile_config == config


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_sizes_of_a_named_gpu_the_larger_one_counts(bench: Bench, order: int) -> None:
    sizes = {100: [timing(config_of("mma", choose(HALF)), 9.0)], 132: tuned_to(HALF)}
    for multiprocessors, timings in list(sizes.items())[::order]:
        remember(bench, HALF, timings, replace(H200, multiprocessors=multiprocessors))
    found = best(bench, HALF)
    assert found is not None
    assert found.tile_config == another_tile(HALF)


def test_timings_of_another_driver_are_used_with_a_note_or_not_at_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = replace(H200, driver="13.1")
    monkeypatch.setattr("warp_tiles.tuning.gemm_records.present_environments", lambda: (newer,))
    remember(bench, HALF, tuned_to(HALF))
    found = best(bench, HALF)
    assert found is not None
    assert found.reason.endswith("of the chooser's pick, measured with driver 12.9")
    with settings.override(record_driver_mismatch="retune"):
        assert best(bench, HALF) is None


def test_shipped_records_are_found(bench: Bench, tmp_path: Path) -> None:
    remember(bench, HALF, tuned_to(HALF))
    shipped = tmp_path / "shipped"
    store_of(bench).root.rename(shipped)
    bench.engine.tuned.forget()
    assert best(bench, HALF) is None
    with settings.override(record_paths=(shipped,)):
        assert best(bench, HALF) is not None


# ---- records that cannot be used


def test_a_record_that_no_longer_fits_causes_a_warning_and_is_ignored(bench: Bench) -> None:
    huge = replace(another_tile(HALF), tile_m=512, tile_n=512)
    record = remember(bench, HALF, tuned_to(HALF, huge))
    with pytest.warns(RuntimeWarning, match="is ignored: needs about .* registers") as caught:
        found = planned(bench, HALF)
    assert found.tile_config == choose(HALF)
    assert record.key.digest[:12] in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bench.build(HALF).tile_config == choose(HALF)  # without another warning


def test_an_invalid_configuration_causes_a_warning_and_is_ignored(bench: Bench) -> None:
    remember(bench, SINGLE, [timing({"provider": "mma", "tile_config": {"tile_m": 16}}, 1.0)])
    with pytest.warns(RuntimeWarning, match="is ignored: not a tile configuration"):
        assert planned(bench, SINGLE).tile_config == choose(SINGLE)


def test_an_unknown_provider_is_ignored(bench: Bench) -> None:
    remember(bench, HALF, [*tuned_to(HALF), timing({"provider": "cutlass"}, 1.0)])
    assert planned(bench, HALF).tile_config == another_tile(HALF)


def test_failures_alone_decide_nothing(bench: Bench) -> None:
    remember(bench, HALF, [Timing(CUBLASDX, "failed", reason="wrong result")])
    assert planned(bench, HALF).tile_config == choose(HALF)


def test_a_damaged_record_costs_only_the_tuning(bench: Bench) -> None:
    remember(bench, HALF, tuned_to(HALF))
    (path,) = store_of(bench).root.glob("gemm/*.json")
    path.write_text(json.dumps({"schema": 1, "key": 3}))
    bench.engine.tuned.forget()
    with pytest.warns(RuntimeWarning, match="tuning record"):
        assert planned(bench, HALF).tile_config == choose(HALF)


# ---- the snapshot itself


def test_operands_have_separate_fields() -> None:
    found = values_of(HALF)
    assert found["a_dtype"] == "float16"
    assert (found["leading_dimensions_b"], found["alignments_c"]) == (64, 16)
    assert all(isinstance(value, (str, int)) for value in found.values())
    assert {name for name in found if name.startswith("arrangement")} == {f"arrangement_{name}" for name in "abc"}


def test_an_empty_snapshot_has_no_fingerprint() -> None:
    assert TunedGemms({}).fingerprint == ""
    assert TunedGemms({}).best(HALF, ("mma",)) is None
