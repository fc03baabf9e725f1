"""The variants that a module needs, with the reasons, as values."""
