"""Label values that come from outside, within bounds."""

OTHER = "other"
"""Stands for all values beyond a bound, and for those that nobody knows."""
