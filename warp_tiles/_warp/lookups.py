"""Modules that are found by their start keys, and when those without products and solvers pass through the cache.

The start key covers all that Warp generates the source from, and for modules with products what their plans follow
from. Warp's own hash is a part of it, but it narrows constants to 32 bits, which the source prints in full, and covers
neither Warp's files nor the target.
"""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import hashlib
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_args, get_origin

import warp

from warp_tiles._warp.internals import find
from warp_tiles._warp.modules import hash_again, names_of, user_modules
from warp_tiles._warp.reload import Reloads, target_of, this_thread
from warp_tiles.errors import ToolchainError, suppressed, unless_signalled
from warp_tiles.gemm.rejected import Refused, Rejected, refuse, rejectable
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.store.key import CacheKey

if TYPE_CHECKING:
    from warp_tiles.build.context import BuildContext
    from warp_tiles.build.engine import Engine
    from warp_tiles.build.module_build import KnownModuleBuild
    from warp_tiles.build.warp_module import Start, WarpModuleBuild
    from warp_tiles.settings import Settings


class ModuleLookups:
    """Looks modules up by their start keys before their generation, and makes the builds of those that it serves."""

    def __init__(self, engine: Engine, reloads: Reloads) -> None:
        self._engine = engine
        self._reloads = reloads
        self._generator = ""

    @staticmethod
    def serves(settings: Settings) -> bool:
        return settings.all_modules and settings.policy != "off"

    def settings(self, module: Any, options: Mapping[str, Any]) -> Settings | None:
        """The settings of a module that passes through the cache; None for one that is left to Warp."""
        hasher = module.hashers.get(int(options["block_dim"]))  # None for a module with the option strip_hash
        if options.get("output_arch") is None or getattr(hasher, "warp_tiles_has_calls", False):
            return None
        resolved = self._reloads.settings_of(options, module)
        if not (self.serves(resolved) or self.is_looked_up(module, resolved)) or not warp.config.cache_kernels:
            return None
        from warp_tiles.build.warp_module import say_left_to_warp
        from warp_tiles.compile.module import reason_left_to_warp

        if reason := reason_left_to_warp(options):
            if not this_thread.ahead and self.serves(resolved):  # the program may never launch it
                say_left_to_warp(reason)
            return None
        return resolved if hasattr(hasher, "warp_tiles_hash") else None  # without, it was hashed before enable()

    @rejectable
    def linked_settings(self, module: Any, options: Mapping[str, Any]) -> Settings:
        """The settings of a module with products or solvers that may be known as linked."""
        from warp_tiles.compile.module import reason_left_to_warp

        hasher = module.hashers.get(int(options["block_dim"]))
        refuse(options.get("output_arch") is None or not getattr(hasher, "warp_tiles_has_calls", False), "no_calls")
        resolved: Settings = hasher.warp_tiles_settings
        may_be_kept = resolved.policy != "off" and (resolved.keeps_modules or self.is_looked_up(module, resolved))
        refuse(not may_be_kept, "kept_nowhere")
        refuse(not warp.config.cache_kernels, "kernels_not_cached")
        refuse(resolved.rules.tunes, "tuned_first")
        refuse(bool(reason := reason_left_to_warp(options)), "left_to_warp", reason)
        hasher.get_hash()
        # the generation loads it again
        refuse(hasher.get_hash.choices != self._engine.choices(resolved), "changed_since_hash")
        return resolved

    def is_looked_up(self, module: Any, resolved: Settings) -> bool:
        return self._engine.build_context(resolved).is_looked_up(str(module.name))

    def look_up(self, module: Any, options: Mapping[str, Any]) -> Start | Rejected | None:
        """Look a module up before its code is generated. Not a Start if it has to be generated in any case."""
        for name in ("deterministic", "verify_autograd_array_access"):
            if options.get(name):  # the former has effects on launches, the latter on what is printed
                return Rejected("generation_has_effects", (name,))
        from warp_tiles.build.warp_module import look_up

        linked = self.linked_settings(module, options)
        if not isinstance(linked, Rejected):
            resolved, context = linked, self._engine.build_context(linked)
            if isinstance(key := self.start_key(module, options, context), Rejected):
                return key
            ahead, listener = this_thread.ahead, self._engine.program_start
            asks = resolved.all_modules and not ahead and listener is None
            start = look_up(context, key, asks=asks)
            if start.found is None:
                return start if resolved.keeps_modules else None  # nothing will bind the key of another one
            if start.found.linked is None and (ahead or listener is not None):
                return Rejected("without_functions")
            return start
        if (settings := self.settings(module, options)) is None:
            return linked
        context = self._engine.build_context(settings)
        is_new = context.facts.digests.is_empty  # so no entry is expected, and the digests take time
        compiles, name = settings.all_modules, str(module.name)
        if is_new and compiles:
            self._engine.start_compilers(settings, name)
        key = self.start_key(module, options, context)
        # a network request would hold Warp's generator lock, so a module that no launch has asked for is looked up here
        asks = compiles and not this_thread.ahead
        found = key if isinstance(key, Rejected) else look_up(context, key, asks=asks)
        if compiles and not is_new and (isinstance(found, Rejected) or found.found is None):
            self._engine.start_compilers(settings, name)  # while Warp generates the code
        return found

    @rejectable
    def start_key(self, module: Any, options: Mapping[str, Any], context: BuildContext) -> CacheKey:
        """The key over all that a module's source and binary follow from, if it knows all of that exactly."""
        from warp_tiles.compile.module import names_in_code, warp_library

        digests = context.facts.digests
        native_dir = str(Path(find("build.warp_home"), "native"))
        hasher, target = module.hashers.get(int(options["block_dim"])), target_of(module, options)
        refuse(not target or hasher is None, "changed_since_hash")  # by another thread
        try:
            with find("codegen._codegen_lock"):
                kernels = exact_hashes(hasher)
            linked = {}
            if hasher.warp_tiles_has_calls:
                linked = {"compiler": context.facts.compiler_digest(), "linker": context.facts.linker_digest()}
            self._generator = self._generator or digests.digest_folder(Path(find("build.warp_home"), "_src"), "*.py")
            headers, library = digests.digest_folder(Path(native_dir), "*.h"), digests.digest(warp_library())
        except unless_signalled(ToolchainError) as error:
            remedy = error.remedy or "see warp-tiles doctor"
            raise Refused(Rejected("toolchain_missing", (error.message, remedy))) from error
        except unless_signalled(OSError) as error:
            raise Refused(Rejected("unreadable_file", (error,))) from error
        except unless_signalled(TypeError, ValueError, AttributeError) as error:
            raise Refused(Rejected("unknown_kind", (error,))) from error
        digest = hasher.get_hash() if linked else hasher.warp_tiles_hash
        return CacheKey.of({
            **linked,
            "generator": self._generator,
            "headers": headers,
            "kernels": kernels,
            "kind": "start of a module of Warp",
            "module": digest.hex(),
            "names": names_in_code(program_name(module, hasher), native_dir, verify_fp=options["verify_fp"]),
            "options": [f"{name}={value!r}" for name, value in sorted(options.items())],
            "python": ".".join(platform.python_version_tuple()[:2]),
            "target": target,
            "warp": library,
        })  # fmt: skip

    def unchanged(
        self, start: Start | Rejected | None, module: Any, options: Mapping[str, Any], resolved: Settings
    ) -> Start | Rejected | None:
        """A lookup, asked for after the generation. A rejection if it found nothing and its key is another one now."""
        if start is None or isinstance(start, Rejected) or start.found is not None:
            return start
        hasher = module.hashers.get(int(options["block_dim"]))
        has_calls = getattr(hasher, "warp_tiles_has_calls", False)
        if has_calls and isinstance(linked := self.linked_settings(module, options), Rejected):
            return linked  # settings or tuning records have changed
        key = self.start_key(module, options, self._engine.build_context(resolved))
        return start if key == start.key else key if isinstance(key, Rejected) else Rejected("late_static")

    def build(
        self,
        module: Any,
        options: Mapping[str, Any],
        start: Start | Rejected | None,
        meta: Callable[[], Mapping[str, Any]],
    ) -> WarpModuleBuild | KnownModuleBuild | None:
        """The build of a module after its lookup. None if it is left to Warp, or has changed since.

        Args:
            meta: Returns the metadata of a module that was generated just now, or of the one that its start key found.
        """
        threads = int(options["block_dim"])
        hasher, linked = module.hashers.get(threads), self.linked_settings(module, options)
        resolved = self.settings(module, options) if isinstance(linked, Rejected) else linked
        if resolved is None or hasher is None:
            return None
        kernels = tuple(names_of(hasher.get_unique_kernels()).values())
        plan = ModulePlan(str(module.name), int(options["output_arch"]), threads, kernels, (), resolved)
        if not isinstance(linked, Rejected):
            from warp_tiles.build.module_build import KnownModuleBuild

            if start is None or isinstance(start, Rejected) or start.found is None:
                return None
            return KnownModuleBuild(self._engine, plan, start, start.found)
        start = self.unchanged(start, module, options, resolved)
        from warp_tiles.build.warp_module import WarpModuleBuild

        return WarpModuleBuild(self._engine, plan, program_name(module, hasher), meta(), start)


