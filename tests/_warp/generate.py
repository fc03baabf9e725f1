"""Modules from Warp's code generator, with warp_tiles and without."""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import warp as wp

import warp_tiles
from warp_tiles._warp.internals import find
from warp_tiles.codegen.operations import Operation
from warp_tiles.codegen.prelude import PLACEHOLDER
from warp_tiles.codegen.trace import FunctionTrace, Loop, Node
from warp_tiles.plan import planner
from warp_tiles.plan.planner import GeneratedModule, plan_module
from warp_tiles.plan.planning import ModulePlan


@contextmanager
def traced_modules() -> Iterator[list[GeneratedModule]]:
    """Collects the modules that are generated in a with-block."""
    found: list[GeneratedModule] = []

    def record(generated: GeneratedModule, *arguments: Any, **keywords: Any) -> ModulePlan:
        found.append(generated)
        return plan_module(generated, *arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "plan_module", record)
        yield found


def generate(module: ModuleType, arch: int | None = 90) -> GeneratedModule:
    """Generate a module with its trace. warp_tiles must be enabled."""
    with traced_modules() as found:
        warp_tiles.plan(module, arch=arch, block_dim=64)
    return found[-1]


def trace_of(module: ModuleType, label: str = "multiply") -> FunctionTrace:
    """The trace of one of a module's functions."""
    return generate(module).trace.functions[label]


def all_nodes(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Yields nodes and their inner nodes, in order."""
    for node in nodes:
        yield node
        if not isinstance(node, Operation):
            yield from all_nodes(node.nodes)


def operations_named(function: FunctionTrace, name: str) -> list[Operation]:
    """The operations with a name."""
    return [operation for operation in function.operations() if operation.name == name]


def loops_of(function: FunctionTrace) -> list[Loop]:
    """All loops, in order."""
    return [node for node in all_nodes(function.nodes) if isinstance(node, Loop)]


# ---- sources


def source_of(module: ModuleType) -> str:
    """The source that Warp generates now, with the current hooks."""
    user = wp.get_module(module.__name__)
    user.get_module_hash(64)
    options = user.resolve_options(wp.config) | {"output_arch": 90, "block_dim": 64}
    source: str = find("context").ModuleBuilder(user, options, hasher=user.hashers[64]).codegen("cuda")
    return source


def warps_source(module: ModuleType) -> str:
    """The source that unmodified Warp generates. warp_tiles must be disabled, and no product is built."""
    assert not warp_tiles.is_enabled()
    wp.init()
    names = (f"function_{number}" for number in itertools.count())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(find("build"), "build_lto_dot", lambda *args, **kwargs: (next(names), b""))
        source = source_of(module)
    wp.get_module(module.__name__).mark_modified()
    return source


def expanded(source: str) -> str:
    """A generated source without its hooks. A macro that takes a statement is replaced by the statement."""
    lines = []
    for line in source.splitlines():
        if re.fullmatch(r"\s*WT_(?:WAIT|REPLAY_WAIT|(?:REVERSE_)?BEGIN|(?:REVERSE_)?END)_\d+", line):
            continue
        line = re.sub(r"^(\s*)WT_RECOMPUTE_(\d+)\(.*\) (WT_ADJOINT_\2\()", r"\1\3", line)
        lines.append(re.sub(r"^(\s*)WT_(?:AT|REPLAY|ADJOINT|ZERO)_\d+\((.*)\)$", r"\1\2", line))
    return "\n".join(lines)


_ZEROED = re.compile(r"\s*adj_\w+(?: = \{\}|\.grad_zero\(\));")


def comparable(source: str) -> str:
    """A source with one name for the functions of all products, and without declarations.

    Neighbouring statements that set gradients to zeros are sorted, because their order does not matter.
    """
    text = re.sub(r'extern "C" \{\n' + re.escape(PLACEHOLDER) + r"\n*\}\n*", "", source)
    text = re.sub(r"\b(?:wt_site\d+_(?:forward|adjoint_a|adjoint_b)|function_\d+)\b", "function", text)
    text = re.sub(r"_[0-9a-f]{8}_cuda_kernel", "_cuda_kernel", text)
    text = text.replace("#define WP_LTO_LINK_INPUTS 1", "")  # it depends on the declarations
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    groups = itertools.groupby(lines, key=lambda line: bool(_ZEROED.fullmatch(line)))
    return "\n".join(line for zeroed, group in groups for line in (sorted(map(str.strip, group)) if zeroed else group))
