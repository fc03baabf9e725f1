"""Measured choices: what was tuned, for what, on which machine, and how fast each candidate was."""
