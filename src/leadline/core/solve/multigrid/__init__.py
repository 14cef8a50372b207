"""Geometric multigrid for the membrane and the thin-plate systems."""
