"""Trained systems that run in an environment of their own, in another process, with files in between."""
