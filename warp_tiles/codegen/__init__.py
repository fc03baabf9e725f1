"""Decides about generated code, and completes the source that is compiled."""