def program_name(module: Any, hasher: Any) -> str:
    """The name of a module's source: of a plain one, that in unmodified Warp."""
    digest = hasher.get_hash() if hasher.warp_tiles_has_calls else hasher.warp_tiles_hash
    return f"wp_{module.name}_{digest.hex()[:7]}.cu"


def program_at_launch(module: Any, threads: int) -> str:
    """The name of the source that a launch would generate now. The module is left without a hash."""
    with find("codegen._codegen_lock"), this_thread(ahead=True):
        hash_again(module)
        try:
            module.get_module_hash(threads)
            return program_name(module, module.hashers[threads])
        finally:
            hash_again(module)


def loaded_programs() -> set[tuple[str, int, int]]:
    """What is loaded on GPUs: the name of each module's source, its block size and architecture."""
    loaded = set()
    for module in user_modules().values():
        for execution in tuple(module.execs.values()):
            hasher = module.hashers.get(execution.block_dim)
            if not execution.device.is_cpu and hasattr(hasher, "warp_tiles_hash"):
                loaded.add((program_name(module, hasher), int(execution.block_dim), int(execution.compile_arch)))
    return loaded


def gpus_here() -> dict[int, Any]:
    """A GPU of this machine for each architecture that modules are compiled for; empty without one."""
    return {int(device.get_cuda_compile_arch()): device for device in reversed(warp.get_cuda_devices())}


