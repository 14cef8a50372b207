"""Whole files to whole files: one frame, or a folder of them."""
