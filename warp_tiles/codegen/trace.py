"""What is recorded while Warp generates the code of a module: the traces of its functions, and its call sites.

A :class:`FunctionTrace` is a tree of operations, loops and branches in the order of the user's program. Decisions about
code are pure functions of traces. Their code is written at hooks (:mod:`warp_tiles.codegen.macros`). A trace contains
the numbers of the hooks. Two nodes are equal only if they are the same object.

A :class:`Site` calls device functions. Warp writes their names into the code it generates. While a module is being
generated, every site gets placeholder names instead, which the source's prelude defines: three for a product, one or
two for a solver.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from warp_tiles.codegen.macros import Hook
from warp_tiles.codegen.operations import (
    ELEMENTWISE,
    TUPLE,
    UNKNOWN_MEMORY,
    UNREAD_ASSIGN,
    Effect,
    Operation,
    Scalar,
    Tile,
    Value,
)
from warp_tiles.gemm.problem import PRODUCT_ROLES, GemmProblem, Role
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.settings import Settings, current
from warp_tiles.solver.problem import SOLVERS, Problem


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop of the user's program.

    Attributes:
        kind: ``range``, ``while``, or ``unrolled`` if Warp repeats the body for each iteration.
        hook: Number of the hooks before and after it.
        nodes: Its condition and body.
        wait: Number of the hook before it; None if no load can be in flight there.
        end_wait: Number of the hook at the end of its body; None if no load can be in flight there.
        steps: Start, end and step of a range of constants, if Warp's code generator knows them, else None.
        reverses: True if the reversed loop has hooks before and after it.
        condition: C++ name of the variable that decides about a ``while`` loop; empty if it is unknown.
        iterator: C++ name of the state of a ``range`` loop; if ``steps`` are known, that of the variable's next value.
    """

    kind: Literal["range", "while", "unrolled"]
    line: int
    hook: int
    nodes: tuple[Node, ...]
    variable: str = ""
    wait: int | None = None
    end_wait: int | None = None
    steps: tuple[int, int, int] | None = None
    reverses: bool = False
    condition: str = ""
    iterator: str = ""


@dataclass(frozen=True, eq=False)
class Branch:
    """The body of an ``if`` or ``else``, with hooks before it and at its end like those of a loop.

    ``condition`` is the C++ name of the variable that decides about it.
    """

    nodes: tuple[Node, ...]
    wait: int | None = None
    end_wait: int | None = None
    condition: str = ""


Node = Operation | Loop | Branch


@dataclass(frozen=True)
class FunctionTrace:
    """The trace of a kernel or function.

    Attributes:
        label: Its name, which is unique within the module.
        parameters: C++ names of its parameters, in order.
        end_wait: Number of the hook at its end; None if no load can be in flight there.
        frame: Its tiles with shared memory of their own, in the order in which this memory lies, with their bytes.
    """

    label: str
    file: str
    nodes: tuple[Node, ...]
    parameters: tuple[str, ...] = ()
    end_wait: int | None = None
    frame: tuple[tuple[str, int], ...] = ()

    def operations(self) -> Iterator[Operation]:
        return operations(self.nodes)

    def solver_rows(self) -> int:
        """Most rows of a matrix that its own calls of solver builtins factor or solve with; 0 without such calls."""
        called = (operation for operation in self.operations() if operation.name in SOLVERS)
        return max((tile.shape[0] for operation in called for tile in operation.tiles), default=0)

    def hooks(self) -> Iterator[tuple[Hook, int]]:
        return _hooks(self.nodes, self.end_wait)


@dataclass(frozen=True, eq=False)
class ModuleTrace:
    """The traces of a module.

    Attributes:
        reversed: Labels of the functions whose adjoint is generated.
        kernels_of: Keys of the kernels that reach a function, by its label.
        kernels: Keys of kernels, by their labels. Instances of a generic kernel have one key.
    """

    functions: Mapping[str, FunctionTrace] = field(default_factory=dict)
    reversed: frozenset[str] = frozenset()
    kernels_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)

    def has_frame(self, label: str) -> bool:
        """True if a function, or one that it calls, may have tiles with shared memory of its own."""
        if not label:
            return False
        function = self.functions.get(label)
        return (
            function is None
            or bool(function.frame)
            or any(self.has_frame(operation.callee) for operation in function.operations())
        )

    def largest_tile(self, names: Collection[str]) -> int:
        """Returns the number of elements of the largest tile of some operations."""
        operations = (operation for _, operation in self.operations() if operation.name in names)
        return max((math.prod(tile.shape) for operation in operations for tile in operation.tiles), default=0)

    def contexts(self) -> Iterator[Context]:
        return (Context(self, function) for function in self.functions.values())

    def operations(self) -> Iterator[tuple[Context, Operation]]:
        return ((context, operation) for context in self.contexts() for operation in context.function.operations())


