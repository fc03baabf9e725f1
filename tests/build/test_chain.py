"""The chain of providers: their order, refused functions, what follows a failed build, and the messages."""

import threading
import warnings
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import (
    ALIGNED,
    TOOLCHAIN,
    UNALIGNED,
    Bench,
    annotated,
    cublasdx,
    failing_libmathdx,
    libmathdx,
    own,
    plan_of,
    problem_of,
)
from warp_tiles import settings
from warp_tiles.build.context import BuildContext
from warp_tiles.build.engine import Chain, Engine
from warp_tiles.codegen.trace import Session
from warp_tiles.errors import BuildError, LockedError, ToolchainError, UnsupportedProblem, WarpTilesError, WorkerError
from warp_tiles.gemm.problem import PRODUCT_ROLES, GemmProblem, Operand, Role
from warp_tiles.plan.planner import resolve
from warp_tiles.plan.planning import ModulePlan, PlannedFunction
from warp_tiles.providers.cublasdx import LIBMATHDX
from warp_tiles.providers.own import IN_SOURCE, OwnProvider, SolverProvider
from warp_tiles.settings import PROVIDER_ORDER, Settings, current
from warp_tiles.solver.problem import Problem, SolverProblem

ODD = replace(ALIGNED, threads=48)
FEW = replace(ALIGNED, threads=16)
OLD = replace(ALIGNED, arch=70)
B = replace(ALIGNED.c, dtype="bfloat16")
NARROW = replace(ALIGNED, c=B)
FACTOR = SolverProblem("cholesky", 8, 8, (Operand("float32", "row_major", 8, 16),) * 2, False, 32, 90)
AUTO = Settings()


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """A Warp with libmathdx."""
    bench.engine.use_libmathdx(libmathdx)
    return bench


def in_role(problem: GemmProblem, role: Role = Role.FORWARD) -> ModulePlan:
    """A module that needs one function in a role."""
    session = Session("module", problem.arch, problem.threads)
    site = session.add("tile_matmul", "k", {Role.FORWARD: ALIGNED, role: problem})
    return resolve(session, () if role is Role.FORWARD else {site.index}, ["k"], [])


def planned(bench: Bench, problem: GemmProblem, role: Role = Role.FORWARD) -> PlannedFunction:
    """The function in its plan."""
    found = annotated(bench.engine, in_role(problem, role))
    return next(item for item in found.needed if item.problem == problem and item.role is role)


# ---- the order


def names_of(chain: Chain, problem: Problem) -> list[str]:
    """The providers that are tried for a function, with a mark for functions in the module's source."""
    return [provider.name + " in source" * provider.in_source for provider in chain.order(problem)]


def test_providers_are_tried_in_order(bench: Bench) -> None:
    bench.engine.use_libmathdx(None)
    assert names_of(bench.engine.chain(AUTO), ALIGNED) == ["own", "own in source", "cublasdx", "scalar"]
    bench.engine.use_libmathdx(libmathdx)
    chain = bench.engine.chain(AUTO)
    assert names_of(chain, ALIGNED) == ["own", "own in source", "cublasdx", "libmathdx", "scalar"]
    assert names_of(chain, FACTOR) == ["own", "own in source", "scalar"]
    for problem, provider in ((ALIGNED, OwnProvider), (FACTOR, SolverProvider)):
        assert isinstance(chain.order(problem)[0], provider)


@pytest.mark.parametrize("name", PROVIDER_ORDER)
def test_a_named_provider_is_the_only_one(bench: Bench, name: str) -> None:
    chain = bench.engine.chain(Settings(provider=name))
    tried = [name, "own in source"] if name == "own" else [name]
    assert names_of(chain, ALIGNED) == tried
    assert names_of(chain, FACTOR) == (tried if name in ("own", "scalar") else [])
    assert chain.forced


# ---- unsupported functions are normal


def test_an_odd_block_goes_to_cublasdx_without_a_warning(bench: Bench) -> None:
    found = planned(bench, ODD)
    assert (found.provider, found.symbol, found.tile_config) == ("cublasdx", ODD.symbol, None)
    assert "; built by cublasdx (own cannot serve threads=48" in found.reason
    artifact, warned = bench.build_with_warnings(ODD)
    assert (artifact.provider, artifact.key, warned) == ("cublasdx", found.key, [])
    assert bench.pool.requests == [cublasdx(ODD)]


