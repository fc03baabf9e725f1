"""The interface that a product of tiles in stage buffers has to have, ``kernels/module/product.cuh``."""

import pytest

from warp_tiles.compile import sources
from warp_tiles.compile.compiler import CompileRequest
from warp_tiles.compile.sources import flatten
from warp_tiles.compile.worker import run
from warp_tiles.errors import BuildError

FLAGS = ("-arch=sm_80", "--std=c++17")
MEMBERS = {
    "start(Accumulators&), ": "static __device__ void start(Accumulators&);",
    "start(Accumulators&, const Sum* c)": "static __device__ void start(Accumulators&, const Sum*);",
    "add(": "static __device__ void add(Accumulators&, unsigned, unsigned);",
    "complete(": "static __device__ void complete(Accumulators&);",
    "scale(": "static __device__ void scale(Accumulators&, Sum);",
    "finish<ADD>(": "template <bool ADD> static __device__ void finish(const Accumulators&, Sum*);",
    "visit(": "template <class Act> static __device__ void visit(const Accumulators&, const Act&);",
    "GROUPS, PAIRS and Problem": "static constexpr int GROUPS = 0, PAIRS = 1;",
}


def log_of(members: dict[str, str]) -> str:
    """What the compiler says about a class with these members; empty if it is a product."""
    kernels = sources.kernels_folder()
    text = f"""{flatten('#include "module/product.cuh"', kernels)}
struct Problem {{ static constexpr int m = 16; }};
struct Candidate {{
    using Problem = ::Problem;
    using Sum = float;
    struct Accumulators {{ float values[4]; }};
    {" ".join(members.values())}
}};
using Named = wt_module::Product<Candidate>;
__device__ Named::Accumulators kept;
"""
    try:
        run(CompileRequest("product.cu", text, FLAGS, (), "a product"))
    except BuildError as error:
        return error.log
    return ""


def test_a_class_with_all_members_is_a_product_and_one_with_other_parameters_is_none() -> None:
    assert log_of(MEMBERS) == ""
    other = {**MEMBERS, "add(": "static __device__ void add(Accumulators&, float*, unsigned);"}
    assert "a product has add(" in log_of(other)


@pytest.mark.parametrize("missing", MEMBERS)
def test_the_compiler_names_a_missing_member(missing: str) -> None:
    log = log_of({name: text for name, text in MEMBERS.items() if name != missing})
    assert f"a product has {missing}" in log
