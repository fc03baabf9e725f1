"""A check of the gradients of a form of loop. The tests on the emulator and on a GPU use it."""

from __future__ import annotations

import numpy as np

from tests.loop_forms import Form, Matrix


def wrong_gradients(form: Form, a: Matrix, b: Matrix, g: Matrix, of_a: Matrix, of_b: Matrix) -> list[str]:
    """Check gradients of ``sum(G * C)``. Returns "A" or "B" for each wrong one.

    C is linear in A and in B, so its change along a direction is the sum of the gradient times that direction.
    Directions are random integers, and all sums are exact.

    Args:
        form: The form that computes C.
        a, b, g: A, B and G, as for the form's ``expected``.
        of_a, of_b: The gradients.
    """
    a, b, g = (values.astype(np.float64) for values in (a, b, g))
    constant = form.expected(np.zeros_like(a), b)
    random = np.random.default_rng(7)
    wrong = []
    for _ in range(4):
        for name, gradient in (("A", of_a), ("B", of_b)):
            direction = random.integers(-3, 4, gradient.shape).astype(np.float64)
            moved = form.expected(direction, b) if name == "A" else form.expected(a, direction)
            if np.sum(gradient.astype(np.float64) * direction) != np.sum(g * (moved - constant)):
                wrong.append(name)
    return wrong
