"""Builds of one module: the choice of the linker, and the changes of the source after a fallback."""

import os
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import FakeFacts
from tests.codegen.modules import BIG, SMALL, forms, generated, names_of
from warp_tiles import settings
from warp_tiles.build.context import BuildContext, Resources
from warp_tiles.build.engine import Engine, with_function
from warp_tiles.build.log import Artifact, ModuleLog
from warp_tiles.build.module_build import ModuleBuild, start_module
from warp_tiles.build.warp_module import WarpOutput
from warp_tiles.codegen.trace import FunctionUse, Session
from warp_tiles.compile.compiler import Compiled, CompileRequest, LinkRequest
from warp_tiles.compile.find import Toolchain
from warp_tiles.compile.module import BuildCall, ModuleSource
from warp_tiles.errors import BuildError, LinkError, WarpTilesError
from warp_tiles.gemm.problem import GemmProblem, Role
from warp_tiles.plan.planner import plan_module
from warp_tiles.plan.planning import PlannedFunction

TOOLCHAIN = Toolchain(Path("/lib/libnvrtc.so"), (12, 9), Path("/lib/libnvJitLink.so"), (12, 9), (), "25.6.0")


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, BaseException):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


def artifact(problem: GemmProblem, provider: str = "cublasdx", symbol: str | None = None) -> Artifact:
    name = problem.symbol if symbol is None else symbol
    payload = b"" if provider == "scalar" else f"LTO-IR of {name}".encode()
    return Artifact(problem, name if payload else "", payload, provider, "", False, 0.1)


@dataclass
class FakePool:
    """Compiles and links at once."""

    requests: list[CompileRequest | LinkRequest] = field(default_factory=list)
    fail: WarpTilesError | None = None

    def submit(self, request: CompileRequest | LinkRequest, **_: object) -> Future[Compiled]:
        self.requests.append(request)
        if isinstance(request, LinkRequest):
            return done(self.fail or Compiled(b"the cubin", 0.1, ""))
        return done(Compiled(b"module LTO-IR", 0.1, ""))

    @property
    def compiled(self) -> list[CompileRequest]:
        return [request for request in self.requests if isinstance(request, CompileRequest)]

    @property
    def linked(self) -> list[LinkRequest]:
        return [request for request in self.requests if isinstance(request, LinkRequest)]


def planned(problem: PlannedFunction) -> PlannedFunction:
    """What is planned by default: cuBLASDx, whose functions have the names of :func:`artifact`."""
    return with_function(replace(problem, provider="cublasdx", symbol=problem.problem.symbol))


class Case:
    """A module with one site on disk, as Warp writes it before build_cuda()."""

    def __init__(self, folder: Path, *, block_dim: int = 128, both_ways: bool = False) -> None:
        self.pool, facts = FakePool(), FakeFacts()
        facts.found = TOOLCHAIN
        self.engine: Any = Engine()
        self.engine.resources.pool = lambda *_: self.pool
        self.engine.resources.once = lambda make, kind, *_: facts if kind == "facts" else make()
        self.engine.start = self._start
        self.results: dict[GemmProblem, Artifact | WarpTilesError] = {}
        self.started: list[GemmProblem] = []
        self.session = Session("module", 90, block_dim)
        self.session.add("tile_matmul", "k", BIG)
        self.called = frozenset({0} if both_ways else ())
        self.lines: tuple[str, ...] = ()  # lines of the source; if there are none, every site is called
        self.folder = folder
        self.warp_built: list[list[bytes]] = []
        self.warp_fails = 0  # times

    def _start(self, problems: Any, *_: object) -> dict[GemmProblem, Future[Artifact]]:
        self.started += list(problems)
        return {problem: done(self.results.get(problem, artifact(problem))) for problem in self.started}

    def build(
        self,
        output: str = "module.cubin",
        *,
        warp_inputs: tuple[bytes, ...] = (),
        opted_out: bool = False,
        **keywords: Any,
    ) -> ModuleLog:
        self.session.settings = settings.current()
        if opted_out:
            self.session.settings = self.session.settings.opted_out(products=True)
        made = generated(self.session, *self.lines, called=self.called)
        made = replace(made, kernels=("k",), uses=(FunctionUse("k", "k", False, ""),))
        plan = plan_module(made, planned)
        build = ModuleBuild(self.engine, made, plan)
        self.path, self.output = self.folder / "module.cu", self.folder / output
        self.path.write_text(build.text)
        self.intended = build.text
        build.start()

        def warp_build(inputs: list[bytes]) -> None:
            self.warp_built.append(inputs)
            if len(self.warp_built) <= self.warp_fails:
                raise Exception(f"build {len(self.warp_built)} failed")
            self.text_for_warp = self.path.read_text()
            self.output.write_bytes(b"Warp's cubin")

        module = ModuleSource(self.path.name, 90, self.output.suffix[1:], "/warp/native", keywords)
        return build.finish(BuildCall(self.path, self.output, module, warp_inputs, warp_build))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.fixture(autouse=True)
