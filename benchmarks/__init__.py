"""Measurements of Picker. Each folder holds one question; run it as `python -m benchmarks.<folder>`."""
