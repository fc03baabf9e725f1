"""``warp_tiles.prefetch()``: modules that are compiled side by side before a fake GPU loads them."""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from benchmarks.stand_in import ALIAS, StandIn
from tests.integration.ahead_modules import PLAIN, plain, warp_module
from tests.integration.helpers import FORWARD_ONLY, gemm, load
from tests.waiting import until
from warp_tiles._warp import installed
from warp_tiles._warp.internals import find
from warp_tiles._warp.reload import Prefetches
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.errors import PlanError
from warp_tiles.settings import current
from warp_tiles.util.threads import PREFETCH, START_LIST, wait_all


class Compiler:
    """In place of Warp's compiler: counts its calls by thread. A test can hold them back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.calls: list[str] = []
        build = find("build")

        @functools.wraps(build.build_cuda)
        def build_cuda(cu_path: str, arch: int, output_path: str, *_: Any, **__: Any) -> None:
            self.calls.append(threading.current_thread().name)
            assert self.open.wait(60)
            Path(output_path).write_bytes(b"a cubin")

        monkeypatch.setattr(build, "build_cuda", build_cuda)

    @property
    def ahead(self) -> list[bool]:
        """For each call, whether a thread of prefetch() made it."""
        return [name.startswith("warp_tiles_queue") for name in self.calls]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    return Compiler(monkeypatch)


@pytest.fixture
def device(compiler: Compiler, stand_in: StandIn, tmp_path: Path) -> Iterator[StandIn]:
    """warp_tiles with an empty cache, around a compiler that counts its calls."""
    warp_tiles.disable()
    with warp_tiles.override(cache_dir=tmp_path / "lto", progress="off", jobs=2), warp_tiles.enabled():
        yield stand_in
        compiler.open.set()


def prefetches() -> Prefetches:
    return installed().reloads.prefetches


def wait_for_all() -> None:
    until(lambda: not prefetches().pending)


def test_prefetches_come_before_a_start_list(device: StandIn) -> None:
    queue, done, end = installed().engine.build_context(current()).queue, list[str](), threading.Event()
    running = [queue.submit(end.wait, 30) for _ in range(2)]
    waiting = [
        queue.submit(done.append, text, order=order) for order, text in ((START_LIST, "list"), (PREFETCH, "first"))
    ]
    waiting.append(queue.submit(done.append, "second", order=PREFETCH))
    end.set()
    wait_all([*running, *waiting])
    assert done == ["first", "second", "list"]


@pytest.mark.parametrize("is_unique", [False, True])
def test_a_launch_finds_the_compiled_file(device: StandIn, compiler: Compiler, is_unique: bool) -> None:
    if is_unique:  # Warp has hashed it to name it
        text = PLAIN.format(value=1, more="", backward=False, expression="float(N)")
        module = load(text.replace("(enable", '(module="unique", enable')).plain.module
    else:
        module = warp_module(plain())
    assert bool(module.hashers) is is_unique
    assert installed().prefetch([module], ALIAS, None) == 1
    wait_for_all()
    assert not module.hashers, "its hash is discarded"
    assert not device.loaded, "nothing is loaded ahead"
    module.load(ALIAS)
    assert compiler.ahead == [True]
    assert len(device.loaded) == 1


@pytest.mark.usefixtures("digesting")
def test_products_are_built_ahead(device: StandIn, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    module, flags, submit = load(gemm(decorator=FORWARD_ONLY)), list[bool](), CompilerPool.submit

    def note(pool: CompilerPool, request: Any, *, ahead: int = 0) -> Any:
        flags.append(ahead == PREFETCH)
        return submit(pool, request, ahead=ahead)

    monkeypatch.setattr(CompilerPool, "submit", note)
    warp_tiles.prefetch(module, device=ALIAS)
    wait_for_all()
    assert flags == [True] * len(flags) != [], "launches come first"
    device.load(module.__name__)
    (report,) = warp_tiles.report()["modules"]
    assert (report["linker"], report["lto_builds"]) == ("warp_tiles", 1)
    assert not compiler.calls, "this package links the module"


def test_a_launch_waits_for_its_module(device: StandIn, compiler: Compiler) -> None:
    module = plain()
    compiler.open.clear()
    warp_tiles.prefetch(module, device=ALIAS)
    until(lambda: len(compiler.calls) == 1)  # else the launch compiles it
    launch = threading.Thread(target=device.load, args=(module.__name__,), daemon=True)
    launch.start()
    launch.join(0.3)
    assert launch.is_alive()
    compiler.open.set()
    launch.join(60)
    assert compiler.ahead == [True], "it was compiled once"
    assert len(device.loaded) == 1


def test_a_launch_does_not_wait_for_modules_before_its_own(device: StandIn, compiler: Compiler) -> None:
    modules = [plain(value) for value in range(3)]
    compiler.open.clear()
    warp_tiles.prefetch(*modules, device=ALIAS)  # two threads, so the third module has to wait
    until(lambda: len(compiler.calls) == 2)
    threading.Timer(0.3, compiler.open.set).start()
    device.load(modules[2].__name__)
    wait_for_all()
    assert compiler.ahead == [True, True, False]


# ---- changes after the prefetch


@pytest.mark.parametrize("expression", ["float(N)", "float(N + 1)"])
def test_a_constant_that_changes_later_counts(device: StandIn, compiler: Compiler, expression: str) -> None:
    module = plain(1, expression)
    warp_tiles.prefetch(module, device=ALIAS)
    wait_for_all()
    module.N = 2  # type: ignore[attr-defined]
    device.load(module.__name__)
    assert compiler.ahead == [True, False], "Warp reads the value when it first loads the module"


def make_loaded(device: StandIn, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device.load(module.name)


def defer_statics(device: StandIn, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module.has_unresolved_static_expressions = True


def strip_hash(device: StandIn, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module.options["strip_hash"] = True


def cache_nothing(device: StandIn, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp.config, "cache_kernels", False)


@pytest.mark.parametrize("change", [make_loaded, defer_statics, strip_hash, cache_nothing])
def test_what_a_launch_has_or_could_not_reuse_is_left_to_it(
    device: StandIn, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    module = plain()
    change(device, warp_module(module), monkeypatch)
    assert warp_tiles.prefetch(module, device=ALIAS) == 0
    device.load(module.__name__)
    assert compiler.ahead == [False]
    assert len(device.loaded) == 1


# ---- changes during the prefetch


class Gate:
    """Holds threads of prefetch() between the hash of a module and its code generation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        module = find("context.Module")
        original = module._run_codegen

        def run_codegen(*args: Any, **named: Any) -> Any:
            if threading.current_thread().name.startswith("warp_tiles_queue"):
                self.reached.set()
                assert self.open.wait(60)
            return original(*args, **named)

        monkeypatch.setattr(module, "_run_codegen", run_codegen)


