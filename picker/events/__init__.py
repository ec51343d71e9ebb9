"""Decisions as events: what was decided about each request and why, and what became of it. Never prompt text."""
