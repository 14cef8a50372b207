"""What the paper publishes, its tables and the numbers in its text, and a run beside them."""
