"""Files, locks, threads, single flight and warnings, for every room."""