@pytest.mark.parametrize(("problem", "field"), [(FEW, "threads=16"), (OLD, "arch=70")])
def test_a_problem_for_the_scalar_path_causes_no_warning(bench: Bench, problem: GemmProblem, field: str) -> None:
    found = planned(bench, problem)
    assert (found.provider, found.symbol, found.key) == ("scalar", "", "")
    for name in ("own", "cublasdx", "libmathdx"):
        assert f"{name} cannot serve {field}" in found.reason
    artifact, warned = bench.build_with_warnings(problem)
    assert (artifact.provider, artifact.payload, warned) == ("scalar", b"", [])
    assert bench.pool.requests == []


def test_the_plan_has_the_function_with_the_weaker_promises_of_cublasdx(bench: Bench) -> None:
    half = problem_of(16, "float16", threads=48)
    found = planned(bench, half)
    assert half.alignments == (16, 16, 16)
    assert found.symbol == replace(half, c=replace(half.c, alignment=8)).symbol
    assert bench.build(half).symbol == found.symbol
    assert bench.build(half).key == found.key


# ---- a named provider that cannot serve the function


@pytest.mark.parametrize(
    ("name", "problem", "field"),
    [
        ("own", ODD, "threads=48"), ("own", FEW, "threads=16"), ("own", OLD, "arch=70"),
        ("cublasdx", FEW, "threads=16"), ("cublasdx", OLD, "arch=70"), ("libmathdx", FEW, "threads=16"),
        ("libmathdx", OLD, "arch=70"),
    ],
)  # fmt: skip
def test_the_error_of_a_named_provider_names_the_unsupported_field(
    bench: Bench, name: str, problem: GemmProblem, field: str
) -> None:
    calls: dict[str, Any] = {"planned": lambda: planned(bench, problem), "built": lambda: bench.build(problem)}
    for call in calls.values():
        with settings.override(provider=name), pytest.raises(UnsupportedProblem) as caught:
            call()
        assert f"{name} cannot serve {field}" in caught.value.message
        assert problem.describe() in caught.value.message
        assert 'call override(provider="auto")' in caught.value.remedy
    assert bench.pool.requests == []


def test_a_named_cublasdx_is_planned_and_without_a_compiler_an_error(bench: Bench) -> None:
    with settings.override(provider="cublasdx"):
        assert planned(bench, ALIGNED).reason.endswith(
            "built by cublasdx (the setting provider (override()) asks for it)"
        )
        bench.facts.error = ToolchainError("NVRTC was not found", remedy="install it")
        for ask in (planned, Bench.build):
            with pytest.raises(ToolchainError, match="NVRTC was not found"):
                ask(bench, ALIGNED)


# ---- missing parts of the toolchain


def test_without_headers_own_is_used_and_what_it_cannot_serve_goes_to_libmathdx_with_a_warning(bench: Bench) -> None:
    bench.facts.found = replace(TOOLCHAIN, missing_headers=("no cublasdx.hpp", "pip install nvidia-mathdx"))
    artifact, warned = bench.build_with_warnings(ALIGNED)
    assert (planned(bench, ALIGNED).provider, artifact.provider, warned) == ("own", "own", [])
    found = planned(bench, ODD)
    assert found.provider == "libmathdx"
    assert "own cannot serve threads=48" in found.reason
    assert "no cublasdx.hpp" in found.reason
    artifact, (text,) = bench.build_with_warnings(ODD)
    assert artifact.provider == "libmathdx"
    assert "no cublasdx.hpp; using Warp's libmathdx, which takes " in text
    assert text.endswith(" for each function. Remedy: pip install nvidia-mathdx")


def test_the_salt_depends_on_the_providers(bench: Bench) -> None:
    every = bench.engine.fingerprint(AUTO)
    one = {name: bench.engine.fingerprint(Settings(provider=name)) for name in PROVIDER_ORDER}
    assert len({every, *one.values()}) == 5
    assert "block_gemm.cuh" in every
    assert "gemm.cuh" in every
    assert "own source=" in one["own"]
    assert "cublasdx source=" not in one["own"]
    bench.facts.compiler = "another"
    assert bench.engine.fingerprint(AUTO) != every
    assert bench.engine.fingerprint(Settings(provider="own")) != one["own"]
    assert bench.engine.fingerprint(Settings(provider="scalar")) == one["scalar"]
    bench.facts.compiler, bench.facts.source = "compiler digest", "another"
    assert bench.engine.fingerprint(AUTO) != every


