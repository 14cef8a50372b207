"""The fit: the response, its estimation from measured pairs, and the calibrated map."""
