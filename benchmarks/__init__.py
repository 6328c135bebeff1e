"""Measured ratios, apart from the tests: `python -m benchmarks [NAME …]`."""