@pytest.fixture
def gate(device: StandIn) -> Iterator[Gate]:
    with pytest.MonkeyPatch.context() as patch:  # it ends before warp_tiles is disabled
        found = Gate(patch)
        yield found
        found.open.set()


def cubins() -> list[Path]:
    return sorted(Path(wp.config.kernel_cache_dir).rglob("*.cubin"))


def test_code_of_a_constant_that_changes_meanwhile_is_not_stored(
    device: StandIn, compiler: Compiler, gate: Gate
) -> None:
    module = plain(1)
    warp_tiles.prefetch(module, device=ALIAS)
    assert gate.reached.wait(60)
    module.N = 2  # type: ignore[attr-defined]
    gate.open.set()
    wait_for_all()
    assert not compiler.calls
    assert not cubins()
    module.N = 1  # type: ignore[attr-defined]
    device.load(module.__name__)
    assert compiler.ahead == [False]


def test_code_of_a_setting_that_changes_meanwhile_is_not_stored(device: StandIn, gate: Gate) -> None:
    module = load(gemm(decorator=FORWARD_ONLY))
    with warp_tiles.override(provider="scalar"):
        warp_tiles.prefetch(module, device=ALIAS)
        assert gate.reached.wait(60)
    gate.open.set()
    wait_for_all()
    assert not cubins()


def test_a_setting_that_changes_during_a_load_counts(device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(gemm(decorator=FORWARD_ONLY))
    original = find("context.Module")._run_codegen
    blocks = [warp_tiles.override(provider="scalar")]

    def run_codegen(*args: Any, **named: Any) -> Any:
        if blocks:
            blocks.pop().__enter__()
        return original(*args, **named)

    override = blocks[0]
    try:
        with monkeypatch.context() as patch:  # it ends before warp_tiles is disabled
            patch.setattr(find("context.Module"), "_run_codegen", run_codegen)
            loaded = device.load(module.__name__)
        assert loaded.module_hash == warp_module(module).get_module_hash(64), "the name is that of the code"
        (report,) = (m for m in warp_tiles.report()["modules"] if m["builds"] or m["provider"] == "scalar")
        assert report["provider"] == "scalar"
    finally:
        override.__exit__(None, None, None)


def test_compiling_ahead_of_time_waits_for_a_prefetch(device: StandIn, gate: Gate, tmp_path: Path) -> None:
    module = plain()
    warp_tiles.prefetch(module, device=ALIAS)
    assert gate.reached.wait(60)
    threading.Timer(0.3, gate.open.set).start()
    wp.compile_aot_module(warp_module(module), arch=90, module_dir=tmp_path / "aot", strip_hash=True)
    assert gate.open.is_set()
    assert not cubins(), "the options changed"


def test_a_thread_that_holds_the_lock_of_the_code_generator_does_not_wait(device: StandIn, gate: Gate) -> None:
    module = plain()
    warp_tiles.prefetch(module, device=ALIAS)
    assert gate.reached.wait(60)
    with find("codegen._codegen_lock"):
        device.load(module.__name__)
    assert not gate.open.is_set()
    assert len(device.loaded) == 1


def test_a_forked_child_gets_the_lock_of_the_code_generator(device: StandIn) -> None:
    lock, held, release = find("codegen._codegen_lock"), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            release.wait(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(timeout=5) else 1)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with lock:
        pass


def test_an_error_is_reported_by_the_launch(device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("on purpose")

    module = plain()
    monkeypatch.setattr(find("build"), "build_cuda", refuse)
    warp_tiles.prefetch(module, device=ALIAS)
    wait_for_all()
    with pytest.raises(RuntimeError, match="on purpose"):
        device.load(module.__name__)


def test_bad_input(device: StandIn) -> None:
    with pytest.raises(PlanError, match="no_such_module"):
        warp_tiles.prefetch("no_such_module")
    warp_tiles.disable()
    with pytest.raises(PlanError, match="enabled"):
        warp_tiles.prefetch()


def test_disable_waits_for_running_compilers_and_cancels_the_rest(device: StandIn, compiler: Compiler) -> None:
    modules = [plain(value) for value in range(4)]
    compiler.open.clear()
    warp_tiles.prefetch(*modules, device=ALIAS)
    until(lambda: len(compiler.calls) == 2)
    threading.Timer(0.3, compiler.open.set).start()
    warp_tiles.disable()
    assert compiler.open.is_set(), "it waited"
    assert len(compiler.calls) == 2
    assert not [t for t in threading.enumerate() if t.name.startswith("warp_tiles_queue") and _busy(t)]


def _busy(thread: threading.Thread) -> bool:
    thread.join(5)
    return thread.is_alive()
