"""The applications: the command line with its commands, and the studio."""