# ---- bfloat16


@pytest.mark.parametrize("role", PRODUCT_ROLES)
def test_a_bfloat16_result_is_built_by_own(bench: Bench, role: Role) -> None:
    assert planned(bench, NARROW, role).provider == "own"
    assert bench.build(NARROW).provider == "own"
    bench.facts.error = ToolchainError("NVRTC was not found")
    assert planned(bench, NARROW, role).in_source


@pytest.mark.parametrize("name", ["cublasdx", "libmathdx", "scalar"])
@pytest.mark.parametrize(
    ("role", "words"),
    [(Role.FORWARD, "bfloat16 'out' tile"), (Role.ADJOINT_A, "'a' or 'b' tiles"), (Role.ADJOINT_B, "'a' or 'b' tiles")],
)
def test_no_other_provider_accumulates_in_bfloat16(bench: Bench, name: str, role: Role, words: str) -> None:
    found = replace(in_role(NARROW, role), settings=Settings(provider=name))
    alone = replace(found, functions=tuple(v for v in found.functions if v.problem == NARROW and v.role is role))
    with pytest.raises(TypeError, match=words) as caught:
        annotated(bench.engine, alone)
    assert str(caught.value).startswith("In 'k': tile_matmul() does not support")
    assert f"{name} cannot serve c_dtype=bfloat16" in str(caught.value)
    assert "provider 'own' does" in str(caught.value)


@pytest.mark.parametrize(("change", "field"), [({"threads": 48}, "threads=48"), ({"arch": 70}, "arch=70")])
def test_an_unsupported_bfloat16_gradient_does_not_take_the_scalar_path_silently(
    bench: Bench, change: dict[str, int], field: str
) -> None:
    problem = replace(NARROW, **change)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"'a' or 'b' tiles.*own cannot serve {field}.*scalar cannot serve c_dtype"):
        planned(bench, problem, Role.ADJOINT_A)
    with pytest.raises(UnsupportedProblem, match=f"own cannot serve {field}"):
        bench.build(problem)


def test_a_bfloat16_gradient_that_fails_to_compile_raises_with_the_log(bench: Bench) -> None:
    bench.refuse(own(NARROW))
    with pytest.raises(BuildError) as caught:
        bench.build(NARROW)
    assert "unsupported alignment" in caught.value.log
    assert bench.pool.requests == [own(NARROW)]


# ---- failed builds: one warning for each


SOURCES = (own(ALIGNED), cublasdx(ALIGNED), cublasdx(UNALIGNED))
STEPS = ("cuBLASDx", "cuBLASDx without alignment", LIBMATHDX, "Warp's scalar path")


@pytest.mark.parametrize(
    ("failures", "provider", "symbol"),
    [(1, "cublasdx", ALIGNED.symbol), (2, "cublasdx", UNALIGNED.symbol), (3, "libmathdx", "dot_8"), (4, "scalar", "")],
)
def test_each_failed_build_has_a_fallback_and_a_warning(
    bench: Bench, failures: int, provider: str, symbol: str
) -> None:
    bench.engine.use_libmathdx(libmathdx if failures < 4 else failing_libmathdx)
    bench.refuse(*SOURCES[:failures])
    artifact, warned = bench.build_with_warnings(ALIGNED)
    assert (artifact.problem, artifact.symbol, artifact.provider) == (ALIGNED, symbol, provider)
    assert (artifact.tile_config, bool(artifact.payload)) == (None, provider != "scalar")
    assert bool(artifact.key) == (provider == "cublasdx")
    assert len(artifact.warnings) == len(warned) == failures
    for text, kept, step in zip(warned, artifact.warnings, STEPS):
        assert kept in text
        assert ALIGNED.describe() in text
        assert f"; using {step}" in text
    for text, name in zip(warned, SOURCES):
        assert "unsupported alignment" in text
        command = text.partition(" To see it alone: ")[2]
        assert command.startswith("python -m warp_tiles.compile.worker --reproduce ")
        source = Path(command.rpartition(" ")[2])
        assert source.name == f"{name}.cu"
        assert source.read_text().startswith("// flags: ")
    assert failures < 4 or "libmathdx error: no" in warned[3]


