"""The pictures of docs/, as functions from results to figures. ``python -m benchmarks.figures`` writes them."""
