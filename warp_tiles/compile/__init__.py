"""NVRTC and nvJitLink in compiler processes."""
