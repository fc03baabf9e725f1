"""What a module needs and why, as values."""