def test_a_problem_without_weaker_promises_is_tried_once(bench: Bench) -> None:
    bench.refuse(own(UNALIGNED), cublasdx(UNALIGNED))
    artifact, warned = bench.build_with_warnings(UNALIGNED)
    assert artifact.provider == "libmathdx"
    assert bench.pool.requests == [own(UNALIGNED), cublasdx(UNALIGNED)]
    assert len(warned) == 2


def test_an_equal_warning_is_issued_once(bench: Bench) -> None:
    bench.refuse(own(ALIGNED))
    assert len(bench.build_with_warnings(ALIGNED)[1]) == 1
    artifact, warned = bench.build_with_warnings(ALIGNED)
    assert warned == []
    assert len(artifact.warnings) == 1  # the record still has it
    other = problem_of(16)
    bench.refuse(own(other))
    assert len(bench.build_with_warnings(other)[1]) == 1


@pytest.mark.parametrize("provider", ["auto", "own"])
def test_without_a_toolchain_functions_stand_in_the_source_with_one_warning(bench: Bench, provider: str) -> None:
    bench.facts.error = ToolchainError("NVRTC was not found", remedy="pip install nvidia-cuda-nvrtc-cu12")
    with settings.override(provider=provider):
        found = planned(bench, ALIGNED)
        artifact, warned = bench.build_with_warnings(ALIGNED)
        factor, later = bench.build_with_warnings(FACTOR)
        assert bench.build_with_warnings(problem_of(16))[1] == []
    assert (found.provider, found.in_source, found.symbol, found.key) == ("own", True, ALIGNED.symbol, "")
    assert "; in the module's source (NVRTC was not found" in found.reason
    assert (artifact.provider, artifact.in_source, artifact.symbol) == ("own", True, ALIGNED.symbol)
    assert (artifact.payload, artifact.key, artifact.tile_config) == (b"", "", found.tile_config)
    assert (factor.symbol, factor.in_source, later) == (FACTOR.symbol, True, [])
    (text,) = warned
    assert text == (f"warp_tiles: NVRTC was not found; using {IN_SOURCE}. Remedy: pip install nvidia-cuda-nvrtc-cu12")
    assert bench.pool.requests == []


@pytest.mark.parametrize(("policy", "error"), [("fast", ToolchainError), ("locked", LockedError)])
def test_fast_and_locked_do_not_replace_a_missing_toolchain(
    bench: Bench, policy: str, error: type[WarpTilesError]
) -> None:
    bench.pool.refuse[own(ALIGNED)] = ToolchainError("NVRTC cannot be loaded", log="no such symbol")
    with settings.override(policy="fast"), pytest.raises(ToolchainError, match="NVRTC cannot be loaded") as caught:
        bench.build(ALIGNED)
    assert (caught.value.log, caught.value.remedy) == ("no such symbol", 'call override(policy="auto")')
    bench.facts.error = ToolchainError("NVRTC was not found", remedy="install it")
    with settings.override(policy=policy):
        with pytest.raises(error, match="NVRTC was not found") as caught:
            bench.build(ALIGNED)
        assert caught.value.remedy.startswith("install it; ")
        assert bench.build_with_warnings(FEW)[0].provider == "scalar"


