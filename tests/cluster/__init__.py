"""Builds on a cluster of Dask."""
