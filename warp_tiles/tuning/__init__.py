"""Tuning: measured configurations of kernels, loops, functions and whole arrays, kept as records."""
