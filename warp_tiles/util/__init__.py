"""Files, locks and threads: what every room may use."""
