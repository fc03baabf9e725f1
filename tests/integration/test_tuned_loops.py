"""Tuning in kernels without a GPU: the tasks of a kernel, copies with forced configurations, records in the plan."""

import json
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import FORWARD_ONLY, gemm, gemm_loop, load
from tests.tuning.task_fakes import H200, Machine, timing
from warp_tiles import settings
from warp_tiles._warp import require_hooks
from warp_tiles._warp.intercept import NotedLaunch, intercepted, launching
from warp_tiles._warp.internals import find
from warp_tiles._warp.modules import copied_kernel, forget_modules, hash_all_again
from warp_tiles.cli.script import Script
from warp_tiles.cli.tune import tune_script
from warp_tiles.tuning import in_kernels
from warp_tiles.tuning import tasks as tuning_tasks
from warp_tiles.tuning.in_kernels import copy_of, kernel_of, search_devices, tasks_of
from warp_tiles.tuning.record import DEFAULTS, identity
from warp_tiles.tuning.store import open_store
from warp_tiles.tuning.tasks import TuningTask, pipeline_of, source_of

LARGE = gemm_loop("gemm", 128, 128, 64, decorator=FORWARD_ONLY, dtype="float16")
TWO_LOOPS = LARGE + gemm_loop("short", decorator=FORWARD_ONLY) + gemm("alone", 32, 32, 32, decorator=FORWARD_ONLY)
GPU = SimpleNamespace(get_cuda_compile_arch=lambda: 90)


@pytest.fixture(autouse=True)
def enabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tuning_tasks, "present_environments", lambda: (H200,))
    with settings.override(cache_dir=tmp_path / "cache"), warp_tiles.enabled():
        yield
        require_hooks("the test").engine.records_changed()


@pytest.fixture(scope="module")
def module() -> Any:
    return load(TWO_LOOPS, block_dim=128)


def launch_of(kernel: Any, size: int = 256, dtype: Any = wp.float16, **fields: Any) -> NotedLaunch:
    arrays = [wp.zeros((size, size), dtype=kind, device="cpu") for kind in (dtype, dtype, float)]
    given = {"dim": (2, 2, 128), "outputs": 1, "block_dim": 128, "device": SimpleNamespace(is_cpu=False), **fields}
    return NotedLaunch(kernel, values=tuple(arrays), **given)


def tasks(*launches: NotedLaunch) -> list[TuningTask]:
    return tasks_of(require_hooks("the test").engine, launches, GPU)


def plan_of(kernel: Any) -> dict[str, Any]:
    plan = require_hooks("a test").plan_module(kernel.module, 90, 128)
    assert plan is not None
    return plan.to_json()


def loop_of(kernel: Any) -> dict[str, Any]:
    """The loop of a kernel in the plan of its module."""
    (loop,) = (loop for loop in plan_of(kernel)["loops"] if loop["kernel"] == kernel.key)
    return dict(loop)


def test_each_launched_kernel_has_its_own_tasks(module: Any) -> None:
    found = tasks(launch_of(module.gemm), launch_of(module.alone, dtype=float))
    assert [(item.subject, item.launch.kernel.key) for item in found] == [
        ("loop", module.gemm.key),
        ("function", module.alone.key),
    ]
    assert found[0].title.startswith("loop of 128x128x64 float16")
    assert len(found[0].configs) > 10
    assert tasks(launch_of(module.gemm, device=SimpleNamespace(is_cpu=True))) == []


def test_kernels_of_a_factory_are_told_apart() -> None:
    text = gemm_loop("one", 128, 128, "depth", decorator=FORWARD_ONLY, dtype="float16")  # type: ignore[arg-type]
    kernels = load(
        f"def factory(depth):\n{indent(text, '    ')}\n    return one\n\nkernels = factory(32), factory(64)\n"
    ).kernels
    found = tasks(*map(launch_of, kernels))
    assert [kernel_of(item).partition("[")[2] for item in found] == ["depth=32]", "depth=64]"]