def automatic() -> Any:
    with settings.override(linker="auto", provider="auto"):
        yield


# ---- linked by warp_tiles


def test_a_module_is_compiled_and_linked_by_warp_tiles(case: Case) -> None:
    (case.folder / "module.cubin").write_bytes(b"an older cubin")
    record = case.build()
    assert (record.linker, record.linker_reason) == ("warp_tiles", "")
    assert case.warp_built == []
    assert case.output.read_bytes() == b"the cubin"
    assert sorted(os.listdir(case.folder)) == ["module.cu", "module.cubin"]
    assert record.output_bytes == len(b"the cubin")
    assert case.started == [BIG[Role.FORWARD]]
    (compiled,), (linked,) = case.pool.compiled, case.pool.linked
    assert compiled.source == case.intended
    assert compiled.name == "module.cu"
    assert compiled.include_dirs == ("/warp/native",)
    assert linked.inputs == (b"module LTO-IR", f"LTO-IR of {BIG[Role.FORWARD].symbol}".encode())
    assert (linked.arch, linked.output) == ("sm_90", "cubin")
    assert case.engine.log.modules == (record,)


@pytest.mark.parametrize(
    ("block_dim", "output", "arch", "registers"),
    [
        (128, "cubin", "sm_90a", None),
        (512, "cubin", "sm_90a", 128),
        (1024, "cubin", "sm_90a", 64),
        (1024, "ptx", "compute_90a", None),
    ],
)
def test_warps_options_and_a_limit_of_registers_reach_the_compiler(
    tmp_path: Path, block_dim: int, output: str, arch: str, registers: int | None
) -> None:
    case = Case(tmp_path, block_dim=block_dim)
    case.build(f"module.{output}", fast_math=True, arch_suffix="a")
    assert {"--use_fast_math", f"-arch={arch}"} <= set(case.pool.compiled[0].flags)
    (linked,) = case.pool.linked
    assert (linked.arch, linked.output, linked.max_registers) == (arch, output, registers)


def test_inputs_are_sorted_by_symbol_and_unique(tmp_path: Path) -> None:
    case = Case(tmp_path, both_ways=True)
    case.session.add("tile_matmul", "k", SMALL)
    # two functions with one weaker function
    case.results = {BIG[Role.FORWARD]: artifact(BIG[Role.FORWARD], symbol="shared_function")}
    case.results[SMALL[Role.FORWARD]] = artifact(SMALL[Role.FORWARD], symbol="shared_function")
    case.build()
    payloads = case.pool.linked[0].inputs[1:]
    assert list(payloads) == sorted(set(payloads), key=lambda data: data.decode())
    assert payloads.count(b"LTO-IR of shared_function") == 1
    assert len(payloads) == 3


# ---- fallbacks


def test_a_weaker_function_rewrites_the_source_and_compiles_it_again(case: Case) -> None:
    weaker = BIG[Role.FORWARD].without_alignment().symbol
    case.results = {BIG[Role.FORWARD]: artifact(BIG[Role.FORWARD], symbol=weaker)}
    record = case.build()
    assert record.linker == "warp_tiles"
    first, second = case.pool.compiled
    assert first.source == case.intended
    assert names_of(second.source, 0) == [weaker] * 3
    assert BIG[Role.FORWARD].symbol not in second.source
    assert case.path.read_text() == second.source
    assert len(case.pool.linked) == 1