@pytest.mark.parametrize("policy", ["auto", "fast"])
@pytest.mark.parametrize(
    ("toolkit", "linker_reason", "in_source"),
    [((12, 8), "it is a debug build", True), ((12, 8), "", False), ((12, 9), "it is a debug build", False)],
)
def test_functions_that_warp_cannot_link_stand_in_the_source(
    toolkit: tuple[int, int], linker_reason: str, in_source: bool, policy: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with settings.override(cache_dir=tmp_path, policy=policy), warnings.catch_warnings():
        warnings.simplefilter("error")
        engine = Engine(warp_toolkit=toolkit)
        bench = Bench(engine, monkeypatch)
        plan = replace(in_role(ALIGNED), linker_reason=linker_reason)
        (found,) = annotated(engine, plan).needed
        built = engine.start([ALIGNED], linker_reason=linker_reason)[ALIGNED].result(20)
        engine.close()
    assert (found.provider, found.in_source, built.in_source) == ("own", in_source, in_source)
    assert bench.pool.requests == [own(ALIGNED)] * (not in_source)
    assert ("Warp's CUDA 12.8 cannot read the LTO-IR of NVRTC 12.9" in found.reason) is in_source
    assert bool(built.payload) is not in_source


def test_what_warp_cannot_link_is_not_built_by_cublasdx_and_locked_puts_nothing_into_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with settings.override(cache_dir=tmp_path):
        engine = Engine(warp_toolkit=(12, 8))
        engine.use_libmathdx(libmathdx)
        bench = Bench(engine, monkeypatch)
        built = engine.start([ODD], linker_reason="it is a debug build")[ODD].result(20)
        assert (built.provider, bench.pool.requests) == ("libmathdx", [])
        with settings.override(policy="locked"), pytest.raises(LockedError, match="its builds are not cached"):
            engine.start([ALIGNED], linker_reason="it is a debug build")[ALIGNED].result(20)
        engine.close()


def test_an_unusable_compiler_and_what_only_a_missing_one_serves_fall_back_to_libmathdx(bench: Bench) -> None:
    bench.pool.refuse[own(ALIGNED)] = ToolchainError("NVRTC cannot be loaded")
    artifact, warned = bench.build_with_warnings(ALIGNED)
    assert artifact.provider == "libmathdx"
    assert bench.pool.requests == [own(ALIGNED)], "without a toolchain no other compiling provider is tried"
    assert len(warned) == 1
    bench.facts.error = ToolchainError("NVRTC was not found", remedy="install it")
    artifact, (text,) = bench.build_with_warnings(ODD)
    assert artifact.provider == "libmathdx"
    assert text.startswith("warp_tiles: NVRTC was not found; using Warp's libmathdx")


def test_a_crash_of_the_compiler_process_is_no_fallback(bench: Bench) -> None:
    # a fallback would stay in Warp's kernel cache under the hash of a healthy toolchain
    bench.pool.refuse[own(ALIGNED)] = WorkerError("a compiler process ended with exit status -9")
    with pytest.raises(WorkerError, match="-9"):
        bench.engine.start([ALIGNED])[ALIGNED].result(20)
    assert bench.pool.requests == [own(ALIGNED)] * 2, "the request is sent twice"


def test_functions_for_an_architecture_that_nvrtc_lacks_stand_in_the_source(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain = replace(bench.engine.build_context(current()).toolchain(), archs=(80, 90))
    monkeypatch.setattr(BuildContext, "toolchain", lambda self: toolchain)
    unknown = replace(ALIGNED, arch=110)
    artifact, warned = bench.build_with_warnings(unknown)
    assert (artifact.provider, artifact.in_source) == ("own", True)
    assert bench.pool.requests == []
    assert "does not compile for sm_110" in warned[0]


def test_closing_cancels_waiting_builds_and_shared_ones(bench: Bench) -> None:
    bench.pool.gate = threading.Event()
    first, second = (bench.engine.start([ALIGNED])[ALIGNED] for _ in range(2))
    closer = threading.Thread(target=bench.engine.close)
    closer.start()
    bench.pool.gate.set()
    closer.join(20)
    assert not closer.is_alive()
    assert not wait([first, second], timeout=20).not_done, "a future hangs"


def test_a_forced_cublasdx_raises_its_first_error(bench: Bench) -> None:
    bench.refuse(cublasdx(ALIGNED), cublasdx(UNALIGNED))
    with settings.override(provider="cublasdx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning of the dropped alignment
        with pytest.raises(BuildError, match=ALIGNED.symbol) as caught:
            bench.build(ALIGNED)
    assert "unsupported alignment" in caught.value.log
    assert bench.pool.requests == [cublasdx(ALIGNED), cublasdx(UNALIGNED)]


def test_other_forced_providers_compile_nothing(bench: Bench) -> None:
    bench.engine.use_libmathdx(None)
    with settings.override(provider="libmathdx"):
        with pytest.raises(BuildError, match="no provider can build") as caught:
            bench.build(ALIGNED)
        assert 'call override(provider="auto")' in caught.value.remedy
        bench.engine.use_libmathdx(libmathdx)
        assert bench.build(ALIGNED).provider == "libmathdx"
    with settings.override(provider="scalar"):
        assert bench.build(ALIGNED).provider == "scalar"
    assert bench.pool.requests == []


# ---- the policy locked: the error names all missing functions, nothing is built, cached functions are used

OTHERS = [problem_of(12), problem_of(16)]


def missing(bench: Bench, *problems: Problem) -> LockedError:
    with settings.override(policy="locked"), pytest.raises(LockedError) as caught:
        bench.engine.start_cached(plan_of(*problems))
    return caught.value


def test_the_error_names_all_missing_functions_and_their_keys(bench: Bench) -> None:
    bench.build(OTHERS[0])
    requests = list(bench.pool.requests)
    error = missing(bench, ALIGNED, *OTHERS)
    plan = annotated(bench.engine, plan_of(ALIGNED, *OTHERS))
    for problem in (ALIGNED, OTHERS[1]):
        assert problem.describe() in error.message
        assert next(v.key for v in plan.needed if v.problem == problem) in error.message
    assert OTHERS[0].describe() not in error.message
    assert "2 device functions" in error.message
    assert "the setting policy (override()) is 'locked'" in error.message
    assert bench.pool.requests == requests


def test_the_weaker_recipe_of_the_same_provider_is_accepted(bench: Bench) -> None:
    half = problem_of(16, "float16", threads=48)
    with settings.override(provider="cublasdx"):
        first = bench.engine.chain(settings.current()).providers[0].recipes(half)[0]
        bench.refuse(f"{first.symbol}_cublasdx")
        with pytest.warns(RuntimeWarning, match="without alignment"):
            built = bench.build(half)
        with settings.override(policy="locked"):
            bench.engine.start_cached(plan_of(half))
            assert bench.build(half).symbol == built.symbol != first.symbol


def test_a_function_of_another_provider_is_not_accepted(bench: Bench) -> None:
    with settings.override(provider="cublasdx"):
        bench.build(ALIGNED)
    assert "the own function" in missing(bench, ALIGNED).message
    with settings.override(policy="locked"), pytest.raises(LockedError):
        bench.build(ALIGNED)


def test_builds_of_libmathdx_are_not_cached(bench: Bench) -> None:
    bench.engine.use_libmathdx(lambda problem: pytest.fail("it would build"))
    with settings.override(provider="libmathdx"):
        assert "its builds are not cached" in missing(bench, ALIGNED).message
        with settings.override(policy="locked"), pytest.raises(LockedError, match="its builds are not cached"):
            bench.build(ALIGNED)


@pytest.mark.parametrize(
    ("problem", "provider"), [(ALIGNED, "own"), (FACTOR, "own"), (ODD, "cublasdx")], ids=["product", "solver", "odd"]
)
def test_a_cached_function_of_the_planned_provider_is_used(bench: Bench, problem: Problem, provider: str) -> None:
    assert f"the {provider} function {problem.describe()} is not" in missing(bench, problem).message
    built = bench.build(problem)
    with settings.override(policy="locked"):
        bench.engine.start_cached(plan_of(problem, FEW))
        found = bench.build(problem)
        assert bench.build(FEW).provider == "scalar", "it needs nothing"
    assert (found.payload, found.key, found.hit) == (built.payload, built.key, True)


def test_without_a_compiler_there_is_no_key(bench: Bench) -> None:
    bench.build(ALIGNED)
    bench.facts.error = ToolchainError("NVRTC was not found", remedy="install it")
    error = missing(bench, ALIGNED)
    assert error.message.startswith("the setting policy (override()) is 'locked'")
    assert error.message.endswith("without the toolchain: NVRTC was not found")
    assert error.remedy == "install it; take the versions of the machine that filled the cache"


def test_a_damaged_entry_is_not_built_again(bench: Bench) -> None:
    bench.build(ALIGNED)
    for payload in bench.cache.root.glob("v2/objects/*/*.ltoir"):
        payload.write_bytes(b"damaged")
    bench.pool.requests.clear()
    with settings.override(policy="locked"), pytest.raises(LockedError):
        bench.build(ALIGNED)
    assert bench.pool.requests == []
    assert bench.build(ALIGNED).payload == f"LTO-IR of {own(ALIGNED)}".encode()
