"""Files, locks, threads and warnings, for the whole package."""
