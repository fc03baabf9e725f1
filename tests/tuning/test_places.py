"""Questions and their legal answers: pipelines of loops, functions of products on shared tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from tests.gemm_variants import gemm_variants
from tests.tuning.place_fakes import question, variant
from warp_tiles.errors import UnsupportedVariant
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.main_loop import LoopAnswer
from warp_tiles.gemm.pipeline import AUTO, PipelineOverrides
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.gemm.tile_config import fits
from warp_tiles.tuning.questions import (
    FUNCTIONS,
    function_config,
    function_place,
    loop_place,
    pipeline_of,
    tile_config_of,
    tile_configs,
    values_of,
)
from warp_tiles.tuning.record import DEFAULTS
from warp_tiles.tuning.tuning_key import question_digest

OTHER_MEMORY: dict[str, Any] = {
    "stage_bytes": 40_000, "tile_bytes": 100_000, "idle_bytes": 70_000, "at_end": False, "around_bytes": 512
}  # fmt: skip


class TestLoops:
    @pytest.mark.parametrize(
        "asked",
        [
            question(),
            question(variant(64, 64, 32, 128, "float32")),
            question(variant(128, 64, 16, 256, "float64", "float64")),
        ],
        ids=["float16", "float32", "float64"],
    )
    def test_each_answer_is_possible_and_makes_code_of_its_own(self, asked: object) -> None:
        place = loop_place(asked)  # type: ignore[arg-type]
        assert place.configs[0] == DEFAULTS["loop"]
        assert pipeline_of(place.configs[-1]).family == "double_buffered"
        answers = [asked.answer(pipeline_of(config)) for config in place.configs[:-1]]  # type: ignore[attr-defined]
        assert all(isinstance(answer, LoopAnswer) for answer in answers)
        assert len({answer.code for answer in answers}) == len(answers) > 5

    def test_the_fields_of_the_answer_vary(self) -> None:
        answers = [question().answer(pipeline_of(config)) for config in loop_place(question()).configs[:-1]]
        loops = [answer.loop for answer in answers if isinstance(answer, LoopAnswer)]
        assert {loop.instruction for loop in loops} == {"wgmma", "mma_m16n8k16"}
        assert {loop.stages for loop in loops} >= {2, 3, 4, 5, 6}
        assert {loop.in_flight for loop in loops} == {0, 1}
        grids = {answer.products[0].warps_m for answer in answers if isinstance(answer, LoopAnswer)}
        assert len(grids) > 2

    def test_a_loop_with_double_buffers_by_default_can_have_stages(self) -> None:
        rejected = Rejected("few_accumulators", ("16 accumulators", 32))
        asked = question(variant(64, 64, 32, 256, "float32"), double_buffers_reason=rejected)
        place = loop_place(asked)
        assert asked.answer(AUTO) == rejected
        assert len(place.configs) > 3
        assert PipelineOverrides("double_buffered") not in [pipeline_of(config) for config in place.configs]

    def test_an_instruction_that_the_module_cannot_use_is_no_answer(self) -> None:
        asked = replace(question(), families=("mma",))
        assert asked.answer(PipelineOverrides("wgmma")) == Rejected("family", ("wgmma",))
        answers = [asked.answer(pipeline_of(config)) for config in loop_place(asked).configs]
        assert {answer.loop.instruction for answer in answers if isinstance(answer, LoopAnswer)} == {"mma_m16n8k16"}

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("memory", replace(question().memory, **{name: value})) for name, value in OTHER_MEMORY.items()),
            ("families", ("mma",)), ("arrays", (1,)),
            ("forms", ((variant(128, 128, 32, 256),),)), ("forms", ((variant(128, 128, 64, 128),),)),
        ],
    )  # fmt: skip
    def test_everything_that_decides_is_in_the_key(self, field: str, value: object) -> None:
        changed = replace(question(), **{field: value})
        assert question_digest("loop", values_of(changed)) != question_digest("loop", values_of(question()))

    def test_the_registers_of_the_module_are_not_in_the_key(self) -> None:
        """They follow from the answers of all kernels of a module, and the copy of a kernel is alone in its own."""
        changed = replace(question(), registers=128, double_buffers_reason="few accumulators")
        assert values_of(changed) == values_of(question())

    def test_a_pipeline_that_is_none_is_refused(self) -> None:
        for config in ({}, {"pipeline": 3}, {"pipeline": "stages=99"}):
            with pytest.raises(ValueError, match=r"no pipeline|unknown"):
                pipeline_of(config)


class TestFunctions:
    def test_the_default_comes_first_and_the_library_last(self) -> None:
        place = function_place(variant(64, 64, 64, 128))
        assert place.configs[0] == DEFAULTS["function"]
        assert place.configs[-1] == {"provider": "cublasdx"}
        assert function_config("own", choose(variant(64, 64, 64, 128))) not in place.configs
        assert 10 < len(place.configs) <= FUNCTIONS + 1

    def test_nothing_to_choose_is_no_place(self) -> None:
        """cuBLASDx, the only provider of this product, is its default."""
        assert function_place(replace(variant(16, 16, 16, 48), threads=48)) is None

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(gemm_variants())
    def test_every_tile_fits(self, asked: GemmProblem) -> None:
        found = tile_configs(asked)
        try:
            assert found[0] == choose(asked)
        except UnsupportedVariant:
            assert found == ()
        assert len(set(found)) == len(found) <= FUNCTIONS
        assert not [config for config in found if not fits(asked, config)]

    def test_fields_that_the_estimate_does_not_model_are_tried(self) -> None:
        asked = variant(64, 64, 64, 128)
        found = tile_configs(asked)
        alike = [replace(config, c_first=found[0].c_first, k_unroll=found[0].k_unroll) for config in found[1:]]
        assert found[0] in alike

    def test_configurations_survive_a_record(self) -> None:
        tile = choose(variant(64, 64, 64, 128))
        assert tile_config_of(function_config("own", tile)) == tile
        assert tile_config_of({"provider": "cublasdx"}) is None

    def test_each_field_of_the_variant_is_in_the_key(self) -> None:
        asked = variant(64, 64, 64, 128)
        others = [
            replace(asked, m=32), replace(asked, n=32), replace(asked, k=32), replace(asked, threads=64),
            replace(asked, arch=80), replace(asked, precision="tf32"), replace(asked, a=replace(asked.a, alignment=2)),
            replace(asked, b=asked.b.transposed()), replace(asked, c=replace(asked.c, leading_dimension=72)),
        ]  # fmt: skip
        assert len({question_digest("function", values_of(one)) for one in (asked, *others)}) == 10
