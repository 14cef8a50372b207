"""RANSAC lines and the point groups that grow along them."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.report.diagnostics.point_groups import MARGIN, THRESHOLD, point_groups, ransac_line


def test_ransac_finds_the_line_of_most_points(rng):
    x = rng.uniform(0, 1, 3000)
    y = np.where(rng.random(3000) < 0.6, 2 * x + 1 + rng.uniform(-0.005, 0.005, 3000), rng.uniform(0, 4, 3000))
    line = ransac_line(x, y)
    assert line.slope == pytest.approx(2, abs=0.01)
    assert line.intercept == pytest.approx(1, abs=0.01)
    with pytest.raises(InputError, match="two different"):
        ransac_line(np.ones(5), np.arange(5.0))


def test_groups_follow_their_lines_and_not_their_first_ranks(rng):
    """Three bands: the nearest hundredth on a steep line that goes on into the second band's depths."""
    x = [rng.uniform(0.0, 0.2, 600), rng.uniform(0.3, 1.0, 12000), rng.uniform(0.3, 1.0, 12600)]
    y = [1.0 + 4 * x[0], 1.2 + 0.5 * x[1], 3.0 + x[2]]
    prior, depth = np.concatenate(x), np.concatenate(y) + rng.uniform(-0.003, 0.003, 25200)
    truth = np.repeat([0, 1, 2], [600, 12000, 12600])
    found = point_groups(prior, depth)
    assert [line.slope for line in found.lines] == pytest.approx([4, 0.5, 1], abs=0.1)
    seeded = depth <= np.percentile(depth, 1)
    near = found.labels == 0
    assert near.sum() > 1.25 * seeded.sum()  # it grew: 0.10 m of a line on which 0.8 m hold 600
    assert depth[near].max() <= found.ranges[0][1] + MARGIN + 1e-9  # but not farther than it may
    assert (truth[near] == 0).all()
    assert ((found.labels == 1) == (truth == 1)).mean() > 0.95
    assert found.to_dict()["sizes"] == np.bincount(found.labels, minlength=3).tolist()
    assert np.abs(depth - found.lines[1](prior))[found.labels == 1].max() < 10 * THRESHOLD
