"""Subcommands that are too big to stand in `picker.cli`."""
