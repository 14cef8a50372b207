"""Shared parts of the commands: help in groups, messages with flag names, flags of a prior, progress of many frames."""
