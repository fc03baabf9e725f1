"""The state of a module while Warp generates it, and its plan. Imported when the first module is generated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import warp

from warp_tiles._warp.internals import find, unknown_products
from warp_tiles._warp.modules import hash_outdated, loading, module_builder, names_of
from warp_tiles._warp.tracer import Tracer
from warp_tiles.build.module_build import ModuleBuild, foreign_inputs
from warp_tiles.codegen.adjoints import lost_results
from warp_tiles.codegen.operations import INDEXED, Effect, effect_of_native
from warp_tiles.codegen.prelude import PLACEHOLDER
from warp_tiles.codegen.trace import FunctionUse, ModuleTrace, Session, without_unread_assignments
from warp_tiles.compile.module import KNOWN_KEYWORDS, ModuleSource, reason_left_to_warp, reason_without_key
from warp_tiles.errors import PlanError
from warp_tiles.gemm.hardware import MIN_ARCH
from warp_tiles.gemm.problem import Role
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.plan.planner import GeneratedModule
from warp_tiles.plan.planning import KernelMemory

_SMALL_NUMBERS = (int, float, bool, warp.int32, warp.uint32, warp.float32, warp.bool)


class BuilderState:
    """The state of one ModuleBuilder.

    Attributes:
        tracers: The tracer of each function, by identity of its Adjoint.
        reversed: Identities of the Adjoints whose reverse pass was generated.
        adjoint_of_site: Identity of the Adjoint that contains a site, by number of the site.
        build: The module's build, once its code has been generated.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.tracers: dict[int, Tracer] = {}
        self.reversed: set[int] = set()
        self.adjoint_of_site: dict[int, int] = {}
        self.build: ModuleBuild | None = None
        self._labels: dict[int, str] = {}
        self._numbers = itertools.count()
        self._effects: dict[int, Effect] = {}

    def label(self, adjoint: Any) -> str:
        """Returns a name that is unique to this function within the module."""
        if id(adjoint) not in self._labels:
            name = str(getattr(adjoint, "fun_name", None) or "unknown")
            taken = set(self._labels.values())
            copies = (f"{name}#{n}" for n in range(2, len(taken) + 3))
            self._labels[id(adjoint)] = next(label for label in (name, *copies) if label not in taken)
        return self._labels[id(adjoint)]

    def existing_label(self, adjoint: Any) -> str | None:
        """Returns the name of a function that contains a site, and None for other functions."""
        return self._labels.get(id(adjoint))

    def begin(self, adjoint: Any) -> Tracer:
        """Returns a new tracer of a function. It replaces an earlier one."""
        tracer = self.tracers[id(adjoint)] = Tracer(adjoint, self._numbers)
        return tracer

    def trace(self, names: Mapping[Any, str], reached: list[tuple[Any, dict[int, Any]]]) -> ModuleTrace:
        traces = (tracer.trace(self.label, self._effect_of) for tracer in self.tracers.values())
        functions = [without_unread_assignments(trace) for trace in traces]
        labels = {identity: self.label(tracer.adjoint) for identity, tracer in self.tracers.items()}
        return ModuleTrace(
            {function.label: function for function in functions},
            frozenset(label for identity, label in labels.items() if identity in self.reversed),
            {
                label: tuple(names[kernel] for kernel, seen in reached if identity in seen)
                for identity, label in labels.items()
            },
            {labels[id(kernel.adj)]: name for kernel, name in names.items() if id(kernel.adj) in labels},
        )

    def _effect_of(self, function: Any) -> Effect:
        identity = id(function.adj)
        tracer = self.tracers.get(identity)
        if tracer is None:
            return Effect.UNKNOWN
        if function.native_snippet is not None:
            return _effect_of_native(function)
        if identity not in self._effects:
            self._effects[identity] = tracer.effect(self._effect_of)
        return self._effects[identity]


