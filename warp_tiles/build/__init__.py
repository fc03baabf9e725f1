"""Builds the functions of a plan in parallel: tries the providers in order, and uses the cache."""
