"""The benchmark: simulated measurements, scores, runs of protocols, tables and comparisons."""
