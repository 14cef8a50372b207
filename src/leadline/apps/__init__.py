"""What a person starts: the command line and what stands behind its commands."""