@dataclass(frozen=True, eq=False)
class Context:
    """A function in its module, because the memory of its parameters depends on its callers."""

    module: ModuleTrace
    function: FunctionTrace

    def may_overlap(self, tile: Tile, other: Tile) -> bool:
        """True if two tiles may share memory. Parameters may if a call of the function passes such tiles."""
        if UNKNOWN_MEMORY in tile.memory | other.memory or tile.memory & other.memory:
            return True
        parameters = set(self.function.parameters)
        return any(
            not (isinstance(first, Tile) and isinstance(second, Tile)) or caller.may_overlap(first, second)
            for a in tile.memory & parameters
            for b in other.memory & parameters
            for (caller, _, first), (_, _, second) in zip(self.passed(a), self.passed(b))
        )

    def passed(self, parameter: str) -> list[tuple[Context, Operation, Value | None]]:
        """Returns the callers of the function, each with a call and what it passes; None for what is unknown."""
        at = self.function.parameters.index(parameter)
        return [(caller, call, call.operands[at] if at < len(call.operands) else None) for caller, call in self.calls()]

    def bytes_around(self) -> int:
        """Returns the bytes of shared memory that the callers of the function hold while it runs, at most."""
        callers = {caller.function.label: caller for caller, _ in self.calls()}.values()
        return max((sum(dict(caller.function.frame).values()) + caller.bytes_around() for caller in callers), default=0)

    def calls(self) -> list[tuple[Context, Operation]]:
        return [(caller, call) for caller, call in self.module.operations() if call.callee == self.function.label]


def _hooks(nodes: tuple[Node, ...], end: int | None) -> Iterator[tuple[Hook, int]]:
    for node in nodes:
        if node.wait is not None:
            yield from ((Hook.WAIT, node.wait), (Hook.REPLAY_WAIT, node.wait))
        if isinstance(node, Operation):
            if node.hook is not None:
                yield from ((Hook.AT, node.hook), (Hook.REPLAY, node.hook))
                if node.reverses:
                    yield Hook.ADJOINT, node.hook
                    if node.name in ELEMENTWISE:
                        yield Hook.RECOMPUTE, node.hook
                if node.zeroes:
                    yield Hook.ZERO, node.hook
        elif isinstance(node, Branch):
            yield from _hooks(node.nodes, node.end_wait)
        else:
            yield Hook.BEGIN, node.hook
            yield from _hooks(node.nodes, node.end_wait)
            yield Hook.END, node.hook
            if node.reverses:
                yield from ((Hook.REVERSE_BEGIN, node.hook), (Hook.REVERSE_END, node.hook))
    if end is not None:
        yield from ((Hook.WAIT, end), (Hook.REPLAY_WAIT, end))


def operations(nodes: tuple[Node, ...]) -> Iterator[Operation]:
    """Yields every operation in and below some nodes, in the order of the program."""
    for node in nodes:
        if isinstance(node, Operation):
            yield node
        else:
            yield from operations(node.nodes)


def loops(nodes: tuple[Node, ...], around: tuple[Loop, ...] = ()) -> Iterator[tuple[Loop, tuple[Loop, ...]]]:
    for node in nodes:
        if isinstance(node, Loop):
            yield node, around
            yield from loops(node.nodes, (*around, node))
        elif isinstance(node, Branch):
            yield from loops(node.nodes, around)


