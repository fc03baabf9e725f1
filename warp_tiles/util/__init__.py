"""Files, locks, threads, single flight and warnings, for the whole package."""
