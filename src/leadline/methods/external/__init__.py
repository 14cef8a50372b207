"""Trained systems, each run in its own Python environment and process; data are exchanged as files."""
