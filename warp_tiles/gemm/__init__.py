"""Products: what a kernel asks for, and how it is computed."""
