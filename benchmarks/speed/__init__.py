"""What benchmarks of kernels share: cells, builds, loading and timing."""
