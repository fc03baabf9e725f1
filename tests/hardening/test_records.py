"""Tuning records that somebody else wrote: sizes, numbers, texts, and the providers that they name."""

import hashlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.hardening.memory import kilobytes_of_refusal
from tests.nightly import some
from tests.tuning.tuning_records import ENVIRONMENT, timing
from tests.tuning.tuning_records import key as record_key
from warp_tiles import settings
from warp_tiles.cli import commands
from warp_tiles.errors import RecordError
from warp_tiles.gemm.problem import GemmProblem, Operand
from warp_tiles.store.documents import dump_json
from warp_tiles.tuning.record import DEFAULTS, Record, TuningKey, decode_record, encode_record, problem_digest
from warp_tiles.tuning.store import RecordStore
from warp_tiles.tuning.tasks import FUNCTION, Measurements, values_of


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    RecordStore(tmp_path / "shipped").merge(record_key("gemm"), [timing({"x": 1})])
    return tmp_path / "shipped"


def file_of(folder: Path) -> Path:
    (path,) = folder.glob("*/*.json")
    return path


@pytest.mark.parametrize("place", ["samples", "shared_bytes", "median_us", "high_us", "x", "multiprocessors"])
@pytest.mark.parametrize("number", ["1" + "0" * 400, "1" + "0" * 5000, "1e400", "-1" + "0" * 30])
def test_a_number_that_nothing_can_bear_is_damage(shipped: Path, place: str, number: str) -> None:
    path = file_of(shipped)
    data: dict[str, Any] = json.loads(path.read_text())
    where = {"x": data["timings"][0]["config"], "multiprocessors": data["key"]["environment"]}.get(place)
    (data["timings"][0] if where is None else where)[place] = "NUMBER"
    del data["sha256"]
    body = dump_json(data).replace(b'"NUMBER"', number.encode())
    path.write_bytes(b'{"sha256":"%s",%s' % (hashlib.sha256(body).hexdigest().encode(), body[1:]))
    with pytest.warns(RuntimeWarning, match="is damaged and not used"):
        assert RecordStore(shipped.parent / "own", [shipped]).load(record_key("gemm")) is None


def test_one_bad_file_does_not_disable_a_folder(shipped: Path) -> None:
    loop = file_of(shipped).with_name(f"{'0' * 64}.json")
    loop.symlink_to(loop)
    store = RecordStore(shipped.parent / "own", [shipped])
    with pytest.warns(RuntimeWarning, match="is not used: Too many levels of symbolic links"):
        assert len(store.records()) == 1


@pytest.mark.parametrize("size", some([32 << 20, 8 << 20], 1, "slow"))
def test_a_damaged_export_takes_bounded_memory(tmp_path: Path, size: int) -> None:
    """Objects take the most memory for the bytes of their JSON."""
    path, item = tmp_path / "records.json", b'{"":{}},'
    path.write_bytes(b'{"schema":1,"records":[' + item * ((size - 100) // len(item)) + b"{}]}")
    before = f"from warp_tiles.tuning.store import RecordStore\nstore = RecordStore(Path({str(tmp_path / 'own')!r}))"
    call = f"store.import_bytes(Path({str(path)!r}).read_bytes(), 'records')"
    assert kilobytes_of_refusal(before, call, RecordError) < 300_000


def test_neither_texts_of_a_record_nor_names_of_files_can_drive_a_terminal(tmp_path: Path) -> None:
    escape = "\x1b]0;title\x07"
    RecordStore(tmp_path / "tuning").merge(record_key(f"kernel:{escape}"), [timing({"x": escape})])
    damaged = tmp_path / "shipped" / f"gemm{escape}" / f"{'0' * 64}.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("damaged")
    digest = record_key(f"kernel:{escape}").digest
    with settings.override(cache_dir=tmp_path, record_paths=[tmp_path / "shipped"]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", re.escape(r"warp_tiles: ") + ".*" + re.escape(r"gemm\x1b]0;title\x07"))
        for words in (("list",), ("show", digest[:12])):
            done = CliRunner().invoke(commands, ["tune", *words], catch_exceptions=False)
            assert "title" in done.stdout
            assert "\x1b" not in done.stdout


@pytest.mark.parametrize("provider", ["libmathdx", "scalar", "unknown", None])
def test_a_record_cannot_choose_a_provider_that_no_search_measures(provider: object) -> None:
    row = Operand("float32", "row_major", 32, 16)
    wanted = GemmProblem(32, 32, 32, row, row, row, "default", 128, 90)
    key = TuningKey(FUNCTION, values_of(wanted), "5" * 64, ENVIRONMENT)
    record = Record(key, (timing(DEFAULTS[FUNCTION]), timing({"provider": provider, "tile_config": None}, 1.0)))
    tuned = Measurements({problem_digest(FUNCTION, key.values): record})
    assert tuned.best(wanted, ("own", "cublasdx", "libmathdx", "scalar")) is None


def test_a_record_that_is_nested_to_any_depth_is_damage() -> None:
    record = json.loads(encode_record(Record(record_key("gemm"), (timing({"x": 1}),))))
    text = json.dumps({**record, "extra": "NESTED"})
    for depth in range(900, 1000):
        with pytest.raises(ValueError):  # noqa: PT011  any message will do
            decode_record(text.replace('"NESTED"', "[" * depth + "]" * depth).encode(), record_key("gemm").digest)
