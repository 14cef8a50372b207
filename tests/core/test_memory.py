"""The memory of a completion, counted and not timed."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from leadline.core.pipeline import complete

SHAPE = (700, 900)  # large enough for what does not grow with the image to be negligible
# Bytes a pixel beyond the inputs, two of the maps of the result included. Counted: 47.0 and 63.0.
MOST = {"paper": 48.5, "best": 64.5}


@pytest.mark.parametrize("preset", MOST)
def test_a_completion_needs_no_more_memory_than_documented(preset):
    rows, columns = np.indices(SHAPE)
    prior = (2 + np.sin(columns / 90) + np.cos(rows / 70)).astype(np.float32)
    sparse = np.zeros_like(prior)
    sparse[::8, ::8] = prior[::8, ::8] ** 1.2 * (1 + 0.05 * np.sin(rows / 31)[::8, ::8])
    complete(prior, sparse, options=preset)  # compiles
    tracemalloc.start()
    try:
        result = complete(prior, sparse, options=preset)
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.reconstruction.iterations > 2
    assert peak / prior.size < MOST[preset]
    assert left / prior.size < 9.5  # depth and calibrated prior; no part of the system stays alive with the result