@pytest.mark.parametrize(
    ("provider", "symbol", "name", "reason"),
    [("scalar", None, "0", "no function was built"), ("libmathdx", "dot_8_12_4", "dot_8_12_4", "libmathdx")],
)
def test_another_product_rewrites_the_source_for_warp(
    case: Case, provider: str, symbol: str | None, name: str, reason: str
) -> None:
    case.results = {BIG[Role.FORWARD]: artifact(BIG[Role.FORWARD], provider, symbol)}
    record = case.build()
    assert case.warp_built == [[f"LTO-IR of {symbol}".encode()] if symbol else []]
    assert names_of(case.text_for_warp, 0) == [name] * 3
    assert "wt_gemm" not in case.text_for_warp
    assert record.linker == "warp"
    assert reason in record.linker_reason
    assert case.output.read_bytes() == b"Warp's cubin"
    assert case.pool.linked == []


def test_a_scalar_product_beside_a_built_one_is_linked_by_warp_tiles(case: Case) -> None:
    case.session.add("tile_matmul", "k", SMALL)
    case.results = {BIG[Role.FORWARD]: artifact(BIG[Role.FORWARD], "scalar")}
    record = case.build()
    assert record.linker == "warp_tiles"
    text = case.pool.compiled[-1].source
    assert names_of(text, 0) == ["0", "0", "0"]
    assert names_of(text, 1) == [SMALL[Role.FORWARD].symbol] * 3


def test_a_product_left_to_warp_stays_there_if_another_could_not_be_built(case: Case) -> None:
    gains, slower = forms(8, 8, 16), forms(16, 16, 4)  # of modules that opt out of MathDx
    case.session = Session("module", 90, 128)
    case.session.add("tile_matmul", "k", gains)
    case.session.add("tile_matmul", "k", slower)
    case.results = {gains[Role.FORWARD]: artifact(gains[Role.FORWARD], "scalar")}
    record = case.build(opted_out=True)
    assert case.started == [gains[Role.FORWARD]]
    assert names_of(case.text_for_warp, 0) == names_of(case.text_for_warp, 1) == ["0"] * 3
    assert "scalar_path_is_faster" in {function.code for function in record.plan.functions}


def test_a_cholesky_adjoint_has_no_scalar_path(tmp_path: Path) -> None:
    case = Case(tmp_path, both_ways=True)
    case.session = Session("module", 90, 128)
    site = case.session.add("tile_cholesky", "k", {Role.ADJOINT_A: BIG[Role.ADJOINT_A]})
    case.lines = (f"    wp::adj_tile_cholesky({site.placeholder(Role.ADJOINT_A)}, var_0);",)
    case.results = {BIG[Role.ADJOINT_A]: artifact(BIG[Role.ADJOINT_A], "scalar")}
    with pytest.raises(BuildError, match="tile_cholesky needs") as caught:
        case.build()
    assert "enable_backward=False" in caught.value.remedy


def test_a_bfloat16_gradient_keeps_its_call_off_the_scalar_path(tmp_path: Path) -> None:
    # Warp's templates take the scalar path for a whole call, and there gradients would accumulate in bfloat16
    narrow = forms(8, 12, 4, "bfloat16")

    def case_of(both_ways: bool) -> Case:
        case = Case(tmp_path, both_ways=both_ways)
        case.session = Session("module", 90, 128)
        case.session.add("tile_matmul", "k", narrow, bfloat16_operands=True)
        case.results = {narrow[Role.FORWARD]: artifact(narrow[Role.FORWARD], "scalar")}
        return case

    with pytest.raises(BuildError, match=r"in 'k' 8x12x4 bfloat16.*would accumulate in bfloat16"):
        case_of(both_ways=True).build()
    assert case_of(both_ways=False).build().linker == "warp", "only the forward product may take it"


@pytest.mark.parametrize("depth", [1, 10_000])
def test_a_start_list_lacks_a_module_whose_entry_has_odd_parts(case: Case, depth: int) -> None:
    parts: list[Any] = []
    for _ in range(depth):
        parts = [parts]
    plan = case.build().plan
    output = WarpOutput(b"binary", b"source", ".sm_90.cubin", {}, linked={"functions": parts})
    assert start_module(plan, ModuleSource("m.cu", 90, "cubin", "/warp/native", {}), output) is None


# ---- linked by Warp


