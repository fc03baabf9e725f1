"""Builds and tuning on a cluster of Dask."""
