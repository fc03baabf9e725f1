"""Measurements, apart from the tests: compile times, speed and errors. See the README."""
