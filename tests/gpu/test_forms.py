"""The kernels that the emulator launches too, on a GPU: loop forms, stores, blocked solves, random kernels."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests import reductions
from tests.blocked_solves import BLOCKS, MOST, text
from tests.chain_forms import FORMS as CHAINS
from tests.computed_kernels import BODIES, REVERSED, SIZES, TYPES, Case, Values
from tests.emulator import test_chains as chains
from tests.emulator import test_computed_stores as computed
from tests.emulator import test_loop_forms as loops
from tests.emulator import test_reductions as row_reductions
from tests.emulator import test_store_adjoints as adjoints
from tests.emulator.test_kernels import check_blocked
from tests.gpu.device import DeviceKernels
from tests.integration.helpers import load
from tests.loop_forms import FORMS, SPELLINGS, in_half
from tests.nested_forms import NESTED_FORMS
from tests.random_kernels import shared_names
from tests.random_kernels.execute import difference, execute, import_kernel, of_model, prepare
from tests.random_kernels.generate import draw

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]
OPTIONS: dict[str, dict[str, Any]] = {
    "lineinfo": {"lineinfo": True},
    "fast_math": {"fast_math": True},
    "max_unroll": {"max_unroll": 4},
    "debug": {"mode": "debug"},
    "opted out": {"enable_mathdx_gemm": False},
}


# ---- loops of products: results and gradients are exact, whatever the plan decides


@pytest.mark.parametrize("name", FORMS)
def test_loops(name: str, gpu: str) -> None:
    kernels = DeviceKernels(FORMS[name].text, gpu, names={name: "multiply"})
    loops.check(kernels, name, FORMS[name])


@pytest.mark.parametrize("name", loops.HALF)
def test_loops_of_float16_operands(name: str, gpu: str) -> None:
    kernels = DeviceKernels(in_half(FORMS[name].text), gpu, names={name: "multiply"})
    loops.check(kernels, name, FORMS[name], "float16")


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("options", OPTIONS)
def test_options(name: str, options: str, gpu: str) -> None:
    kernels = DeviceKernels(SPELLINGS[name].text, gpu, 128, names={name: "multiply"}, options=OPTIONS[options])
    loops.check(kernels, name, SPELLINGS[name])


@pytest.mark.parametrize("name", NESTED_FORMS)
def test_nested_loops(name: str, gpu: str) -> None:
    kernels = DeviceKernels(NESTED_FORMS[name].text, gpu, names={name: "multiply"})
    loops.check(kernels, name, NESTED_FORMS[name])


# ---- stores of computed tiles, and their adjoints


@pytest.mark.parametrize("out", TYPES)
@pytest.mark.parametrize("form", BODIES)
def test_computed_stores(form: str, out: str, gpu: str) -> None:
    case = Case(form, out, "whole")
    kernels = DeviceKernels(case.functions() + case.text("store"), gpu, names={form: "store"})
    computed.check(kernels, form, out)


@pytest.mark.parametrize("out", adjoints.TYPES)
def test_store_gradients(out: str, gpu: str) -> None:
    kernels = DeviceKernels(adjoints.text_of(out), gpu, names=adjoints.NAMES)
    for form in adjoints.FORMS:
        adjoints.check_form(kernels, form, out)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", REVERSED)
def test_rounding_and_gradients_are_those_of_warp(form: str, size: str, gpu: str) -> None:
    """The compiler may fuse a product and a sum in one of the kernels only."""
    for ours, warps in zip(_rounded(form, size, gpu, hooked=True), _rounded(form, size, gpu, hooked=False)):
        assert np.any(warps != 0)
        np.testing.assert_allclose(ours, warps, rtol=2e-3, atol=2e-3)


def _rounded(form: str, size: str, gpu: str, *, hooked: bool) -> list[Values]:
    """C and the gradients of A and B."""
    out, source = REVERSED[form]
    a, b, before, _ = Case("direct", out, size).arrays()
    with warp_tiles.enabled() if hooked else nullcontext():
        kernel = load(source, block_dim=64).rounded
        arrays = [wp.array(values, device=gpu, requires_grad=True) for values in (a, b, before)]
        with wp.Tape() as tape:
            wp.launch_tiled(kernel, dim=(2, 2), inputs=[*arrays, 1], block_dim=64, device=gpu)
        stored = arrays[2].numpy()
        arrays[2].grad = wp.array(np.ones_like(before), device=gpu)
        tape.backward()
        return [stored, arrays[0].grad.numpy(), arrays[1].grad.numpy()]


# ---- reductions of rows: equal to Warp's in all bits


@pytest.mark.parametrize("threads", [64, 128])
@pytest.mark.parametrize("size", reductions.SIZES, ids=str)
def test_row_reductions(size: tuple[int, int], threads: int, gpu: str) -> None:
    text = reductions.text(*size)
    ours, warps = DeviceKernels(text, gpu, threads), DeviceKernels(text, gpu, threads, async_copies=False)
    row_reductions.check(ours, warps, size)


# ---- loops whose tiles stay in registers between their products: sums of rows are Warp's in all bits


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str, gpu: str) -> None:
    text, threads = CHAINS[name].text, CHAINS[name].threads
    ours, warps = DeviceKernels(text, gpu, threads), DeviceKernels(text, gpu, threads, async_copies=False)
    chains.check(ours, warps, CHAINS[name])


# ---- blocked factorizations, solves and inverses as clients write them, compared with float64


@pytest.mark.parametrize("main_loop", ["auto", "stages=3"])
@pytest.mark.parametrize("threads", [64, 128])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocked_solves_and_inverses(dtype: str, threads: int, main_loop: str, gpu: str) -> None:
    kernels = DeviceKernels(text(dtype), gpu, threads, main_loop=main_loop)
    for n, size, _ in itertools.product(BLOCKS, (32, MOST), range(3)):  # a race need not show in one launch
        check_blocked(kernels, n, size, 40, dtype)


# ---- random kernels, compared with the NumPy model: exactly equal, gradients too


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_kernels_agree_with_the_model(first: int, gpu: str, tmp_path: Path) -> None:
    refused = []
    for kernel in map(draw, range(first, first + 10)):
        module = import_kernel(kernel, tmp_path)
        with warp_tiles.enabled():
            try:
                prepare(kernel, module, gpu)
            except Exception as error:
                refused.append(str(error))
            else:
                assert difference(execute(kernel, module, gpu), of_model(kernel)) == "", kernel.source
    assert len(refused) <= 1, refused


def test_loops_with_the_same_names(gpu: str, tmp_path: Path) -> None:
    """Compared with the model, because the reverse pass of Warp alone fails."""
    with warp_tiles.enabled():
        for kernel in itertools.islice(shared_names.kernels(64), 8):
            found = execute(kernel, import_kernel(kernel, tmp_path), gpu)
            assert difference(found, of_model(kernel)) == "", kernel.source