def blocks(nodes: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
    """Yields some nodes, and the statements of each loop and branch below them."""
    yield nodes
    for node in nodes:
        if not isinstance(node, Operation):
            yield from blocks(node.nodes)


def own_operations(loop: Loop | Branch) -> Iterator[Operation]:
    for node in loop.nodes:
        if isinstance(node, Operation):
            yield node
        elif isinstance(node, Branch):
            yield from own_operations(node)


def changed_names(loop: Loop) -> set[str]:
    """The names of the variables that the statements of a loop change."""
    return {
        name
        for operation in operations(loop.nodes)
        for name in (*operation.assigned, *(value.name for value in operation.results))
    }


def numbers_of(function: FunctionTrace, operation: Operation) -> list[Scalar]:
    """The numbers that an operation gets, also in tuples, without constants."""
    tuples = {
        made.results[0].name: made.operands for made in function.operations() if made.name == TUPLE and made.results
    }
    values = (value for operand in operation.operands for value in tuples.get(operand.name, (operand,)))
    return [value for value in values if isinstance(value, Scalar) and value.constant is None]


def path_to(nodes: tuple[Node, ...], wanted: Node) -> list[tuple[tuple[Node, ...], int]]:
    """Returns the blocks around a node, outermost first, each with the index of the statement that contains it."""
    for index, node in enumerate(nodes):
        if node is wanted:
            return [(nodes, index)]
        if not isinstance(node, Operation) and (inner := path_to(node.nodes, wanted)):
            return [(nodes, index), *inner]
    return []


# ---- assignments of tiles that nobody reads


def without_unread_assignments(function: FunctionTrace) -> FunctionTrace:
    """Returns a trace in which assignments that nobody reads have no operands and no effect.

    If a loop makes a tile of a name that the function has used before, Warp copies the new tile to the first one at the
    end of each iteration. Two loops of one kernel that use the same names do that. Nobody reads the copy if each reader
    of the first tile follows the statement that makes this tile, in the same block. Warp's adjoint of such a copy
    cannot run.
    """
    targets = {target.name: target for operation in function.operations() if (target := operation.assigned_tile)}
    unread: set[Operation] = set()
    # an assignment to a view may be the last reader of the view's tile
    while fresh := {node for target in targets.values() for node in _unread(function, target, unread)}:
        unread |= fresh
    return replace(function, nodes=_without(function.nodes, unread)) if unread else function


def _unread(function: FunctionTrace, target: Tile, removed: Collection[Operation]) -> list[Operation]:
    """Returns more assignments to a tile that nobody reads. One to a view changes the view, and not its memory."""
    makers = [operation for operation in function.operations() if target in operation.results]
    if len(makers) != 1 or target.parameter:
        return []
    block, index = path_to(function.nodes, makers[0])[-1]
    with_own_value = {makers[0], *operations(block[index + 1 :]), *removed}
    memory = {target.name, UNKNOWN_MEMORY} if target.memory == {target.name} else set()
    others = [
        operation
        for operation in function.operations()
        if operation not in with_own_value
        and any(tile.name == target.name or tile.memory & memory for tile in operation.tiles)
    ]
    return others if all(operation.assigned_tile == target for operation in others) else []


def _without(nodes: tuple[Node, ...], unread: Collection[Operation]) -> tuple[Node, ...]:
    return tuple(
        (replace(node, name=UNREAD_ASSIGN, effect=Effect.NONE, operands=(), results=()) if node in unread else node)
        if isinstance(node, Operation)
        else replace(node, nodes=_without(node.nodes, unread))
        for node in nodes
    )


# ---- call sites


@dataclass(frozen=True)
class Site:
    """One place in the generated code that calls device functions: a product or a solver.

    Attributes:
        index: Number of the site within its module.
        function: Key of the kernel or ``@wp.func`` that contains it.
        problems: The problems by role; empty if no function of this project serves the site.
        scalar_reason: The reason for the scalar path, or for another provider; None if there is none.
        bfloat16_operands: True if A or B is bfloat16. The scalar path has no adjoints for it.
        roles: The functions that the call can name.
        provider: Name of the provider of a site without problems; empty stands for ``scalar``.
        no_gradient: The reason why a solver has no gradient; None if it has one.
    """

    index: int
    call: str
    function: str
    problems: Mapping[Role, Problem]
    scalar_reason: Rejected | None = None
    bfloat16_operands: bool = False
    roles: tuple[Role, ...] = PRODUCT_ROLES
    provider: str = ""
    no_gradient: Rejected | None = None
    own_adjoint: bool = False

    @property
    def is_solver(self) -> bool:
        return Role.ADJOINT_A not in self.roles

    @property
    def is_tf32(self) -> bool:
        """True for a product that rounds float32 to tf32."""
        forward = self.problems.get(Role.FORWARD)
        return isinstance(forward, GemmProblem) and forward.precision == "tf32"

    def placeholder(self, role: Role) -> str:
        """The name of one function of this site in the generated source."""
        return f"wt_site{self.index}_{role.value}"


@dataclass(frozen=True)
class FunctionUse:
    """The use of a function with sites by one kernel.

    Attributes:
        function: Key of the function (the kernel's own key for its own sites).
        backward: True if the adjoint of this kernel can run the adjoint of the function.
        reason: The reason why it can or cannot.
    """

    kernel: str
    function: str
    backward: bool
    reason: str


@dataclass
class Session:
    """The sites found so far in a module that is being generated."""

    module: str
    arch: int | None
    block_dim: int
    sites: list[Site] = field(default_factory=list)
    settings: Settings = field(default_factory=current)

    def add(self, call: str, function: str, problems: Mapping[Role, Problem], **facts: Any) -> Site:
        """Add a site with the fields of :class:`Site`, and return it with its placeholders."""
        self.sites.append(Site(len(self.sites), call, function, dict(problems), **facts))
        return self.sites[-1]

    def on_scalar_path(self, reasons: Mapping[int, Rejected]) -> Session:
        """The same with some sites on the scalar path, for the reasons by their numbers."""
        taken = {index: replace(self.sites[index], problems={}, scalar_reason=why) for index, why in reasons.items()}
        return replace(self, sites=[taken.get(site.index, site) for site in self.sites])

    def without_async_copies(self) -> Session:
        """The same under the setting that leaves loads, and so the memory of loops, to Warp."""
        return replace(self, settings=replace(self.settings, async_copies=False))