def test_a_deterministic_module_has_no_tasks() -> None:
    kernel = load(TWO_LOOPS, block_dim=128).gemm
    kernel.module.options["deterministic"] = True
    with pytest.warns(RuntimeWarning, match="is not tuned: .* deterministic"):
        assert tasks(launch_of(kernel)) == []


def test_the_largest_launch_of_a_task_is_measured(module: Any) -> None:
    small, large = launch_of(module.gemm), launch_of(module.gemm, size=512, dim=(4, 4, 128))
    assert [item.launch for item in tasks(small, large, small)] == [large]


def test_a_copy_has_the_forced_configuration_and_the_user_s_kernel_stays(module: Any) -> None:
    (task,) = tasks(launch_of(module.gemm))
    usual = loop_of(module.gemm)
    seen = set()
    for config in task.configs:
        (loop,) = plan_of(copy_of(task, config).kernel)["loops"]
        overrides = pipeline_of(config)
        seen.add((loop["instruction"], loop["stages"], loop["state"]))
        if overrides.family == "double_buffered":
            assert (loop["instruction"], "measured" in loop["codes"]) == ("", True)
        elif overrides.stages is not None:
            assert loop["stages"] == overrides.stages
        if config == DEFAULTS["loop"]:
            assert (loop["instruction"], loop["stages"]) == (usual["instruction"], usual["stages"])
    assert {instruction for instruction, *_ in seen} >= {"wgmma", "mma_m16n8k16"}
    forget_modules([name for name in find("context.user_modules") if "_tuned_" in name])


def test_copies_are_forgotten_after_a_search(module: Any) -> None:
    def copies() -> list[str]:
        return [name for name in find("context.user_modules") if "_tuned_" in name]

    (task,) = tasks(launch_of(module.gemm))
    before = copies()
    with search_devices([wp.get_device("cpu")], task, task.configs[:2]):
        assert copies() != before
    assert copies() == before


