"""``warp-tiles tune contribute`` by a fake machine, its files, and what ships of them."""

from __future__ import annotations

import functools
import json
import math
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warp as wp
from click.testing import CliRunner, Result

import warp_tiles
from benchmarks import ship_records
from benchmarks.contributions import Contribution, read_contribution
from tests.tuning.task_fakes import H200, Machine, loop
from tests.tuning.task_fakes import timing as task_timing
from tests.tuning.tuning_records import key, timing
from warp_tiles import settings
from warp_tiles._warp import require_hooks
from warp_tiles.array_products import measured_solves, prepared_solves
from warp_tiles.array_products.matmul_problem import Gpu
from warp_tiles.array_products.measured_solves import SOLVES, solve_task
from warp_tiles.array_products.solve_choice import SolveProblem, choose_solve
from warp_tiles.cli import commands
from warp_tiles.cli import contribution as module
from warp_tiles.cli.contribution import contribute
from warp_tiles.errors import RecordError, TuningError
from warp_tiles.gemm.hardware import shared_limit
from warp_tiles.store import ANY_TOOLCHAIN, RECORDS
from warp_tiles.store.bundle import write_bundle
from warp_tiles.store.envelope import pack
from warp_tiles.store.key import Entry, Manifest
from warp_tiles.tuning import in_kernels
from warp_tiles.tuning import record as tuning_record
from warp_tiles.tuning.corpus import PRODUCTS, Product
from warp_tiles.tuning.record import DEFAULTS, Record, decode_records, encode_records, identity
from warp_tiles.tuning.store import RecordStore, records_key
from warp_tiles.tuning.tasks import TuningTask, loop_task, snapshot

LISTED = (
    Product("loop", "float16", 128, 128, 64, 256),
    Product("function", "float32", 16, 16, 16, 64),
    Product("loop", "float32", 64, 64, 32, 128),
)
GPU: Any = SimpleNamespace(
    arch=90, sm_count=132, uuid="GPU-0", name="NVIDIA H200", is_cpu=False, get_cuda_compile_arch=lambda: 90
)
STATE = "580.1, 1980, 3201, 700.00, {}\n"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with digests of the toolchain, which take seconds."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def enabled(cache: Path) -> Iterator[None]:
    with settings.override(cache_dir=cache), warp_tiles.enabled():
        yield
        require_hooks("the test").engine.records_changed()