@pytest.mark.parametrize(
    ("keywords", "linker", "word"),
    [
        ({"config": "debug"}, "auto", "debug"),
        ({"fatbins": [b"x"]}, "auto", "solver or FFT"),
        ({"sparkle": 1}, "auto", "sparkle"),
        ({"compile_time_trace": True}, "auto", "trace"),
        ({"llvm_cuda": True}, "auto", "LLVM"),
        ({"warp_inputs": (b"cholesky",)}, "auto", "solver"),
        ({}, "warp", "the setting linker (override()) is 'warp'"),
    ],
)
def test_warp_links_what_warp_tiles_cannot(case: Case, keywords: dict[str, Any], linker: str, word: str) -> None:
    with settings.override(linker=linker):
        record = case.build(**keywords)
    assert record.linker == "warp"
    assert word in record.linker_reason
    own = [f"LTO-IR of {BIG[Role.FORWARD].symbol}".encode()]
    assert case.warp_built == [[*keywords.get("warp_inputs", ()), *own]]
    assert case.pool.requests == []


def test_a_failed_link_is_left_to_warp_with_one_warning(case: Case) -> None:
    case.pool.fail = LinkError("module could not be linked", log="undefined symbol: nothing")
    with pytest.warns(RuntimeWarning, match="Warp links module module itself") as caught:
        record = case.build()
    assert len(caught) == 1
    assert "undefined symbol: nothing" in str(caught[0].message)
    assert record.linker == "warp"
    assert record.linker_reason == "module could not be linked"
    assert len(case.warp_built) == 1


@pytest.mark.parametrize(("fails", "functions", "instead"), [(1, 1, "without async copies"), (2, 0, "scalar products")])
def test_a_module_that_warp_cannot_link_is_built_with_less(
    case: Case, fails: int, functions: int, instead: str
) -> None:
    case.warp_fails = fails
    with settings.override(linker="warp"), pytest.warns(RuntimeWarning, match=instead) as caught:
        record = case.build()
    (text,) = (str(warning.message) for warning in caught)
    assert "build 1 failed" in text
    assert "async_copies" in text
    assert len(case.warp_built) == fails + 1
    assert len(case.warp_built[-1]) == functions
    assert "wt_module" in case.intended
    assert "wt_module" not in case.text_for_warp
    assert (names_of(case.text_for_warp, 0) == ["0"] * 3) == (functions == 0)
    assert {v.provider for v in record.plan.needed} == {"cublasdx" if functions else "scalar"}


def test_a_product_that_cannot_be_built_or_a_module_that_warp_refuses_fails(case: Case) -> None:
    case.warp_fails = 3
    with settings.override(linker="warp"), pytest.raises(Exception, match="build 1 failed"):
        case.build()
    case.warp_built.clear()
    case.results = {BIG[Role.FORWARD]: BuildError("no")}
    with pytest.raises(BuildError, match="no"):
        case.build()
    assert case.warp_built == []
    assert not case.output.exists()
    assert case.engine.log.modules == ()


@pytest.mark.parametrize(
    ("provider", "failure", "keywords", "message"),
    [
        ("cublasdx", None, {"config": "debug"}, "it is a debug build: set the module option mode to 'release'"),
        ("libmathdx", None, {}, "libmathdx"),
        ("cublasdx", LinkError("module could not be linked", log="undefined symbol"), {}, "could not be linked"),
    ],
)
def test_an_own_linker_raises_where_warp_would_have_to_link(
    case: Case, provider: str, failure: LinkError | None, keywords: dict[str, Any], message: str
) -> None:
    case.results = {BIG[Role.FORWARD]: artifact(BIG[Role.FORWARD], provider, "dot_8_12_4")}
    case.pool.fail = failure
    with settings.override(linker="own"), pytest.raises(LinkError, match=message) as caught:
        case.build(**keywords)
    assert failure or "linker" in caught.value.remedy
    assert case.warp_built == []


@pytest.mark.parametrize(
    ("output", "linker", "toolkit", "is_unreadable"),
    [
        ("ptx", (13, 5), (13, 4), True),
        ("cubin", (13, 5), (13, 4), False),
        ("ptx", (13, 4), (13, 4), False),
        ("ptx", (13, 5), None, False),
        ("ptx", None, (13, 4), False),
    ],
)
def test_warp_links_ptx_that_its_driver_may_not_read(
    output: str, linker: Any, toolkit: Any, is_unreadable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = BuildContext(Resources(toolkit), settings.current())
    found = replace(TOOLCHAIN, nvjitlink_version=linker)
    monkeypatch.setattr(BuildContext, "try_toolchain", lambda self: found)
    reason = context.unreadable_ptx_reason(output)
    assert ("PTX of nvJitLink 13.5" in reason and "cuda_output to 'cubin'" in reason) is is_unreadable
