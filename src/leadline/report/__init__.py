"""Pictures of maps that were computed elsewhere: nothing in here computes a score."""
