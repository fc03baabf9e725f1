"""Tasks and their legal configurations; measured configurations as builds see them, and what a search forces."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import warp

from tests.gemm_problems import problems
from tests.tuning.task_fakes import H200, loop, problem, timing
from warp_tiles import settings
from warp_tiles.compile import sources
from warp_tiles.compile.toolchain import ToolchainFacts
from warp_tiles.errors import ToolchainError, UnsupportedProblem
from warp_tiles.gemm.choose import choose, ranked
from warp_tiles.gemm.main_loop import LoopPlan
from warp_tiles.gemm.pipeline import AUTO, PipelineOverrides
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.gemm.tile_config import fits
from warp_tiles.tuning import tasks as module
from warp_tiles.tuning.record import DEFAULTS, Record, Timing, problem_digest
from warp_tiles.tuning.snapshots import TunedSnapshots
from warp_tiles.tuning.store import RecordStore
from warp_tiles.tuning.tasks import (
    FUNCTIONS,
    Measurements,
    TuningTask,
    function_config,
    function_task,
    loop_task,
    pipeline_of,
    snapshot,
    source_of,
    tile_config_of,
    tile_configs,
    values_of,
)

ASKED, PRODUCT = loop(), problem(64, 64, 64, 128)
LOOP = loop_task(ASKED)
FUNCTION = function_task(PRODUCT)
assert FUNCTION is not None
SOURCE = "5" * 64
ALL = ("own", "cublasdx", "libmathdx", "scalar")
TILE = ranked(PRODUCT)[2]


OTHER_MEMORY: dict[str, Any] = {
    "stage_bytes": 40_000, "tile_bytes": 100_000, "idle_bytes": 70_000, "at_end": False, "around_bytes": 512
}  # fmt: skip


class TestLoops:
    @pytest.mark.parametrize(
        "asked",
        [
            loop(),
            loop(problem(64, 64, 32, 128, "float32")),
            loop(problem(128, 64, 16, 256, "float64", "float64")),
        ],
        ids=["float16", "float32", "float64"],
    )
    def test_each_configuration_is_possible_and_makes_code_of_its_own(self, asked: object) -> None:
        task = loop_task(asked)  # type: ignore[arg-type]
        assert task.configs[0] == DEFAULTS["loop"]
        assert pipeline_of(task.configs[-1]).family == "double_buffered"
        configs = [asked.plan(pipeline_of(config)) for config in task.configs[:-1]]  # type: ignore[attr-defined]
        assert all(isinstance(config, LoopPlan) for config in configs)
        assert len({config.code for config in configs}) == len(configs) > 5

    def test_the_fields_of_the_pipeline_vary(self) -> None:
        configs = [loop().plan(pipeline_of(config)) for config in loop_task(loop()).configs[:-1]]
        loops = [config.loop for config in configs if isinstance(config, LoopPlan)]
        assert {loop.instruction for loop in loops} == {"wgmma", "mma_m16n8k16"}
        assert {loop.stages for loop in loops} >= {2, 3, 4, 5, 6}
        assert {loop.in_flight for loop in loops} == {0, 1}
        grids = {config.products[0].warps_m for config in configs if isinstance(config, LoopPlan)}
        assert len(grids) > 2

    def test_a_loop_with_double_buffers_by_default_can_have_stages(self) -> None:
        rejected = Rejected("few_accumulators", ("16 accumulators", 32))
        asked = loop(problem(64, 64, 32, 256, "float32"), double_buffers_reason=rejected)
        task = loop_task(asked)
        assert asked.plan(AUTO) == rejected
        assert len(task.configs) > 3
        assert PipelineOverrides("double_buffered") not in [pipeline_of(config) for config in task.configs]

    def test_an_instruction_that_the_module_cannot_use_is_not_tried(self) -> None:
        asked = replace(loop(), families=("mma",))
        assert asked.plan(PipelineOverrides("wgmma")) == Rejected("family", ("wgmma",))
        configs = [asked.plan(pipeline_of(config)) for config in loop_task(asked).configs]
        assert {config.loop.instruction for config in configs if isinstance(config, LoopPlan)} == {"mma_m16n8k16"}

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("memory", replace(loop().memory, **{name: value})) for name, value in OTHER_MEMORY.items()),
            ("families", ("mma",)), ("arrays", (1,)),
            ("forms", ((problem(128, 128, 32, 256),),)), ("forms", ((problem(128, 128, 64, 128),),)),
        ],
    )  # fmt: skip
    def test_everything_that_decides_is_in_the_key(self, field: str, value: object) -> None:
        changed = replace(loop(), **{field: value})
        assert problem_digest("loop", values_of(changed)) != problem_digest("loop", values_of(loop()))

    def test_the_registers_of_the_module_are_not_in_the_key(self) -> None:
        """They follow from all kernels of a module, and the copy of a kernel is alone in its own."""
        changed = replace(loop(), registers=128, double_buffers_reason="few accumulators")
        assert values_of(changed) == values_of(loop())

    def test_a_pipeline_that_is_none_is_refused(self) -> None:
        for config in ({}, {"pipeline": 3}, {"pipeline": "stages=99"}):
            with pytest.raises(ValueError, match=r"no pipeline|unknown"):
                pipeline_of(config)


class TestFunctions:
    def test_the_default_comes_first_and_the_library_last(self) -> None:
        task = function_task(problem(64, 64, 64, 128))
        assert task.configs[0] == DEFAULTS["function"]
        assert task.configs[-1] == {"provider": "cublasdx"}
        assert function_config("own", choose(problem(64, 64, 64, 128))) not in task.configs
        assert 10 < len(task.configs) <= FUNCTIONS + 1

    def test_nothing_to_choose_is_no_task(self) -> None:
        """cuBLASDx, the only provider of this product, is its default."""
        assert function_task(replace(problem(16, 16, 16, 48), threads=48)) is None

    @hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @hypothesis.given(problems())
    def test_every_tile_fits(self, asked: GemmProblem) -> None:
        found = tile_configs(asked)
        try:
            assert found[0] == choose(asked)
        except UnsupportedProblem:
            assert found == ()
        assert len(set(found)) == len(found) <= FUNCTIONS
        assert not [config for config in found if not fits(asked, config)]

    def test_fields_that_the_estimate_does_not_model_are_tried(self) -> None:
        asked = problem(64, 64, 64, 128)
        found = tile_configs(asked)
        alike = [replace(config, c_first=found[0].c_first, k_unroll=found[0].k_unroll) for config in found[1:]]
        assert found[0] in alike

    def test_configurations_survive_a_record(self) -> None:
        tile = choose(problem(64, 64, 64, 128))
        assert tile_config_of(function_config("own", tile)) == tile
        assert tile_config_of({"provider": "cublasdx"}) is None

    def test_each_field_of_the_problem_is_in_the_key(self) -> None:
        asked = problem(64, 64, 64, 128)
        others = [
            replace(asked, m=32), replace(asked, n=32), replace(asked, k=32), replace(asked, threads=64),
            replace(asked, arch=80), replace(asked, precision="tf32"), replace(asked, a=replace(asked.a, alignment=2)),
            replace(asked, b=asked.b.transposed()), replace(asked, c=replace(asked.c, leading_dimension=72)),
        ]  # fmt: skip
        assert len({problem_digest("function", values_of(one)) for one in (asked, *others)}) == 10


# ---- measured configurations


def configs(task: TuningTask, *timings: Timing, **fields: Any) -> Measurements:
    return Measurements({task.digest: Record(task.key(SOURCE, H200), timings)}, **fields)


def loop_measurements(us: float, text: str = "stages=3", **fields: Any) -> Measurements:
    return configs(LOOP, timing(DEFAULTS["loop"], 100.0), timing({"pipeline": text}, us), **fields)


class TestChoices:
    def test_a_faster_pipeline_is_chosen_with_both_times(self) -> None:
        found = loop_measurements(80.0).pipeline(ASKED)
        assert found.overrides == PipelineOverrides(stages=3)
        assert found.reason == "tuned: 80.0 us against 100.0 us of the default"
        assert loop_measurements(99.9).pipeline(ASKED) is None, "the default needs no configuration"
        other = replace(ASKED, memory=replace(ASKED.memory, around_bytes=512))
        assert loop_measurements(80.0).pipeline(other) is None, "another task has no record"
        failed = Timing(DEFAULTS["loop"], "failed", reason="too large")
        found = configs(LOOP, failed, timing({"pipeline": "mma"}, 80.0)).pipeline(ASKED)
        assert found.reason == "tuned: 80.0 us, and the default failed"

    def test_a_measurement_that_does_not_fit_causes_a_warning(self) -> None:
        with pytest.warns(RuntimeWarning, match=r"is ignored: 'tiles=3' is unknown.*tune clear"):
            assert loop_measurements(80.0, "tiles=3").pipeline(ASKED) is None
        config = function_config("own", replace(TILE, tile_m=512))
        tuned = configs(FUNCTION, timing(DEFAULTS["function"], 100.0), timing(config, 80.0))
        with pytest.warns(RuntimeWarning, match="is ignored: "):
            assert tuned.best(PRODUCT, ALL) is None

    def test_a_faster_function_is_chosen_and_a_named_provider_takes_the_best_of_its_own(self) -> None:
        found = configs(
            FUNCTION,
            timing(DEFAULTS["function"], 100.0),
            timing({"provider": "cublasdx"}, 70.0),
            timing(function_config("own", TILE), 80.0),
        )
        assert found.best(PRODUCT, ALL).provider == "cublasdx"
        own = found.best(PRODUCT, ("own",))
        assert (own.provider, own.tile_config) == ("own", TILE)
        assert found.best(PRODUCT, ("libmathdx",)) is None

    def test_timings_of_another_driver_count_unless_they_are_to_be_renewed(self) -> None:
        present = {"driver": "14.0", "warp": H200.warp}
        found = loop_measurements(80.0, soft=present).pipeline(ASKED)
        assert found.reason.endswith("measured with driver 13.0")
        assert loop_measurements(80.0, soft=present, reuse_stale=False).pipeline(ASKED) is None

    def test_the_fingerprint_changes_with_the_choice_alone(self) -> None:
        assert Measurements({}).fingerprint == ""
        prints = [loop_measurements(us).fingerprint for us in (80.0, 81.0, 99.9)]
        assert prints[0] == prints[1] != prints[2]
        assert Measurements({}, forced={LOOP.digest: {"pipeline": "mma"}}).fingerprint not in ("", *prints)


class TestForced:
    def test_a_search_forces_one_config_of_one_task(self) -> None:
        forced = {LOOP.digest: {"pipeline": "double_buffered"}, FUNCTION.digest: {"provider": "cublasdx"}}
        found = replace(loop_measurements(80.0), forced=forced)
        assert found.pipeline(ASKED).overrides.family == "double_buffered"
        assert found.best(PRODUCT, ALL).provider == "cublasdx"
        assert found.best(PRODUCT, ("own",)) is None
        assert found.pipeline(replace(ASKED, memory=replace(ASKED.memory, at_end=False))) is None
        # the forced default is that of the heuristics, although the record has another winner
        forced = {LOOP.digest: DEFAULTS["loop"], FUNCTION.digest: {"provider": "auto"}}
        found = replace(loop_measurements(80.0), forced=forced)
        assert found.pipeline(ASKED).overrides == PipelineOverrides()
        assert found.best(PRODUCT, ALL) is None

    def test_a_forced_configuration_that_does_not_fit_is_an_error(self) -> None:
        """So that the candidate fails. A warning about a record would leave the default to be timed in its place."""
        forced = {FUNCTION.digest: function_config("own", replace(TILE, tile_m=512)), LOOP.digest: {"pipeline": "?"}}
        for found in (Measurements({}, forced=forced), replace(loop_measurements(80.0), forced=forced)):
            with pytest.raises(ValueError, match="does not fit"):
                found.best(PRODUCT, ALL)
            with pytest.raises(ValueError, match="unknown"):
                found.pipeline(ASKED)

    def test_what_a_plan_asks_is_noted(self) -> None:
        found = Measurements({})
        found.pipeline(ASKED)
        found.pipeline(ASKED)
        assert list(found.asked.values()) == [ASKED]


@pytest.mark.parametrize("name", ["gemm/multiply.cuh", "module/stage_buffers.cuh", "arch/wgmma.cuh"])
def test_a_record_holds_for_the_device_sources_that_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.copytree(sources.kernels_folder(), tmp_path / "kernels")
    monkeypatch.setattr(sources, "kernels_folder", lambda: tmp_path / "kernels")
    toolkit = warp.get_cuda_toolkit_version()
    before, again = (source_of(ToolchainFacts(tmp_path / "facts", warp_toolkit=toolkit)) for _ in range(2))
    with (tmp_path / "kernels" / name).open("a") as file:
        file.write("// changed\n")
    changed = source_of(ToolchainFacts(tmp_path / "facts", warp_toolkit=toolkit))
    assert (before == again, before == changed) == (True, False)


class TestSnapshot:
    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordStore:
        monkeypatch.setattr(module, "source_of", lambda toolchain: SOURCE)
        return RecordStore(tmp_path)

    @staticmethod
    def remember(store: RecordStore, us: float = 80.0, source: str = SOURCE, environment: Any = H200) -> None:
        timings = [timing(DEFAULTS["loop"], 100.0), timing({"pipeline": "stages=3"}, us)]
        store.merge(LOOP.key(source, environment), timings)

    @staticmethod
    def take(store: RecordStore, environments: Any = (H200,), **changes: Any) -> Measurements | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "present_environments", lambda: environments)
            return snapshot(store, None, replace(settings.current(), **changes))  # type: ignore[arg-type]

    def test_records_of_this_gpu_and_source_count(self, store: RecordStore) -> None:
        assert self.take(store) is None
        self.remember(store, source="4" * 64)
        self.remember(store, environment=replace(H200, device="NVIDIA H100"))
        assert self.take(store) is None
        self.remember(store)
        assert self.take(store).pipeline(ASKED) is not None

    def test_without_a_gpu_the_records_of_a_named_one_count(self, store: RecordStore) -> None:
        self.remember(store)
        assert self.take(store, ()) is None
        assert self.take(store, (), target_gpu="NVIDIA H200").pipeline(ASKED) is not None
        assert self.take(store, (), target_gpu="NVIDIA H100") is None

    def test_without_a_compiler_no_record_counts(self, store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(toolchain: ToolchainFacts) -> str:
            raise ToolchainError("no NVRTC")

        self.remember(store)
        monkeypatch.setattr(module, "source_of", fail)
        assert self.take(store) is None

    def test_forced_configurations_come_with_the_settings(self, store: RecordStore) -> None:
        found = self.take(store, forced=json.dumps({LOOP.digest: {"pipeline": "mma"}}))
        assert found.pipeline(ASKED).overrides.family == "mma"
        assert self.take(store, forced="{}") is not None, "a plan asks without forcing anything"


def test_without_folders_of_records_nothing_is_read(tmp_path: Path) -> None:
    with settings.override(cache_dir=tmp_path):
        assert TunedSnapshots().snapshot(settings.current(), None) is None  # type: ignore[arg-type]


def test_the_configurations_of_a_search_are_no_setting() -> None:
    options = {"warp_tiles_forced": '{"a": 1}', "warp_tiles_main_loop": "mma"}
    assert settings.from_options(options) == {"main_loop": "mma"}
    assert settings.current(options).forced == '{"a": 1}'
    assert settings.current().forced == ""
    assert "forced" not in settings.current().to_json()