def _effect_of_native(function: Any) -> Effect:
    types = function.adj.arg_types.values()
    if any(warp.types.is_tile(kind) for kind in types):
        return Effect.UNKNOWN
    small = all(any(kind is number for number in _SMALL_NUMBERS) for kind in types)
    has_other_snippets = function.adj_native_snippet is not None or function.replay_snippet is not None
    # the reverse pass runs the others, so all of them count
    snippet = "" if has_other_snippets else function.native_snippet
    return effect_of_native(snippet, tuple(function.input_types), small_numbers=small)


def declare_prelude(builder: Any) -> None:
    """Puts the placeholder of the prelude among the declarations that Warp writes into a module's source."""
    builder.ltoirs_decl["warp_tiles"] = PLACEHOLDER


def finish_module(builder: Any, state: BuilderState, source: str) -> GeneratedModule:
    """Returns a module whose code has been generated. It is not planned."""
    reached = reachable_functions(builder)
    called = frozenset(i for i, adjoint in state.adjoint_of_site.items() if adjoint in state.reversed)
    names = names_of(builder.kernels)
    trace = state.trace(names, reached)
    _refuse_lost_gradients(state.session, trace)
    _add_unknown_products(state.session, trace)
    return GeneratedModule(
        state.session,
        source,
        trace,
        called,
        tuple(names.values()),
        tuple(function_uses(builder, state, names, reached)),
        indexed_elements=-(-trace.largest_tile(INDEXED) // state.session.block_dim),
    )


def link_facts(builder: Any) -> tuple[dict[str, Any], list[str]]:
    """Returns what decides who links a module: arguments of Warp's ``build_cuda()``, and inputs that Warp has built."""
    keywords = {name: builder.options.get(name) for name in ("compile_time_trace", "llvm_cuda")}
    keywords |= {"config": builder.options.get("mode"), "fatbins": builder.fatbins}
    return keywords, foreign_inputs(tuple(builder.ltoirs.values()), keywords)


def _add_unknown_products(session: Session, trace: ModuleTrace) -> None:
    """Adds a site for each builtin that multiplies tiles and that only Warp knows. The plan names them."""
    unknown = unknown_products()
    for context, operation in trace.operations():
        if operation.name in unknown and not operation.callee:
            reason = "it is not known yet, left to Warp"
            label = context.function.label
            session.add(operation.name, label, {}, roles=(Role.FORWARD,), scalar_reason=reason, provider="warp")


def _refuse_lost_gradients(session: Session, trace: ModuleTrace) -> None:
    """Removes the adjoints of solvers in place whose results the reverse pass loses."""
    in_place = {
        site.index
        for site in session.sites
        if site.own_adjoint and getattr(site.problems[Role.ADJOINT], "in_place", False)
    }
    lost = lost_results(trace, in_place)
    followed = {operation.solver for _, operation in trace.operations()}
    lost |= dict.fromkeys(in_place - followed, Rejected("not_followed"))
    for index, reason in lost.items():
        site = session.sites[index]
        problems = {Role.FORWARD: site.problems[Role.FORWARD]}
        session.sites[index] = replace(site, problems=problems, no_gradient=reason, own_adjoint=False)


def module_source(kernel: Any, arch: int, arch_suffix: str, block_dim: int) -> tuple[ModuleSource, str]:
    """Generates the code of a kernel's module without products and solvers, and builds nothing.

    Returns what its compiler gets besides its code, and the code. Raises a PlanError if no cache key covers the result,
    and any error of Warp's code generator.
    """
    module = kernel.module
    with loading(module), find("codegen._codegen_lock"):
        hash_outdated(module)
        module.get_module_hash(block_dim)
        options = module.resolve_options(warp.config, block_dim=block_dim) | {"output_arch": arch}
        builder = module_builder(module, options, module.hashers[block_dim])
        code = str(builder.codegen("cuda"))
    keywords = {name: options[name] for name in KNOWN_KEYWORDS if options.get(name) is not None}
    native_dir = str(Path(find("build.warp_home")) / "native")
    source = ModuleSource(f"{module.name}.cu", arch, "cubin", native_dir, keywords, arch_suffix)
    if reason := reason_left_to_warp(options) or reason_without_key(source, code):
        raise PlanError(f"kernel {kernel.key} is left to Warp's compiler: {reason}")
    return source, code


def reachable_functions(builder: Any) -> list[tuple[Any, dict[int, Any]]]:
    """Returns each kernel of a module with the Adjoints that it reaches, including its own, by identity."""
    reached = []
    for kernel in builder.kernels:
        seen: dict[int, Any] = {}
        pending = [kernel.adj]
        while pending:
            adjoint = pending.pop()
            if id(adjoint) in seen:
                continue
            seen[id(adjoint)] = adjoint
            for function in getattr(adjoint, "called_user_functions", ()):
                extra = (function.custom_grad_func, function.custom_replay_func)
                pending.extend(f.adj for f in (function, *extra) if f is not None)
        if any(adjoint.uses_grad_call for adjoint in seen.values()):
            # wp.grad() does not record its call; Warp marks the differentiated function instead
            forced = (f.adj for f in builder.functions if f.adj.force_adjoint_codegen)
            seen.update((id(adjoint), adjoint) for adjoint in forced)
        reached.append((kernel, seen))
    return reached


def function_uses(
    builder: Any, state: BuilderState, names: Mapping[Any, str], reached: list[tuple[Any, dict[int, Any]]]
) -> Iterator[FunctionUse]:
    for kernel, seen in reached:
        name, backward = names[kernel], bool((builder.options | kernel.options)["enable_backward"])
        reason = "the module has enable_backward=False"
        if backward:
            reason = f"kernel '{name}' has a backward pass"
        elif "enable_backward" in kernel.options:
            reason = f"kernel '{name}' has enable_backward=False"
        for adjoint in seen.values():
            if (label := state.existing_label(adjoint)) is None:
                continue
            is_forced = adjoint.force_adjoint_codegen and not backward
            why = f"kernel '{name}' differentiates it with wp.grad()" if is_forced else reason
            yield FunctionUse(name, label, backward or is_forced, why)


def reserve_shared(builder: Any, state: BuilderState, reserved: Mapping[str, tuple[int, int]]) -> list[KernelMemory]:
    """Raises the shared memory of kernels by the bytes of the two passes that a function needs, by its label.

    A negative number of a kernel lowers it, if no statement needs memory behind the tiles.

    Returns the memory of each kernel. For the CPU there is none, and of architectures older than the oldest supported
    one, no limit is known.
    """
    # Warp counts the tiles of a function at its calls, and later operations may move its tiles to shared memory
    for owner in (*builder.functions, *builder.kernels):  # callees come first
        adjoint = owner.adj
        label = state.existing_label(adjoint)
        forward, backward = reserved.get(label, (0, 0)) if label else (0, 0)
        adjoint.alloc_shared_extra(forward)
        adjoint.alloc_shared_extra_backward(backward)
        for callee in adjoint.called_user_functions:
            adjoint.alloc_shared_extra(callee.adj.get_total_required_shared())
            adjoint.alloc_shared_extra_backward(callee.adj.get_total_required_shared())
            adjoint.alloc_shared_extra_backward(callee.adj.get_total_required_shared_backward())
            for custom in (callee.custom_grad_func, callee.custom_replay_func):
                if custom is not None:  # the reverse pass calls it in place of the callee
                    adjoint.alloc_shared_extra_backward(custom.adj.get_total_required_shared())
        if forward < 0 and not adjoint.max_required_extra_shared_memory and not builder.options.get("verify_fp"):
            adjoint.max_required_extra_shared_memory = forward  # verify_fp fills all tiles
    arch, threads = state.session.arch, state.session.block_dim
    memory: list[KernelMemory] = []
    if arch is None or arch < MIN_ARCH:
        return memory
    for kernel, key in names_of(builder.kernels).items():
        adjoint = kernel.adj
        memory.append(KernelMemory.of(key, "forward", adjoint.get_total_required_shared(), arch, threads))
        if id(adjoint) in state.reversed:
            bytes_backward = adjoint.get_total_required_shared_backward()
            memory.append(KernelMemory.of(key, "backward", bytes_backward, arch, threads))
    return memory
