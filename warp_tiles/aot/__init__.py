"""Plans as manifests, and variants built one by one for CMake."""
