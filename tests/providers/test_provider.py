"""The providers that compile: every input of a build is in its cache key, and the transcript names each difference."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.gemm.test_problem import BASE, CHANGED
from tests.solver import test_problem as solver
from warp_tiles.compile import sources
from warp_tiles.compile import toolchain as store_module
from warp_tiles.compile.compiler import Compiled
from warp_tiles.compile.find import Toolchain
from warp_tiles.compile.toolchain import ToolchainFacts
from warp_tiles.errors import ToolchainError, UnsupportedProblem
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.problem import DTYPE_BYTES
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.providers import own
from warp_tiles.providers.base import NvrtcProvider, Recipe, ScalarProvider
from warp_tiles.providers.cublasdx import CublasdxProvider, promised
from warp_tiles.providers.own import OwnProvider, SolverProvider
from warp_tiles.solver.problem import Config, Function, Problem, SolverConfig
from warp_tiles.solver.problem import choose as choose_lanes
from warp_tiles.store.key import CacheKey, KeyField, explain


@dataclass(frozen=True)
class Kind:
    """A provider, a problem that it builds with a configuration, and the same problem with one field changed.

    Attributes:
        source, header: Its device source, and a header that this includes, below ``kernels/``.
    """

    provider: type[NvrtcProvider[Any]]
    problem: Problem
    changed: Mapping[str, Problem]
    config: Config | None
    source: str
    header: str


FMA, LANES = TileConfig("fma", 8, 4, lanes_m=8, lanes_n=4), SolverConfig(4)
KINDS = {
    "own": Kind(OwnProvider, BASE, CHANGED, FMA, OwnProvider.header, "arch/mma.cuh"),
    "cublasdx": Kind(CublasdxProvider, BASE, CHANGED, None, "cublasdx/gemm.cuh", "cublasdx/tile.cuh"),
    "solver": Kind(SolverProvider, solver.BASE, solver.CHANGED, LANES, SolverProvider.header, "arch/lane.cuh"),
}
FLAGS = {name: kind.provider(ToolchainFacts(Path("unused"))).flags(90) for name, kind in KINDS.items()}
all_kinds = pytest.mark.parametrize("name", KINDS)


class FakeInstallation:
    """A small toolchain on disk: device sources, own headers, a library's header, and a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header = folder / "include/cublasdx.hpp"
        self.unused = folder / "include/unused.hpp"
        self.compiler = folder / "lib/libnvrtc.so.12"
        self.builtins = folder / "lib/libnvrtc-builtins.so.12.9"
        self.sources = {name: folder / "kernels" / kind.source for name, kind in KINDS.items()}
        self.own_headers = {name: folder / "kernels" / kind.header for name, kind in KINDS.items()}
        for path, text in {
            self.sources["own"]: '#include "arch/mma.cuh"\n',
            self.sources["solver"]: '#include "arch/lane.cuh"\n',
            self.sources["cublasdx"]: '#include <cublasdx.hpp>\n#include "tile.cuh"\n',
            **dict.fromkeys(self.own_headers.values(), "// instructions\n"),
            self.header: "// library\n",
            self.unused: "// unused\n",
            self.compiler: "compiler",
            self.builtins: "built-ins",
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def toolchain(self, warp_toolkit: Any = None) -> Toolchain:
        """The toolchain with the paths of this folder."""
        return Toolchain(self.compiler, (12, 9), None, None, (self.header.parent,), "25.6.0")

    def provider(self, name: str) -> NvrtcProvider[Any]:
        """A new provider, as in a new process."""
        return KINDS[name].provider(ToolchainFacts(self.folder / "memo"))

    def key(self, name: str, problem: Problem | None = None, config: Config | None = None) -> CacheKey:
        """The cache key of a recipe."""
        return self.provider(name).key_of(recipe(name, problem, config))


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeInstallation:
    installation = FakeInstallation(tmp_path)
    monkeypatch.setattr(store_module, "find_toolchain", installation.toolchain)
    monkeypatch.setattr(sources, "kernels_folder", lambda: tmp_path / "kernels")
    return installation


def recipe(name: str, problem: Problem | None = None, config: Config | None = None) -> Recipe:
    """A recipe of a provider. The default configuration fits every problem, while the chosen one would change."""
    problem = problem or KINDS[name].problem
    return Recipe("", problem, problem.symbol, config or KINDS[name].config)


def differing(before: Any, after: Any) -> set[str]:
    assert before.digest != after.digest
    return {difference.label for difference in explain(before, after)}


LABELS = {
    "arch": {"problem.arch", "flags"},
    "function": {"problem.solver"},
    "arrangement": {"problem.arrangement"},
    "leading_dimension": {"problem.leading_dimensions"},
    "alignment": {"problem.alignments"},
}


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, kind in KINDS.items() for field in kind.changed])
def test_every_field_of_the_problem_is_in_the_key(name: str, field: str, installation: FakeInstallation) -> None:
    labels = differing(installation.key(name), installation.key(name, KINDS[name].changed[field]))
    operand, _, of_operand = field.rpartition(".")
    expected = {f"problem.{operand}_dtype"} if of_operand == "dtype" and operand else {f"problem.{of_operand}"}
    assert labels == LABELS.get(of_operand, expected) | {"translation_unit"}


