"""PTX statements become calls with the same operands. An instruction that is not emulated becomes an error."""

from __future__ import annotations

from pathlib import Path

import pytest
import warp as wp

from tests.emulator.generated import emulated_kernels
from tests.emulator.native import copy_headers, emulated, for_host
from warp_tiles.codegen.prelude import MODULE_HEADER
from warp_tiles.compile.sources import flatten

STATEMENTS = {
    'asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(sum) : "r"(x), "r"(y), "l"(z));': "wt_ptx::mad_wide_s32(sum, x, y, z);",
    'asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(f(from, (1))) : "memory");': (
        "wt_ptx::cp_async_cg_shared_global(to, f(from, (1)), 16);"
    ),
    'asm volatile("cp.async.wait_all;" : : : "memory");': "wt_ptx::cp_async_wait_all();",
    'asm("{  cvt.rn.f16.f32 %0, %1;}\\n" : "=h"(h.u) : "f"(x));': "wt_ptx::cvt_rn_f16_f32(h.u, x);",
    'asm volatile("{ atom.add.f64 %0,[%1],%2; }\\n" : "=d"(r) : __PTR(buf), "d"(value) : "memory");': (
        "wt_ptx::atom_add_f64(r, buf, value);"
    ),
    'asm volatile("{\\n.reg .pred p;\\nW:\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n"\n'
    '"@p bra D;\\nbra W;\\nD:\\n}" : : "r"(mbarrier), "r"(parity) : "memory");': (
        "wt_ptx::mbarrier_try_wait_parity_shared_cta_b64(mbarrier, parity);"
    ),
    'asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p cp.async.cg.shared.global [%1], [%2], 16; }"\n'
    ': : "r"(condition), "r"(to), "l"(from) : "memory");': (
        "condition ? wt_ptx::cp_async_cg_shared_global(to, from, 16) : void();"
    ),
    'asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));': (
        'wt::emulator::fail("not emulated: ex2.approx.f32 %0, %1;", __FILE__, __LINE__);'
    ),
    'asm("mad.wide.s32 %0, %1, %2, %3; add.s64 %0, %0, 1;" : "=l"(s) : "r"(x), "r"(y), "l"(z));': (
        'wt::emulator::fail("not emulated: mad.wide.s32 %0, %1, %2, %3; add.s64 %0,", __FILE__, __LINE__);'
    ),
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_becomes_a_call(statement: str) -> None:
    assert for_host(f"{{ {statement} }}") == f"{{ {STATEMENTS[statement]} }}"


def test_all_instructions_of_the_module_header_are_emulated(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    emulated_kernels(folder)
    text = for_host(flatten(f'#include "{MODULE_HEADER}"', folder))
    assert "asm" not in text
    assert "not emulated" not in text
    assert len(emulated()) > 10


def test_headers_use_the_emulators_shared_memory(tmp_path: Path) -> None:
    copy_headers(Path(wp.__file__).parent / "native", tmp_path)
    text = (tmp_path / "tile.h").read_text()
    assert "shared_pointer(wt::emulator::shared_start)" in text
    assert "extern __shared__" not in text
