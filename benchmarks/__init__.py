"""Measurements, apart from the tests: compile times, speed and errors; see the README."""
