"""Point clouds in files."""
