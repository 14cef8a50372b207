"""Depth edges without pixels between the two surfaces.

An estimate that minimises squared differences has, near a depth edge, depths between those of the two surfaces: means,
weighted by how likely the pixel belongs to each. No surface is there, and the more likely one of the two has a smaller
expected absolute error.

The two surfaces of a pixel are the least and the greatest depth within REACH pixels. Their relative difference h is the
height of the edge, and the position p of the pixel's depth between them, from 0 to 1, says which one is more likely. An
earlier frame, carried along, has a share in p, so that pixels do not change sides from frame to frame. p is then
stretched about its middle by CONTRAST. The pixel moves there by a share that is the product of three factors:

- the weight that the caller gives,
- 1 / (1 + (EDGE_HEIGHT / h)^4), so that noise and relief stay,
- 0 to 1 as the part of the range of depths within 4 REACH pixels that is found within REACH pixels increases from SLOPE
  to EDGE. A slope goes on, and an edge ends: the part is a quarter on a plane, and 1 at a step.

The surfaces beside an edge may themselves be slopes. How much they rise within REACH pixels follows from how much the
range increases beyond them. Pixels so near to one of the two depths are left alone, and others are not moved closer.
"""

from __future__ import annotations

import numpy as np

from leadline.base.arrays import Float32Array
from leadline.base.jit import parallel_loop

REACH = 3
"""Pixels on each side in which the two surfaces are looked for: half the distance of measurements 7 pixels apart,
between which the position of an edge is interpolated."""
EDGE_HEIGHT = 0.1
"""Relative difference of two surfaces at which half of the way is gone. Errors of a depth sensor are a few percent."""
SLOPE, EDGE = 0.3, 0.5
"""Share of the range within 4 REACH pixels that lies within REACH pixels, up to which it is a slope, and from which on
an edge."""
CONTRAST = 3.0
"""The middle third of the positions between the two surfaces is stretched to all of them. A decision for one of the two
would change more between frames."""
MEMORY = 0.3
"""Share of an earlier frame in the decision, at the weight 1. On a dense grid the flicker of a stream is 0.59 of that
of frames alone and the error 0.91; without this share they are 0.62 and 0.90."""
TOLERANCE = 1.03
"""Factor by which the depth of an earlier frame may lie outside of the two surfaces."""


def sharpen_edges(depth: Float32Array, earlier: Float32Array, weights: Float32Array) -> Float32Array:
    """The depth, (H, W), with sharp edges; NaN stays NaN, and has no influence on other pixels.

    `earlier` is the sharp depth of an earlier frame at the same surface points, NaN where unknown. `weights`, (H, W)
    from 0 to 1, are factors of the sharpening and of the share of the earlier frame.

    >>> ramp = np.array([[1.0, 1.0, 1.0, 1.2, 1.8, 2.0, 2.0, 2.0]], np.float32)
    >>> unknown, weights = np.full_like(ramp, np.nan), np.ones_like(ramp)
    >>> sharpen_edges(ramp, unknown, weights).round(2)
    array([[1., 1., 1., 1., 2., 2., 2., 2.]], dtype=float32)
    """
    row_low, row_high, low, high, sharp = (np.empty_like(depth) for _ in range(5))
    _row_extremes[len(depth)](depth, row_low, row_high)
    _column_extremes[len(depth)](row_low, row_high, low, high)
    _sharpen[len(depth)](depth, low, high, earlier, weights, sharp)
    return sharp


@parallel_loop()
def _row_extremes(i, depth, low, high):  # type: ignore[no-untyped-def]
    """Least and greatest depth within REACH columns; infinity and 0 where none is known."""
    width = depth.shape[1]
    for j in range(width):
        low[i, j], high[i, j] = np.float32(np.inf), np.float32(0.0)
    for shift in range(-REACH, REACH + 1):
        for j in range(max(-shift, 0), min(width - shift, width)):
            value = depth[i, j + shift]
            low[i, j] = value if value < low[i, j] else low[i, j]  # NaN is neither less nor greater
            high[i, j] = value if value > high[i, j] else high[i, j]


@parallel_loop()
def _column_extremes(i, row_low, row_high, low, high):  # type: ignore[no-untyped-def]
    """The same within REACH rows, of the extremes of the rows."""
    height, width = low.shape
    for j in range(width):
        low[i, j], high[i, j] = row_low[i, j], row_high[i, j]
    for k in range(max(i - REACH, 0), min(i + REACH + 1, height)):
        for j in range(width):
            low[i, j] = row_low[k, j] if row_low[k, j] < low[i, j] else low[i, j]
            high[i, j] = row_high[k, j] if row_high[k, j] > high[i, j] else high[i, j]


@parallel_loop()
def _sharpen(i, depth, low, high, earlier, weights, sharp):  # type: ignore[no-untyped-def]
    """Row i of the sharp depth."""
    rows, columns = depth.shape[0] - 1, depth.shape[1] - 1
    for j in range(columns + 1):
        here, least, most = np.float64(depth[i, j]), np.float64(low[i, j]), np.float64(high[i, j])
        sharp[i, j] = depth[i, j]
        h = most / least - 1.0
        if here > 0 and h > 0.3 * EDGE_HEIGHT:  # a lower edge would be moved by less than 0.01 of its height
            steepest, all_low, all_high = h, least, most
            for a in (-REACH, 0, REACH):
                for b in (-REACH, 0, REACH):
                    k, m = min(max(i + a, 0), rows), min(max(j + b, 0), columns)
                    steepest = max(steepest, high[k, m] / low[k, m] - 1.0)
            for a in (-3 * REACH, -REACH, REACH, 3 * REACH):  # these windows cover 4 REACH pixels on each side
                for b in (-3 * REACH, -REACH, REACH, 3 * REACH):
                    k, m = min(max(i + a, 0), rows), min(max(j + b, 0), columns)
                    all_low, all_high = min(all_low, low[k, m]), max(all_high, high[k, m])
            whole = all_high / all_low - 1.0
            share = (steepest / whole - SLOPE) / (EDGE - SLOPE)
            share = weights[i, j] * min(max(share, 0.0), 1.0) / (1.0 + (EDGE_HEIGHT / h) ** 4)
            position = (here - least) / (most - least)
            before = np.float64(earlier[i, j])
            if least <= TOLERANCE * before and before <= TOLERANCE * most:  # False for NaN
                of_earlier = min(max((before - least) / (most - least), 0.0), 1.0)
                position += MEMORY * weights[i, j] * (of_earlier - position)
            # On slopes that rise by m h within REACH pixels, 8 REACH pixels contain 6 m h more than 2 REACH pixels.
            margin = min((whole - steepest) / (6.0 * h), 0.5)
            target = min(max(CONTRAST * (position - 0.5) + 0.5, margin), 1.0 - margin)
            if min(position, 1.0 - position) > margin:
                sharp[i, j] = here + share * (least + target * (most - least) - here)