@pytest.fixture
def machine(enabled: None, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """An H200 whose times are given. The list has three products there."""
    found, launch, clocks = Machine(), Product.launch, iter(range(1500, 2000, 10))
    monkeypatch.setattr(wp.config, "log_level", wp.config.log_level)  # which scripts set
    monkeypatch.setattr(in_kernels, "environment_of", lambda device: H200)
    monkeypatch.setattr(in_kernels, "search_devices", lambda gpus, task, configs: found.devices(task, configs))
    monkeypatch.setattr(module, "LISTED", LISTED)
    monkeypatch.setattr(
        Product, "launch", lambda self, device, multiprocessors: replace(launch(self, "cpu", 1), device=GPU)
    )
    run = lambda *_, **__: SimpleNamespace(stdout=STATE.format(next(clocks)))  # noqa: E731
    monkeypatch.setattr(module, "subprocess", SimpleNamespace(run=run, SubprocessError=subprocess.SubprocessError))
    return found


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's folder of records, empty."""
    monkeypatch.setattr(tuning_record, "SHIPPED_RECORDS", tmp_path / "shipped")
    tuning_record.shipped_records.cache_clear()
    yield tmp_path / "shipped"
    tuning_record.shipped_records.cache_clear()


@functools.cache
def tasks() -> dict[str, TuningTask]:
    return ship_records.tasks(require_hooks("the test").engine, 90)


# ---- the list


def test_the_list_has_each_type_on_each_architecture() -> None:
    assert len(set(PRODUCTS)) == len(PRODUCTS)
    kinds = {(product.subject, product.dtype) for product in PRODUCTS}
    for arch in (80, 86, 90, 120):
        possible = [product for product in PRODUCTS if product.is_possible(arch)]
        assert {(product.subject, product.dtype) for product in possible} == kinds
        for product in possible:
            assert (product.m + product.n) * product.k * 2 < shared_limit(arch, product.threads)
    assert not any(product.dtype in ("bfloat16", "tf32") for product in PRODUCTS if product.is_possible(75))
    clients = {(one.m, one.threads) for one in PRODUCTS if one.subject == "function" and one.dtype == "float32"}
    assert clients >= {(16, 64), (32, 128)}


@pytest.mark.slow
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("arch", [80, 90])
def test_each_product_asks_what_its_name_says(arch: int) -> None:
    """A loop without stages has the task of its function, too."""
    engine = require_hooks("the test").engine
    gpu: Any = SimpleNamespace(is_cpu=False, get_cuda_compile_arch=lambda: arch)
    for product in (one for one in PRODUCTS if one.is_possible(arch)):
        launch = replace(product.launch("cpu", 1), device=gpu)
        found = module.contributed_tasks(engine, launch, gpu)
        assert product.subject in [task.subject for task in found], product.text
        assert all(f"{product.m}x{product.n}x{product.k}" in task.title for task in found)
        assert all(len(task.configs) > 3 for task in found), product.text
        assert {"provider": "cublasdx"} not in [config for task in found for config in task.configs]


@pytest.mark.parametrize("multiprocessors", [2, 5, 46, 132])
def test_each_multiprocessor_has_as_many_blocks(multiprocessors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp, "zeros", lambda shape, dtype, device: SimpleNamespace(shape=shape))
    for product in PRODUCTS:
        launch = product.launch("cpu", multiprocessors)
        *grid, threads = launch.dim
        assert threads == product.threads
        assert math.prod(grid) % multiprocessors == 0
        assert 4 <= math.prod(grid) // multiprocessors <= 32
        a, b, c = (array.shape for array in launch.values)
        assert math.prod(c) == math.prod(grid) * product.m * product.n
        if product.subject == "loop":
            assert c == (grid[0] * product.m, grid[1] * product.n)
            assert a == (c[0], 64 * product.k)
            assert sorted(b) == sorted((c[1], 64 * product.k))


def test_the_list_has_solves_with_and_without_a_choice() -> None:
    assert len(set(SOLVES)) == len(SOLVES)
    for arch in (75, 86, 90, 120):
        found = {problem: solve_task(problem, arch) for problem in SOLVES}
        assert len({task.digest for task in found.values()}) == len(SOLVES)
        assert all(task.configs[0] == DEFAULTS["solve"] for task in found.values())
        forms = {problem.n: len(task.configs) for problem, task in found.items() if problem.dtype == "float32"}
        many = dict.fromkeys((4, 8, 16, *([128] if arch > 75 else [])), 2)
        assert {n: count for n, count in forms.items() if count > 1 and n != 192} == many
    assert len({found[problem].key("5" * 64, H200).digest for problem in SOLVES}) == len(SOLVES)


# ---- measuring


def test_a_file_has_all_timings_and_the_machine(machine: Machine, cache: Path, tmp_path: Path) -> None:
    """Neither stored records nor settings count."""
    path, steps = tmp_path / "gpu.records", list[Any]()
    contribute(tmp_path / "earlier.records", [GPU], 1.0)
    built = len(machine.built)
    with settings.override(main_loop="mma", policy="fast"):
        tuned, left = contribute(path, [GPU], 1.0, lambda *step: steps.append(step))
    assert len(machine.built) - built >= sum(len(item.task.configs) for item in tuned)
    assert not (cache / "tuning").exists()
    assert steps == [(number + 1, 3, product) for number, product in enumerate(LISTED)]
    assert (len(tuned), left, [item.pending for item in tuned]) == (3, 0, [0, 0, 0])
    found = read_contribution(path)
    assert {record.key.digest: record for record in found.records} == {
        item.record.key.digest: item.record for item in tuned
    }
    assert found.environment == H200
    assert found.facts["driver_version"] == "580.1"
    assert (found.facts["largest_clock_mhz"], found.facts["power_limit_w"]) == (1980.0, 700.0)
    assert (found.facts["least_clock_mhz"], found.facts["greatest_clock_mhz"]) == (1530.0, 1550.0)
    assert {"nvrtc", "nvjitlink", "python", "products"} <= found.facts.keys()


def test_a_driver_that_says_nothing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module._gpu_facts("GPU-0", {}) == {}
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '580.1, [N/A], [N/A], [N/A], 1200'\n")
    program.chmod(0o755)
    facts = module._gpu_facts("GPU-0", {"greatest_clock_mhz": 1500.0})
    assert (facts["driver_version"], facts["power_limit_w"]) == ("580.1", None)
    assert (facts["least_clock_mhz"], facts["greatest_clock_mhz"]) == (1200.0, 1500.0)


def test_an_interrupted_call_keeps_its_products_and_continues(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "gpu.records"

    def interrupt(number: int, total: int, product: Product) -> None:
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        contribute(path, [GPU], 1.0, interrupt)
    assert len(read_contribution(path).records) == 2
    built = len(machine.built)
    tuned, _ = contribute(path, [GPU], 1.0)
    assert [item.measured for item in tuned] == [0, 0, len(tuned[2].task.configs)]
    assert len(machine.built) - built == len(tuned[2].task.configs)
    assert read_contribution(path).facts["least_clock_mhz"] == 1500.0


def test_the_time_is_bounded(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def started(number: int, total: int, product: Product) -> None:
        now[0] += 40.0

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    tuned, left = contribute(tmp_path / "gpu.records", [GPU], 1.0, started)
    assert (len(tuned), left) == (2, 1)


def test_without_any_measurement_there_is_no_file(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(TuningError, match=r"could be built and measured on NVIDIA H200 in its share of 1e-09 minutes"):
        contribute(tmp_path / "gpu.records", [GPU], 1e-9)
    assert not (tmp_path / "gpu.records").exists()


def test_a_file_of_another_machine_or_of_other_subjects_is_not_continued(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.records"
    contribute(path, [GPU], 1.0)
    before = path.read_bytes()
    for change in ({"device": "NVIDIA L4"}, {"warp_tiles": "0.1"}, {"driver": "12.0"}):
        monkeypatch.setattr(in_kernels, "environment_of", lambda device, change=change: replace(H200, **change))
        with pytest.raises(RecordError, match="has measurements of NVIDIA H200") as caught:
            contribute(path, [GPU], 1.0)
        assert caught.value.remedy == "name a new file"
        assert path.read_bytes() == before
    RecordStore(tmp_path / "own").export(path, [Record(key(), (timing({"x": 1}),))])
    with pytest.raises(RecordError, match="is no contribution: it has records of other subjects than loop, function"):
        contribute(path, [GPU], 1.0)


# ---- the command


@pytest.fixture
def command(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setattr("warp_tiles.cli.tune.sharing_gpus", lambda names: [GPU])
    monkeypatch.setattr("warp_tiles.cli.tune.enable", lambda: None)
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(commands, ["tune", "contribute", *words])


def test_the_command_counts_what_it_measured(command: Callable[..., Result], machine: Machine) -> None:
    machine.times_us = {identity({"pipeline": "stages=4,in_flight=0"}): 80.0}
    result = command("gpu.records", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found == {"file": "gpu.records", "complete": 3, "faster": found["faster"], "unfinished": 0, "left": 0}
    assert found["faster"] > 0
    assert result.stderr == ""
    assert "3 tasks measured on NVIDIA H200" in command("gpu.records").stdout


def test_what_is_unfinished_is_named(
    command: Callable[..., Result], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def devices(gpus: Any, task: Any, configs: Any) -> Any:
        if task.subject == "function":
            raise TuningError("the argument A cannot be copied")
        return machine.devices(task, configs)

    monkeypatch.setattr(in_kernels, "search_devices", devices)
    result = command("gpu.records")
    assert result.exit_code == 0
    assert "is unfinished: the argument A cannot be copied" in result.stderr
    assert "1 tasks are unfinished, 0 of the list were not reached: the same command continues" in result.stderr


def test_a_wrong_call_measures_nothing(command: Callable[..., Result], machine: Machine) -> None:
    for words in (["gpu.records", "--minutes", "0"], ["gpu.records", "--minutes", "nan"], []):
        assert command(*words).exit_code == 2
    assert "there is no folder" in str(command("gone/gpu.records").exception)
    assert machine.built == []


# ---- files from elsewhere


@pytest.fixture
def record() -> Record:
    task = loop_task(loop())
    return Record(task.key("5" * 64, H200), tuple(task_timing(config, 100.0) for config in task.configs))


def written(path: Path, data: bytes, **info: Any) -> Path:
    """A file with these bytes as its records."""
    key = records_key(data, "")
    entry = Entry(data, Manifest.describe(key, data, {"records": 1, **info}))
    write_bundle(path, [(RECORDS, key.digest, pack(RECORDS, entry, ANY_TOOLCHAIN, None))])
    return path


def refusal(path: Path) -> str:
    with pytest.raises(RecordError) as caught:
        read_contribution(path)
    assert caught.value.remedy
    return caught.value.message


def test_a_file_that_is_valid(record: Record, tmp_path: Path) -> None:
    found = read_contribution(written(tmp_path / "f", encode_records([record]), driver_version="580.1"))
    assert found == Contribution({"driver_version": "580.1"}, (record,))


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("environment", {"arch": 61}, "at least 75 for a GPU that warp_tiles supports, is 61"),
        ("environment", {"arch": None}, "the architecture of NVIDIA H200, .* is None"),
        ("environment", {"device": ""}, "the name of the GPU is ''"),
        ("environment", {"device": "x" * 201}, "device, a printable text of at most 200 characters, is 'xx"),
        ("environment", {"device": "\x1b[31m"}, "device, a printable text"),
        ("environment", {"multiprocessors": 0}, "multiprocessors is 0"),
        ("key", {"subject": "matmul"}, "the subject, one of loop, function, solve, is 'matmul'"),
        ("key", {"source": "5" * 300}, "the digest of the sources"),
        ("key", {"values": ()}, "the number of values of a task is 0"),
        ("key", {"values": (("m", "x" * 300),)}, "m, a printable text"),
        ("key", {"values": (("m", 10**12),)}, "m is 1000000000000"),
        ("key", {"values": tuple((f"m{i}", i) for i in range(200))}, "the number of values of a task is 200"),
        ("timing", {"median_us": 0.0, "low_us": 0.0, "high_us": 0.0}, "increasing times below 1e\\+09 us, is"),
        ("timing", {"median_us": 90.0}, "low, median and high"),
        ("timing", {"high_us": 1e12}, "low, median and high"),
        ("timing", {"low_us": math.nan}, "low, median and high"),
        ("timing", {"status": "dropped", "median_us": math.nan}, "low, median and high"),
        ("timing", {"samples": 10**10}, "samples is 10000000000"),
        ("timing", {"soft": {"driver": "1.0"}}, "the driver and Warp of a timing is"),
        ("timing", {"status": "failed", "reason": "x" * 601}, "the length of a reason is 601"),
        ("timing", {"config": {"pipeline": "x" * 700}}, "the length of a configuration"),
    ],
)
def test_what_no_measurement_gives(
    record: Record, tmp_path: Path, part: str, change: dict[str, Any], reason: str
) -> None:
    if part == "timing":
        bad = replace(record, timings=(replace(record.timings[0], **change), *record.timings[1:]))
    else:
        change = {"environment": replace(H200, **change)} if part == "environment" else change
        key = replace(record.key, **change)
        timings = (replace(one, soft=key.environment.soft()) for one in record.timings)
        bad = replace(record, key=key, timings=tuple(timings))
    path = written(tmp_path / "f", encode_records([bad]))
    message = refusal(path)
    assert message.startswith(f"{path} is no contribution: ")
    assert re.search(reason, message)


def test_records_that_do_not_belong_together(record: Record, tmp_path: Path) -> None:
    other = replace(record, key=replace(record.key, environment=replace(H200, device="NVIDIA L4")))
    assert "is of another machine" in refusal(written(tmp_path / "f", encode_records([record, other])))
    assert "two records of one task" in refusal(written(tmp_path / "f", encode_records([record, record])))
    twice = replace(record, timings=(record.timings[0], record.timings[0]))
    assert "the number of different configurations is 1" in refusal(written(tmp_path / "f", encode_records([twice])))
    many = replace(record, timings=tuple(task_timing({"pipeline": str(n)}, 1.0) for n in range(101)))
    assert "the number of timings is 101" in refusal(written(tmp_path / "f", encode_records([many])))
    assert "it has no records" in refusal(written(tmp_path / "f", encode_records([])))
    write_bundle(tmp_path / "none", [])
    assert "it has 0 sets of records" in refusal(tmp_path / "none")


@pytest.mark.parametrize("fact", [{"a": [1]}, {"a": "x" * 201}, {"a": 1e300}, {"x" * 201: 1}, {"a": {"b": 1}}])
def test_a_fact_that_is_none(record: Record, tmp_path: Path, fact: dict[str, Any]) -> None:
    assert "is no contribution" in refusal(written(tmp_path / "f", encode_records([record]), **fact))


# ---- shipping


def contributed(*changes: tuple[int, float], unfinished: bool = False) -> Contribution:
    """A file in which these configurations of the tasks have these times, and the others 100 us."""
    found = []
    for number, task in enumerate(tasks().values()):
        times = {configuration: us for changed, (configuration, us) in enumerate(changes) if changed == number}
        timings = tuple(
            task_timing(config, times.get(position, 100.0), unfinished=unfinished and position > 0)
            for position, config in enumerate(task.configs)
        )
        found.append(Record(task.key("5" * 64, H200), timings))
    return Contribution({}, tuple(found))


def ship(found: Contribution, asked: dict[str, TuningTask]) -> dict[Path, int]:
    """Ships a file, as a process before this one."""
    written_files = ship_records.ship(found, asked)
    tuning_record.shipped_records.cache_clear()
    return written_files


def shipped_now(environment: Any = H200, **changes: Any) -> Any:
    """The configurations of a process without records of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warp_tiles.tuning.tasks.present_environments", lambda: (environment,) if environment else ())
        store = RecordStore(Path("nowhere"))
        return snapshot(store, None, replace(settings.current(), **changes))  # type: ignore[arg-type]


@pytest.mark.usefixtures("machine")
class TestShipping:
    def test_what_gains_ships_and_counts_on_its_gpu_alone(self, records: Path) -> None:
        asked = tasks()
        written_files = ship(contributed((2, 80.0), (1, 98.5), (3, 70.0)), asked)
        assert written_files == {
            records / "loop" / "NVIDIA-H200.json": 2,
            records / "function" / "NVIDIA-H200.json": 0,
            records / "solve" / "NVIDIA-H200.json": 0,
        }
        for environment in (H200, replace(H200, warp="1.20.0", driver="14.0", warp_tiles="9.9")):
            found = shipped_now(environment)
            assert len(found.shipped) == 2
            assert found.fingerprint
        first = next(iter(asked.values()))
        assert found.shipped[first.digest].winner().config == first.configs[2]
        assert len(found.shipped[first.digest].timings) == 2
        for other in (replace(H200, device="NVIDIA H100"), replace(H200, multiprocessors=66), None):
            assert shipped_now(other) is None
        assert len(shipped_now(None, target_gpu="NVIDIA H200").shipped) == 2

    def test_a_later_file_replaces_its_own_questions(self, records: Path) -> None:
        asked = tasks()
        ship(contributed((2, 80.0), (1, 90.0), (3, 70.0)), asked)
        later = contributed((1, 100.0), (1, 60.0))
        later = replace(later, records=later.records[:2])
        assert list(ship(later, asked).values()) == [1, 1, 0]
        found = shipped_now().shipped
        assert len(found) == 2
        assert found[list(asked)[1]].winner().median_us == 60.0

    def test_unfinished_timings_and_unknown_configurations_do_not_ship_and_keep_what_does(self, records: Path) -> None:
        asked, found = tasks(), contributed((2, 80.0))
        before = ship(found, asked)
        assert sum(before.values()) > 0
        with pytest.raises(RecordError, match="none of the 3 tasks"):
            ship(contributed((2, 80.0), unfinished=True), asked)
        with pytest.raises(RecordError, match="none of the 3 tasks is asked"):
            ship(found, {})
        assert all(path.exists() for path, count in before.items() if count)
        digest, task = next(iter(asked.items()))
        fewer = {**asked, digest: replace(task, configs=task.configs[:2])}
        assert list(ship(found, fewer).values()) == [0, 0, 0]

    def test_records_of_the_user_come_first(self, records: Path, tmp_path: Path, monkeypatch: Any) -> None:
        asked = tasks()
        ship(contributed((2, 80.0), (0, 100.0), (3, 70.0)), asked)
        monkeypatch.setattr("warp_tiles.tuning.tasks.source_of", lambda toolchain: "5" * 64)
        monkeypatch.setattr("warp_tiles.tuning.tasks.present_environments", lambda: (H200,))
        task = next(iter(asked.values()))
        store = RecordStore(tmp_path / "own")
        store.merge(task.key("5" * 64, H200), [task_timing(config, 100.0) for config in task.configs])
        found = snapshot(store, None, settings.current())  # type: ignore[arg-type]
        assert found is not None
        assert found._choice(task.digest, ("own",)) is None, "the user measured that the default is as fast"
        other = found._choice(list(asked)[2], ("own",))
        assert other is not None
        assert other[1] == "shipped record: 70.0 us against 100.0 us of the default"

    def test_the_script_ships_a_file_and_compares_where_choices_differ(
        self, machine: Machine, records: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        best = {"pipeline": "stages=4,in_flight=0"}
        file, out = tmp_path / "gpu.records", tmp_path / "compared.json"
        machine.times_us = {identity(best): 50.0}
        contribute(file, [GPU], 1.0)
        monkeypatch.setattr(wp, "get_device", lambda name: GPU)
        for us, status in ((80.0, 0), (110.0, 1)):
            machine.built.clear()
            machine.times_us = {identity(best): us}
            assert ship_records.main([str(file), "--compare", "--json", str(out)]) == status
            data = json.loads(out.read_text())
            assert set(machine.built) == {identity(best), identity(DEFAULTS["loop"])}
            assert data["summary"]["different"] == 2  # both loops have this configuration
            assert data["summary"]["least"] == pytest.approx(min(1.0, 100.0 / us), abs=0.001)
            assert 1.0 in [row["ratio"] for row in data["rows"]]
        with monkeypatch.context() as patch:  # without time, nothing is compared
            names = ("file", "package")
            patch.setattr(ship_records, "compared", lambda tuner, task, chosen, left: dict(zip(names, chosen)))
            assert ship_records.main([str(file), "--compare"]) == 1
        assert ship_records.main([str(file)]) == 0
        assert "NVIDIA-H200.json: 2 records" in capsys.readouterr().out


SMALL, ONLY = SolveProblem("solve", "float64", 6, 40, 2), SolveProblem("factor", "float32", 32, 9, 0)


@pytest.mark.parametrize("problem", [SMALL, replace(SMALL, function="factor", columns=0), ONLY])
def test_each_form_of_a_solve_is_launched_and_compared(problem: SolveProblem) -> None:
    """On the CPU, which has the forms of small matrices."""
    task = solve_task(problem, 90, [wp.get_device("cpu")])
    assert task.devices is not None
    with task.devices(task.configs) as (device,):
        calls = [device.build(config) for config in task.configs]
        assert [call.prepared.plan.config.form for call in calls] == ["block", "thread"][: len(task.configs)]
        for call in calls:
            call.prepare()
            assert min(device.clock.sample_us(call, 2)) > 0.0
            call.expected = call.expected + 0.1
            with pytest.raises(TuningError, match=r"its result differs by 0\.1"):
                call.prepare()


def test_solves_are_contributed_shipped_and_chosen(
    machine: Machine, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, gpu = tmp_path / "gpu.records", Gpu(90, 132, "NVIDIA H200")
    monkeypatch.setattr(module, "LISTED", (SMALL, ONLY))
    monkeypatch.setattr(
        measured_solves, "_devices", lambda problem, default, gpus, configs: machine.devices(problem, configs)
    )
    machine.times_us = {identity({"form": "thread"}): 50.0}
    tuned, left = contribute(path, [GPU], 1.0)
    assert [len(item.record.timings) for item in tuned] == [2, 1]
    assert ([item.kernel for item in tuned], left) == ([SMALL.describe(), ONLY.describe()], 0)
    machine.built.clear()
    contribute(path, [GPU], 1.0)
    assert machine.built == [], "the file is continued"
    found = read_contribution(path)
    asked = ship_records.tasks(require_hooks("the test").engine, ship_records.arch_of(found))
    other = tuple(replace(one, config={"form": "warp"}) for one in found.records[0].timings[1:])
    unknown = replace(found.records[0], timings=(found.records[0].timings[0], *other))
    with pytest.raises(RecordError, match="none of the 1 tasks"):
        ship_records.ship(replace(found, records=(unknown,)), asked)
    assert list(ship_records.ship(found, asked))[-1] == records / "solve" / "NVIDIA-H200.json"
    for cached in (tuning_record.shipped_records, prepared_solves.forms_for):
        cached.cache_clear()
    forms = prepared_solves.forms_for(gpu)
    assert forms == {SMALL.bucket: "thread"}
    assert (choose_solve(SMALL, gpu, forms).decided_by, choose_solve(SMALL, gpu).config.form) == ("record", "block")
    assert prepared_solves.forms_for(replace(gpu, multiprocessors=66)) == {}
    prepared_solves.forms_for.cache_clear()
    (row,) = [row for row in ship_records.compare(found, require_hooks("the test").engine, GPU, 1.0) if "ratio" in row]
    assert (row["file"], row["ratio"]) == ({"form": "thread"}, 1.0), "the package has the record now"


@pytest.mark.usefixtures("enabled")
def test_each_shipped_record_is_valid_now() -> None:
    """Of tasks that this version asks, with configurations that it knows."""
    for path in tuning_record.SHIPPED_RECORDS.glob("*/*.json"):
        records = decode_records(path.read_bytes())
        assert records
        subject = records[0].key.subject
        assert {tuning_record.shipped_file(subject, record.key.environment.device) for record in records} == {path}
        if subject != "matmul":  # tests/array_products/test_choice.py looks at those
            arch = int(records[0].key.environment.arch or 0)
            asked = ship_records.tasks(require_hooks("the test").engine, arch)
            assert len(ship_records.known(records, asked)) == len(records)
