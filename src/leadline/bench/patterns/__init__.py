"""Sources of simulated measurements and the faults that are added to them; see `leadline.bench.observations`."""
