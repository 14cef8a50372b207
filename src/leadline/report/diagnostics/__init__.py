"""Diagnostics of one image: linearity, gain, exponent profile and errors, as numbers and as plots."""
