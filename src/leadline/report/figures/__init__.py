"""The paper's figures and further ones, from a run's records."""
