"""The question and the answer for solver functions: Cholesky factors, triangular solves and their adjoints."""
