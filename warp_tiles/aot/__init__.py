"""Manifests of plans, and builds of single variants for CMake."""
