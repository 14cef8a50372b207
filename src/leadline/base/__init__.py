"""What every other package builds on: errors, array types, compilation, registries, JSON."""
