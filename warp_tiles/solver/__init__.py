"""What kernels ask of solver functions, and how it is computed: Cholesky factors, triangular solves, their adjoints."""
