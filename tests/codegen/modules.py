"""Generated modules written by hand, for the tests of plans, of finished sources and of builds."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from warp_tiles.codegen.module_code import DeviceFunction
from warp_tiles.codegen.prelude import PLACEHOLDER, finished_source
from warp_tiles.codegen.trace import ModuleTrace, Session
from warp_tiles.gemm.problem import PRODUCT_ROLES, GemmProblem, Role, Target, TileOperand, products
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.plan.planner import GeneratedModule, plan_module
from warp_tiles.plan.planning import ModulePlan, PlannedFunction
from warp_tiles.settings import Settings
from warp_tiles.solver.problem import Problem

_SM90 = Target(90, 128)
NO_ACCUMULATORS = Rejected("rounded_products", ("float16",))


def forms(m: int, n: int, k: int, dtype: str = "float32") -> dict[Role, GemmProblem]:
    """The three products of one call. Its tiles are dense and share no memory."""

    def packed(rows: int, cols: int, kind: str) -> TileOperand:
        return TileOperand(kind, (rows, cols), (cols, 1), "row_major", True)  # type: ignore[arg-type]

    out = "float32" if dtype == "bfloat16" else dtype
    found = products(packed(m, k, dtype), packed(k, n, dtype), packed(m, n, out), precision="default", target=_SM90)
    return found.problems


BIG, SMALL = forms(8, 12, 4), forms(4, 4, 16)


def session(*sites: tuple[str, dict[Role, GemmProblem]]) -> Session:
    """A module for compute capability 9.0. Each site is given with the function that contains it."""
    result = Session("module", 90, 128, settings=Settings())
    for function, problems in sites:
        result.add("tile_matmul", function, problems)
    return result


def forward(index: int) -> str:
    """The call of a site in the forward pass."""
    names = ", ".join(f"wt_site{index}_{role.value}" for role in PRODUCT_ROLES)
    return f"    wp::tile_matmul<1>({names}, var_0, var_1, var_2, var_3, var_4);"


def backward(index: int) -> str:
    """The call of a site's adjoint."""
    names = ", ".join(f"wt_site{index}_{role.value}" for role in PRODUCT_ROLES)
    return f"    wp::adj_tile_matmul<1>({names}, var_0, var_1, var_2, adj_0, adj_1, adj_2);"


def source(*lines: str) -> str:
    """A generated source, with the placeholder instead of Warp's declarations."""
    return "\n".join(
        ['extern "C" {', PLACEHOLDER, '}  // extern "C"', 'extern "C" __global__ void kernel() {', *lines, "}"]
    )


def generated(
    session: Session, *lines: str, called: Collection[int] = (), trace: ModuleTrace | None = None
) -> GeneratedModule:
    """A generated module. Without lines, it calls every site, and the adjoints of the sites in ``called``."""
    if not lines:
        lines = tuple(
            line
            for site in session.sites
            for line in (forward(site.index), *([backward(site.index)] if site.index in called else []))
        )
    return GeneratedModule(session, source(*lines), ModuleTrace() if trace is None else trace, frozenset(called))


def functions(*problems: Problem) -> dict[Problem, DeviceFunction]:
    """A device function for each problem, named after its symbol."""
    return {problem: DeviceFunction(problem.symbol, NO_ACCUMULATORS) for problem in problems}


def with_settings(module: GeneratedModule, **settings: Any) -> GeneratedModule:
    """The same module under other settings."""
    return replace(module, session=replace(module.session, settings=Settings(**settings)))


def planned(module: GeneratedModule, built: Mapping[Any, DeviceFunction]) -> ModulePlan:
    """The plan of a module whose sites can call these functions; others take the scalar path."""

    def choose(each: PlannedFunction) -> PlannedFunction:
        function = built.get(each.problem)
        provider = each.provider or ("scalar" if function is None else "own")
        return replace(each, provider=provider, device_function=function)

    return plan_module(module, choose)


def written(module: GeneratedModule, built: Mapping[Any, DeviceFunction]) -> str:
    """The finished source of :func:`planned`."""
    return finished_source(module.source, planned(module, built).code)


# ---- reading a finished source


def macros(text: str) -> dict[str, str]:
    """The definition of each macro of a finished source. Each macro is defined once."""
    found = re.findall(r"^#define (\w+)(?:\(\.\.\.\))?(?: (.*))?$", text, re.M)
    assert len({name for name, _ in found}) == len(found)
    return dict(found)


def names_of(text: str, index: int) -> list[str]:
    """The definitions of a site's names: forward, adjoint A, adjoint B."""
    return [macros(text)[f"wt_site{index}_{role.value}"] for role in PRODUCT_ROLES]


def declared(text: str) -> list[str]:
    """The names of the linked functions that a finished source declares, in order."""
    return re.findall(r"^void (\w+)\(", text, re.M)
