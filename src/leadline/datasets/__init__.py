"""Images with reference depth: `rendered` makes them, the other modules read them from public data sets."""
