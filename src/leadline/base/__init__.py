"""Used by all other packages: errors, array types, compilation, registries, JSON and executors."""
