"""What the commands share: help in groups, messages with flag names, the flags of a prior, progress of many frames."""
