"""The memory of a completion, counted and not timed."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from leadline.core.pipeline import complete

SHAPE = (700, 900)  # large enough for what does not grow with the image to be negligible
# Bytes a pixel beyond the inputs, two of the maps of the result included, by preset and spacing of the measurements.
# Counted: 38.6, 39.7, 31.7 and 66.7. Where measurements are close together, `best` solves at full resolution.
MOST = {("paper", 8): 39.5, ("paper", 5): 40.0, ("best", 8): 33.0, ("best", 5): 68.0}


@pytest.mark.parametrize(("preset", "spacing"), MOST)
def test_a_completion_needs_no_more_memory_than_documented(preset, spacing):
    rows, columns = np.indices(SHAPE)
    prior = (2 + np.sin(columns / 90) + np.cos(rows / 70)).astype(np.float32)
    sparse = np.zeros_like(prior)
    some = np.s_[::spacing, ::spacing]
    sparse[some] = prior[some] ** 1.2 * (1 + 0.05 * np.sin(rows / 31)[some])
    complete(prior, sparse, options=preset)  # compiles
    tracemalloc.start()
    try:
        result = complete(prior, sparse, options=preset)
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.reconstruction.iterations > 1
    assert peak / prior.size < MOST[preset, spacing]
    assert (
        left / prior.size < 8.5 + 40 / spacing**2
    )  # depth and calibrated prior; no part of the system stays alive with the result