@pytest.mark.parametrize(
    ("name", "field"),
    [(name, item.name) for name, kind in KINDS.items() if kind.config is not None for item in fields(kind.config)],
)
def test_every_field_of_the_configuration_is_in_the_key(
    name: str, field: str, installation: FakeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "register_accumulators", lambda problem, symbol, config: "")  # it need not be buildable
    config = KINDS[name].config
    value = getattr(config, field)
    other = {str: "mma_m16n8k8", bool: not value, int: 2 * value}[type(value)]
    changed = replace(config, **{field: other})  # type: ignore[type-var]
    found = differing(installation.key(name), installation.key(name, config=changed))
    assert found == {f"tile_config.{field}", "translation_unit"}


def test_recipes_have_the_chosen_configuration(installation: FakeInstallation) -> None:
    assert [found.tile_config for found in installation.provider("own").recipes(BASE)] == [choose(BASE)]
    for function in get_args(Function):
        problem = solver.problem(function)
        (found,) = installation.provider("solver").recipes(problem)
        assert (found.problem, found.symbol, found.tile_config) == (problem, problem.symbol, choose_lanes(problem))


@pytest.mark.parametrize("name", ["own", "solver"])
@pytest.mark.parametrize("changes", [{"threads": 48}, {"arch": 70}], ids=str)
def test_a_problem_that_cannot_be_built_has_no_recipe(
    name: str, changes: dict[str, int], installation: FakeInstallation
) -> None:
    ((field, value),) = changes.items()
    with pytest.raises(UnsupportedProblem, match=f"own cannot serve {field}={value}: "):
        installation.provider(name).recipes(replace(KINDS[name].problem, **changes))  # type: ignore[arg-type]


