"""The functions that a module needs, with the reasons, as values."""