def test_a_tuned_script_has_records_that_the_next_plan_uses(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    best = {"pipeline": "mma,stages=3,in_flight=0"}
    machine = Machine({identity(best): 80.0})
    found = SimpleNamespace(launches=[launch_of(module.gemm)], stopped="")
    monkeypatch.setattr("warp_tiles.cli.tune.sharing_gpus", lambda names: [GPU])
    monkeypatch.setattr("warp_tiles.cli.tune.discover", lambda script: found)
    monkeypatch.setattr(in_kernels, "environment_of", lambda device: H200)
    monkeypatch.setattr(in_kernels, "search_devices", lambda gpus, task, configs: machine.devices(task, configs))
    before = loop_of(module.short)
    hashed = module.gemm.module.get_module_hash(128)
    (tuned,) = tune_script(Script(__file__))
    assert tuned.winner is not None
    assert tuned.winner.config == best
    assert (tuned.kernel, tuned.measured, tuned.error) == (module.gemm.key, len(tuned.task.configs), "")
    assert module.gemm.module.get_module_hash(128) != hashed
    loop = loop_of(module.gemm)
    assert (loop["instruction"], loop["stages"]) == ("mma_m16n8k16", 3)
    assert "tuned: 80.0 us against 100.0 us of the default" in loop["reason"]
    assert loop_of(module.short) == before
    (again,) = tune_script(Script(__file__))
    assert (again.measured, again.record) == (0, tuned.record)


def test_a_record_counts_for_a_similar_number_of_iterations_if_it_is_known() -> None:
    found = {}
    for k in (2048, 1984, 8192):
        kernel = load(LARGE.replace("A.shape[1]", str(k)), block_dim=128).gemm
        found[k] = kernel, tasks(launch_of(kernel))[0]
    assert found[2048][1].title.endswith("a stage, at most 32 iterations")
    assert found[2048][1] == found[1984][1] != found[8192][1]
    remember(found[2048][1], {"pipeline": "mma,stages=3"})
    reasons = {k: plan_of(kernel)["loops"][0]["reason"] for k, (kernel, _) in found.items()}
    assert {k for k, reason in reasons.items() if "tuned" in reason} == {2048, 1984}


def test_a_setting_comes_before_a_record(module: Any) -> None:
    (task,) = tasks(launch_of(module.gemm))
    remember(task, {"pipeline": "mma,stages=3"})
    with settings.override(main_loop="wgmma"):
        loop = loop_of(module.gemm)
    assert loop["instruction"] == "wgmma"
    assert "tuned" not in loop["reason"]


def test_a_record_of_a_function_leaves_stages_alone(module: Any) -> None:
    """The product of a staged loop has no function, so no record of one can take its stages."""
    (task,) = tasks(launch_of(module.gemm))
    assert task.subject == "loop"
    (other,) = tasks(launch_of(module.alone, dtype=float))
    remember(other, {"provider": "cublasdx"})
    assert loop_of(module.gemm)["instruction"] == "wgmma"
    functions = plan_of(module.gemm)["functions"]
    chosen = [planned for planned in functions if module.alone.key in planned["kernels"] and planned["needed"]]
    assert [(problem["provider"], problem["choice"]) for problem in chosen] == [("cublasdx", "tuned")]


def remember(task: TuningTask, config: Any) -> None:
    now = settings.current()
    key = task.key(source_of(require_hooks("the test").engine.build_context(now).facts), H200)
    open_store(now).merge(key, [timing(DEFAULTS[task.subject], 100.0), timing(config, 80.0)])
    require_hooks("the test").engine.records_changed()
    hash_all_again()


def test_planned_launches_are_noted_with_their_arguments(module: Any) -> None:
    found: list[NotedLaunch] = []
    a = wp.zeros((256, 256), dtype=wp.float16, device="cpu")
    with intercepted(found.append):
        c = wp.empty((256, 256), dtype=float, device="cpu")
        wp.launch_tiled(module.gemm, dim=(2, 2), inputs=[a, a], outputs=[c], block_dim=128, device="cpu")
        with wp.Tape():
            wp.launch(module.gemm, (2, 2, 128), [a, a], outputs=[c], block_dim=128, device="cpu")
    assert [(launch.dim, launch.outputs, launch.block_dim) for launch in found] == [((2, 2, 128), 1, 128)] * 2
    assert [launch.taped for launch in found] == [False, True]
    assert found[0].values == (a, a, c)
    assert not c.numpy().any(), "nothing writes it, so it must not hold what the memory held"


def test_the_launch_that_loads_a_module_is_known_from_its_frame(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[NotedLaunch | None] = []

    def load_nothing(self: Any, device: Any, block_dim: int | None = None) -> None:
        found.append(launching())

    a, c = wp.zeros((256, 256), dtype=wp.float16, device="cpu"), wp.zeros((256, 256), dtype=float, device="cpu")
    with monkeypatch.context() as patch:  # it ends before warp_tiles is disabled
        patch.setattr(type(module.gemm.module), "load", load_nothing)
        wp.launch_tiled(module.gemm, dim=(2, 2), inputs=[a, a], outputs=[c], block_dim=1, device="cpu")
    (launch,) = found
    assert launch is not None
    assert (launch.kernel, launch.dim, launch.values, launch.outputs) == (module.gemm, (2, 2, 1), (a, a, c), 1)
    assert launching() is None


def test_a_copy_is_a_kernel_of_its_own_module(module: Any) -> None:
    copy = copied_kernel(module.gemm, "of_its_own", {"fast_math": True, "warp_tiles_forced": json.dumps({})})
    assert (copy.key, copy.func, copy.module.name) == (module.gemm.key, module.gemm.func, "of_its_own")
    assert copy.module.options["fast_math"] is True
    assert copy.options == module.gemm.options
    assert "warp_tiles_forced" not in module.gemm.module.options
    forget_modules(["of_its_own"])
    assert "of_its_own" not in find("context.user_modules")