def test_keys_of_providers_differ(installation: FakeInstallation) -> None:
    assert {"provider", "source"} < differing(installation.key("own"), installation.key("cublasdx"))


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, flags in FLAGS.items() for place in range(len(flags) + 1)]
)
def test_every_flag_is_in_the_key(
    name: str, place: int, installation: FakeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, flags = installation.key(name), FLAGS[name]
    changed = (*flags[:place], "--use_fast_math", *flags[place + 1 :])
    monkeypatch.setattr(KINDS[name].provider, "flags", lambda provider, arch: changed)
    assert differing(before, installation.key(name)) == {"flags"}


@pytest.mark.parametrize(
    ("name", "part", "label"),
    [
        *((name, part, "source") for name in KINDS for part in ("source", "own_header")),
        *((name, part, "compiler") for name in KINDS for part in ("compiler", "builtins")),
        ("cublasdx", "header", "source"),
    ],
)
def test_every_file_of_the_toolchain_is_in_the_key(
    name: str, part: str, label: str, installation: FakeInstallation
) -> None:
    before = installation.key(name)
    own = {"source": installation.sources[name], "own_header": installation.own_headers[name]}
    path: Path = own[part] if part in own else getattr(installation, part)
    path.write_text(path.read_text() + " ")
    assert differing(before, installation.key(name)) == {label}


@all_kinds
def test_a_header_that_is_not_included_is_not_in_the_key(name: str, installation: FakeInstallation) -> None:
    before = installation.key(name, replace(KINDS[name].problem))
    others = [path for other, path in installation.sources.items() if other != name]
    for path in (installation.unused, *others, *([] if name == "cublasdx" else [installation.header])):
        path.write_text("// changed\n")
    assert installation.key(name) == before


@all_kinds
def test_the_path_of_the_toolchain_is_not_in_the_key(
    name: str, installation: FakeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = installation.key(name)
    moved = FakeInstallation(installation.folder / "elsewhere")
    monkeypatch.setattr(store_module, "find_toolchain", moved.toolchain)
    monkeypatch.setattr(sources, "kernels_folder", lambda: moved.folder / "kernels")
    assert moved.key(name) == before  # so a bundle of one machine hits on another


@all_kinds
def test_the_schema_of_the_source_is_in_the_key(
    name: str, installation: FakeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = installation.key(name)
    monkeypatch.setattr(KINDS[name].provider, "schema", 99)
    assert differing(before, installation.key(name)) == {"provider"}


@all_kinds
def test_the_compile_request_agrees_with_the_key(name: str, installation: FakeInstallation) -> None:
    provider = installation.provider(name)
    request = provider.request(recipe(name))
    found = {field.label: field for field in installation.key(name).fields}
    assert found["translation_unit"] == KeyField.of("translation_unit", request.source)
    folders = request.include_dirs  # paths are not in the key; "source" has the content of the headers
    if name == "cublasdx":
        assert folders == (str(installation.sources[name].parent), str(installation.header.parent))
    else:
        assert folders == (str(installation.folder / "kernels"),), "only own headers"
    assert found["flags"] == KeyField.of("flags", request.flags)
    assert request.flags[0] == "-arch=sm_90"
    problem = KINDS[name].problem
    assert request.name == f"{problem.symbol}_{'cublasdx' if name == 'cublasdx' else 'own'}.cu"
    assert problem.describe() in request.subject


def test_without_headers_mma_builds_and_cublasdx_raises(
    installation: FakeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = installation.key("own")
    found = replace(installation.toolchain(), include_dirs=(), missing_headers=("no cublasdx.hpp", "pip install it"))
    monkeypatch.setattr(store_module, "find_toolchain", lambda warp_toolkit: found)
    shutil.rmtree(installation.folder / "memo")
    assert installation.key("own") == before
    assert installation.provider("own").request(recipe("own")).source
    cublasdx = installation.provider("cublasdx")
    for function in (cublasdx.key_of, cublasdx.request):
        with pytest.raises(ToolchainError, match=r"no cublasdx\.hpp") as caught:
            function(recipe("cublasdx"))
        assert caught.value.remedy == "pip install it"


@pytest.mark.parametrize("name", ["own", "solver"])
def test_the_cache_stores_the_configuration(name: str, installation: FakeInstallation) -> None:
    kind = KINDS[name]
    info = installation.provider(name).manifest(recipe(name), Compiled(b"", 1.25, "NVRTC 12.9"))
    assert kind.config is not None
    facts = {"provider": "own", "build_seconds": 1.25, "compiler": "NVRTC 12.9"}
    of_kind = {"symbol": kind.problem.symbol, "problem": kind.problem.to_json(), "tile_config": kind.config.to_json()}
    assert info == facts | of_kind


def test_the_last_recipe_of_cublasdx_promises_no_alignment(installation: FakeInstallation) -> None:
    half = replace(BASE, c=replace(BASE.c, dtype="float16", alignment=16))
    first, second = installation.provider("cublasdx").recipes(half)
    assert (first.problem, first.symbol) == (promised(half), promised(half).symbol)
    assert (second.problem, second.symbol) == (half.without_alignment(), half.without_alignment().symbol)
    (only,) = installation.provider("cublasdx").recipes(CHANGED["a.leading_dimension"])
    assert set(only.problem.alignments) <= set(DTYPE_BYTES.values())


def test_the_source_of_solvers_includes_every_solver_header(tmp_path: Path) -> None:
    folder = sources.kernels_folder().resolve()
    store = ToolchainFacts(tmp_path)
    closure = store.closure(SolverProvider(store).source()).values()
    found = {Path(path).resolve().relative_to(folder) for path in closure}
    assert {path.relative_to(folder) for path in (folder / "solver").glob("*.cuh")} <= found
    assert {path.parts[0] for path in found} == {"solver", "arch"}


def test_the_scalar_path_serves_all_but_results_of_bfloat16() -> None:
    scalar = ScalarProvider()
    for problem in (BASE, solver.BASE):
        (recipe,) = scalar.recipes(problem)
        built = scalar.build(recipe, None)  # type: ignore[arg-type]
        assert (recipe.problem, built.payload, built.hit) == (problem, b"", False)
    with pytest.raises(UnsupportedProblem, match="would accumulate in bfloat16"):
        scalar.recipes(replace(BASE, c=replace(BASE.c, dtype="bfloat16")))
