"""The settings of a load are those at its start."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import gemm, load
from warp_tiles._warp.internals import find
from warp_tiles._warp.modules import compile_module, hash_again, loading


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    warp_tiles.configure(policy=None)


def launch(kernel: Any) -> None:
    """Launch a kernel of one product of two 16x16 tiles of twos on the CPU."""
    a = wp.full((16, 16), 2.0, dtype=wp.float32, device="cpu")
    c = wp.zeros((16, 16), dtype=wp.float32, device="cpu")
    wp.launch_tiled(kernel, dim=[1], inputs=[a, a], outputs=[c], block_dim=64, device="cpu")
    assert (c.numpy() == 64.0).all()


def while_compiling(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> list[str]:
    """Make the next compilation of a module wait for a change in another thread. Returns the list of changes."""
    original, changes = find("context.Module")._compile, []

    def compile_(module: Any, *args: Any, **kwargs: Any) -> Any:
        if not changes:
            changes.append(module.name)
            thread = threading.Thread(target=change)
            thread.start()
            thread.join(30)
            assert not thread.is_alive()
        return original(module, *args, **kwargs)

    monkeypatch.setattr(find("context.Module"), "_compile", compile_)
    return changes


@pytest.mark.slow
@pytest.mark.usefixtures("enabled")
def test_a_change_in_another_thread_disturbs_neither_a_launch_nor_a_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with contextlib.ExitStack() as blocks:
        changes: tuple[Callable[[], Any], ...] = (
            lambda: warp_tiles.configure(policy="scalar"),
            lambda: blocks.enter_context(warp_tiles.override(policy="scalar")),
        )
        for change in changes:
            kernels = load(gemm())
            with monkeypatch.context() as patched:
                made = while_compiling(patched, change)
                for _ in range(2):
                    launch(kernels.gemm)
            assert made
            warp_tiles.configure(policy=None)
    kernels = load(gemm())
    while_compiling(monkeypatch, changes[0])
    module = wp.get_module(kernels.__name__)
    cubin = compile_module(module, 90, 64, tmp_path)
    built = [row for row in warp_tiles.report()["modules"] if row.get("output") == cubin.name]
    assert built[-1]["linker"] == "warp_tiles", "a build keeps the settings of its hash"
    assert warp_tiles.plan(module, arch=90, block_dim=64).settings.policy == "scalar"


def test_enable_while_another_thread_loads_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, other = load(gemm()), load(gemm())
    module, inside, go = find("context.Module"), threading.Event(), threading.Event()
    original = module._compile

    @functools.wraps(original)
    def slow(self: Any, *args: Any, **named: Any) -> Any:
        if self.name == kernels.__name__ and not inside.is_set():
            inside.set()
            go.wait(30)
        return original(self, *args, **named)

    monkeypatch.setattr(module, "_compile", slow)
    errors: list[BaseException] = []

    def first() -> None:
        try:
            launch(kernels.gemm)
        except BaseException as error:
            errors.append(error)

    launch(other.gemm)
    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(30)
    with warp_tiles.enabled():
        go.set()
        thread.join(60)
        assert not errors
        for kernel in (other.gemm, kernels.gemm):
            launch(kernel)
            (hasher,) = kernel.module.hashers.values()
            assert hasher.warp_tiles_has_calls, "its hash was computed before enable()"


@pytest.mark.usefixtures("enabled")
def test_a_load_keeps_the_hash_of_its_own_module_alone() -> None:
    mine, other = (wp.get_module(load(gemm()).__name__) for _ in range(2))
    inside, go = threading.Event(), threading.Event()

    def work() -> None:
        with loading(mine):
            inside.set()
            go.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(30)
    assert not hash_again(mine)
    assert hash_again(other)
    go.set()
    thread.join(30)
    assert hash_again(mine)
