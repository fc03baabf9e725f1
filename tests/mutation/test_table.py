"""The mutations fit the sources: each can be applied, and names tests that exist."""

import json

from tests.mutation.made import changes
from tests.mutation.run import RECORD
from tests.mutation.table import drawn, made, named, problems

CODE = """\
// a + b is a comment
#define SUM a + b
static_assert(N < 3, "too many");
template <int N = 2>
__device__ int f(const int* x, int n)
{
    bool more = true;
    if (n < 2 && more)
        return x[0];
    arch::block_barrier();
    x[1] = {};
    return n < 2 ? f(x + 1, n) : 5;
}
"""


def test_every_mutation_fits_its_source() -> None:
    assert list(problems(named())) == []
    files = list(dict.fromkeys(mutation.file for mutation in drawn(1, 0)))
    assert len(files) > 25
    for file in files:
        assert list(problems(made(file))) == []


def test_the_record_has_the_outcome_of_each_named_mutation() -> None:
    files = json.loads(RECORD.read_text("utf-8"))["files"]
    recorded = {(file, name) for file, outcomes in files.items() for name in outcomes}
    assert {(mutation.file, mutation.name) for mutation in named()} <= recorded, "python -m tests.mutation.run --record"


def test_what_is_made_of_a_text() -> None:
    found = {name: (old, new) for name, old, new in changes(CODE)}
    assert list(found) == [
        "true -> false in bool more = true;",
        "if ( -> if (false && in if (n < 2 && more)",
        "< -> <= in if (n < 2 && more)",
        "2 -> 3 in if (n < 2 && more)",
        "&& -> || in if (n < 2 && more)",
        "0 -> 1 in return x[0];",
        "arch::block_barrier(); -> ; in arch::block_barrier();",
        "x[1] = {}; -> ; in x[1] = {};",
        "1 -> 2 in x[1] = {};",
        "< -> <= in return n < 2 ? f(x + 1, n) : 5;",
        "2 -> 3 in return n < 2 ? f(x + 1, n) : 5;",
        "? -> || true ? in return n < 2 ? f(x + 1, n) : 5;",
        "+ -> - in return n < 2 ? f(x + 1, n) : 5;",
        "1 -> 2 in return n < 2 ? f(x + 1, n) : 5;",
        "5 -> 6 in return n < 2 ? f(x + 1, n) : 5;",
    ]
    assert found["arch::block_barrier(); -> ; in arch::block_barrier();"] == ("    arch::block_barrier();", "    ;")