def in_kernel_cache(file: str) -> bool:
    return os.path.isfile(os.path.join(str(warp.config.kernel_cache_dir), file))


# ---- hashes with constants at their full width

_OPERATORS = [name for name, value in vars(int).items() if name.startswith("__") and callable(value)]
_OPERATIONS = (
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Constant,
    ast.boolop, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip


def exact_hashes(hasher: Any) -> list[str]:
    """For each kernel of a module, Warp's hash and one of all constants and types that the kernel reaches.

    Only for ``rejectable`` functions, because it refuses a constant of an unknown type.
    """
    exact = _exact_hasher()
    return [f"{warps.hex()} {exact.hash_adjoint(kernel.adj).hex()}" for warps, kernel in hasher.unique_kernels.items()]


def _exact_hasher() -> Any:
    base = find("context.ModuleHasher")

    class ExactHasher(base):  # type: ignore[misc, valid-type]
        """Follows functions as Warp's hasher does. What Warp hashes exactly is left out."""

        def __init__(self) -> None:  # Warp's sets the hashes of kernels
            self.function_hashes: dict[Any, bytes] = {}
            self.functions_in_progress: set[Any] = set()

        def hash_adjoint(self, adjoint: Any) -> bytes:
            constants, types, functions = adjoint.get_references()
            named = _named_values(adjoint)
            values = [*constants.items(), *adjoint.resolved_static_expressions.items(), *named]
            values += _evaluated_late(adjoint, dict(named))
            defaults = *(adjoint.func.__defaults__ or ()), *(adjoint.func.__kwdefaults__ or {}).values()
            values += [(f"default {number}", value) for number, value in enumerate(defaults) if value is not None]
            parts = [_exact_type(kind) for kind in (*adjoint.arg_types.values(), *types)]
            for name, value in values:
                try:
                    parts.append(f"{name}={_exact_value(value, self._bytes_of)}")
                except unless_signalled(TypeError, ValueError, AttributeError):
                    refuse(True, "unknown_value", name, adjoint.fun_name)
            parts += [self._bytes_of(function).hex() for function in functions]
            return hashlib.sha256(repr(parts).encode("utf-8")).digest()

        def hash_function(self, function: Any) -> bytes:
            """Refuses a function if an instance of it has other values of ``wp.static`` than its definition.

            Warp evaluates them again for each new instance, and its hash covers those of the definition.
            """
            if function not in self.function_hashes:
                self.function_hashes[function] = super().hash_function(function)
                overloads = [*function.user_overloads.values(), *function.user_templates.values()]
                made = [(each, each.generic_parent) for each in overloads if each.generic_parent is not None]
                made += [
                    (special, each)
                    for each in overloads
                    for special in getattr(each, "_callable_specializations", {}).values()
                ]
                for instance, template in made:
                    is_other = self._statics(instance.adj) != self._statics(template.adj)
                    refuse(is_other, "static_of_instances", instance.adj.fun_name)
            return self.function_hashes[function]

        def _statics(self, adjoint: Any) -> dict[str, str]:
            values = adjoint.resolved_static_expressions.items()
            return {code: _exact_value(value, self._bytes_of) for code, value in values}

        def _bytes_of(self, value: Any) -> bytes:
            """A function by its content, a builtin by its name, and any other constant as Warp's hash has it."""
            if not hasattr(value, "is_builtin"):
                return self.get_constant_bytes(value)  # type: ignore[no-any-return]
            if value.is_builtin():
                return str(value.key).encode("utf-8")
            is_open = value in self.functions_in_progress  # a recursion, whose function is hashed further out
            return str(value.key).encode("utf-8") if is_open else self.hash_function(value)

    return ExactHasher()


def _named_values(adjoint: Any) -> list[tuple[str, Any]]:
    """What a function refers to without calling it. Warp's hash has only numbers, vectors and matrices of these."""
    nodes, values = adjoint.reference_nodes(), []
    not_whole = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    not_whole |= {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    decorators = getattr(adjoint.tree.body[0], "decorator_list", ())
    not_whole |= {id(node) for decorator in decorators for node in ast.walk(decorator)}
    local = adjoint.assigned_name_ids() | set(adjoint.arg_types)
    for node in nodes:
        path = ast.unparse(node).split(".") if isinstance(node, (ast.Name, ast.Attribute)) else []
        if id(node) in not_whole or not all(map(str.isidentifier, path)) or not path or path[0] in local:
            continue
        value = adjoint.resolve_external_reference(path[0])
        if value is None:
            value = getattr(warp, path[0], None)
        for name in path[1:]:
            value = getattr(value, name, None)
        if value is not None and not isinstance(value, ModuleType):
            values.append((".".join(path), value))
    return values


def _evaluated_late(adjoint: Any, named: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The deferred ``wp.static`` expressions and their values, without those that follow from the source and ``named``.

    Warp evaluates the ones of functions in other modules only while it generates the code, and those of generic
    functions and of functions that take functions apart for each instance, which no hash covers. Refuses if these do
    not follow.
    """
    if not adjoint.has_unresolved_static_expressions:
        return []
    follow = functools.partial(_follows, context=adjoint.get_static_evaluation_context(), named=named)
    is_generic, function = find("types.type_is_generic"), find("context.Function")
    if any(kind is function or is_generic(kind) for kind in adjoint.arg_types.values()):
        for node in adjoint.reference_nodes():
            if isinstance(node, ast.Call) and _is_static(adjoint, node.func):
                given = (*node.args, *(keyword.value for keyword in node.keywords))
                refuse(not all(map(follow, given)), "static_of_instances", adjoint.fun_name)
        return []
    deferred = adjoint.deferred_static_expressions
    return [(code, value) for code, value in deferred if not follow(ast.parse(code, mode="eval").body)]


def _is_static(adjoint: Any, callee: ast.expr) -> bool:
    with suppressed(Exception):  # Warp reports the unresolvable name later
        return adjoint.resolve_static_expression(callee, eval_types=False)[0] is warp.static
    return False


def _follows(node: ast.AST, context: Mapping[str, Any], named: Mapping[str, Any]) -> bool:
    """True if an expression only operates on constants of its function and on named numbers and texts."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        path = ast.unparse(node)
        if path.partition(".")[0] not in context:  # Warp evaluates it with the constants of the function
            return isinstance(node, ast.Name) and not hasattr(builtins, node.id)
        return _has_usual_operators(named.get(path))
    return isinstance(node, _OPERATIONS) and all(_follows(part, context, named) for part in ast.iter_child_nodes(node))


def _has_usual_operators(value: Any) -> bool:
    """True for a number or a text whose operators are Python's, so that their results follow from its value."""
    kind = type(value)
    base = next((base for base in (enum.IntFlag, enum.IntEnum) if isinstance(value, base)), kind)
    if base not in (bool, int, float, str, enum.IntEnum, enum.IntFlag):
        return False
    # other boundaries of flags depend on all members
    keeps_bits = getattr(kind, "_boundary_", None) in (None, "keep")
    return keeps_bits and all(getattr(kind, name) is getattr(base, name) for name in _OPERATORS if base is not kind)


def _exact_type(kind: Any) -> str:
    """The name, shape and scalar of a type, with those of its fields, elements and arguments."""
    inner = [getattr(kind, "dtype", None), *getattr(kind, "types", ()), get_origin(kind), *get_args(kind)]
    if hasattr(kind, "native_name"):
        inner += [part for name, field in kind.vars.items() for part in (name, field.type)]
    parts = [getattr(kind, "__qualname__", type(kind).__qualname__), getattr(kind, "_shape_", None)]
    parts += [getattr(kind, name, None) for name in ("ndim", "native_name", "shape", "strides", "storage", "layout")]
    parts += [getattr(getattr(kind, "_wp_scalar_type_", None), "__name__", None)]
    parts += [part if isinstance(part, str) else _exact_type(part) for part in inner if part is not None]
    return repr(parts)


def _exact_value(value: Any, others: Callable[[Any], bytes]) -> str:
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return repr([_exact_value(element, others) for element in value])
    # a function's annotation may name typing.Tuple, which is no class
    if isinstance(value, type) or hasattr(value, "native_name") or get_origin(value) is tuple:
        return _exact_type(value)
    number = getattr(value, "value", value)
    if isinstance(number, int):
        text = str(int(number))
    else:
        text = float(number).hex() if isinstance(number, float) else others(value).hex()
    return f"{_exact_type(type(value))}:{text}"
