"""Recorded launches, and scripts that are run or only planned."""
