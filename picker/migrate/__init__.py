"""Configurations of other routers, read into ours, with a note for each thing that is not the same here."""
