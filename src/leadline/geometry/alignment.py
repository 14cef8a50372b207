"""Do measurements line up with the picture? A check for wrong extrinsics, wrong timing and wrong crops.

Where depth jumps between two neighbouring measurements the picture mostly changes between them too, and where depth is
smooth it mostly does not. The correlation of the two is highest where the measurements belong. So it is computed where
they are and for the whole map moved by up to `REACH` of the picture's width in all directions: if many of those places
fit better, the measurements are not where they should be. Edge-based calibration works on the same ground (Levinson and
Thrun, RSS 2013); here nothing is estimated, so a few hundred depth edges are enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray, as_map
from leadline.base.errors import InputError
from leadline.base.jit import compiled

REACH = 0.03  # of the picture's width: what a wrong calibration moves points by, and what still shows the same things
STEPS = 8  # on either side, so 288 moved placements
# On 20 scenes with registered depth at most 0.21 of the moved placements fit better, on the two of DDAD with a wrong
# calibration 0.94 and 0.35 (docs/sensors.md).
MISALIGNED = 0.25
FEWEST_PAIRS = 100  # that span a jump; with fewer the order of the placements is chance
_MOST_POINTS = 20_000
_JUMP = (0.05, 0.25)  # of log depth: below the first it is a slope, above the second a jump
_CONTRAST = 3.0  # in roots of grey levels; what is above is one strong edge, not several
_BLUR = 1e-3  # of the width: noise and compression
_NEIGHBOURS = 8
_WINDOW = 3.0  # mean distances between measurements, in which neighbours are looked for
_FARTHEST = 3.0  # times the median distance of neighbours: across larger gaps anything may lie between


@dataclass(frozen=True)
class Alignment:
    """How well measurements line up with a picture.

    Parameters
    ----------
    better : float
        Share of the moved placements that fit better than the given one: near 0 if aligned, near 0.5 if unrelated;
        NaN if nothing can be said.
    shift : (float, float)
        Pixels right and down by which the best placement is moved.
    score, best : float
        Correlation of depth jumps and contrast as given, and at the best placement.
    pairs : int
        Neighbours with a jump of depth between them.
    """

    better: float
    shift: tuple[float, float]
    score: float
    best: float
    pairs: int

    @property
    def known(self) -> bool:
        """False if there are too few depth edges, or none in the picture, to judge."""
        return math.isfinite(self.better)

    @property
    def aligned(self) -> bool:
        """False only if the measurements are known not to line up."""
        return not (self.known and (self.better > MISALIGNED or self.score <= 0))

    @property
    def verdict(self) -> str:
        """One short sentence."""
        if not self.known:
            few = f"only {self.pairs} pairs of neighbouring points span a jump of depth"
            reason = few if self.pairs < FEWEST_PAIRS else "the image has no contrast"
            return f"alignment not checked: {reason}."
        found = f"{self.better:.0%} of nearby placements fit it better"
        if self.aligned:
            return f"the points line up with the image: {found}."
        right, down = self.shift
        return f"these points do not line up with the image: {found}, best {right:+.0f} px right, {down:+.0f} px down."

    def __str__(self) -> str:
        if self.aligned:
            return self.verdict
        return (
            f"{self.verdict} Check the extrinsics, the camera's size and crop, and that sweep and image are of one "
            "instant."
        )


def check_alignment(depth: FloatArray, image: NDArray[np.uint8]) -> Alignment:
    """Whether the measured pixels of `depth` lie where the picture has its edges.

    It sees shifts of a percent of the width and more, not single pixels; a scene without near objects tells nothing.

    Parameters
    ----------
    depth : (H, W) array
        Metres; what is not finite and positive was not measured.
    image : (H, W, 3) uint8 array

    Raises
    ------
    InputError
        If the sizes differ.
    """
    depth, image = as_map(depth, "depth"), np.asarray(image)
    if image.shape != (*depth.shape, 3) or image.dtype != np.uint8:
        raise InputError(
            f"`image` must be uint8 of shape {(*depth.shape, 3)}, got {image.dtype} {image.shape} instead."
        )
    reach = REACH * depth.shape[1]
    first, second, jumps, distances = _pairs(_thinned(depth), reach)
    spanned = int((jumps > 0.5).sum())
    if spanned < FEWEST_PAIRS:
        return Alignment(math.nan, (0.0, 0.0), math.nan, math.nan, spanned)
    # Distant neighbours have more of everything between them: what follows from distance alone is taken out.
    base = np.stack((np.ones_like(distances), distances, np.sqrt(distances)), axis=1)
    jumps = jumps - base @ np.linalg.lstsq(base, jumps, rcond=None)[0]
    steps = np.arange(-STEPS, STEPS + 1) * (reach / STEPS)
    scores = np.empty((len(steps), len(steps)))
    _score(first, second, jumps, np.rint(steps).astype(np.int64), _features(image), scores)
    given = scores[STEPS, STEPS]
    if not scores.any():  # a picture without any contrast
        return Alignment(math.nan, (0.0, 0.0), math.nan, math.nan, spanned)
    row, column = np.unravel_index(int(scores.argmax()), scores.shape)
    return Alignment(
        better=float((scores > given).sum() / (scores.size - 1)),
        shift=(float(steps[column]), float(steps[row])),
        score=float(given),
        best=float(scores.max()),
        pairs=spanned,
    )


def _features(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Roots of the blurred colours: noise of a sensor is even in the root, and shadows keep their edges."""
    from PIL import Image, ImageFilter

    blurred = Image.fromarray(image).filter(ImageFilter.GaussianBlur(_BLUR * image.shape[1]))
    return np.sqrt(np.asarray(blurred, np.float32))


def _thinned(depth: FloatArray) -> NDArray[np.float64]:
    """`depth` with at most so many measurements: a dense map says no more, and neighbours need some distance."""
    kept = np.where(np.isfinite(depth) & (depth > 0), depth, np.nan).astype(np.float64)
    places = np.flatnonzero(np.isfinite(kept))
    if len(places) > _MOST_POINTS:
        chosen = np.random.default_rng(0).choice(places, _MOST_POINTS, replace=False)
        thin = np.full(kept.size, np.nan)
        thin[chosen] = kept.ravel()[chosen]
        return thin.reshape(kept.shape)
    return kept


def _pairs(depth: NDArray[np.float64], margin: float) -> tuple[Any, Any, Any, Any]:
    """Neighbouring measurements as two (P, 2) arrays of row and column, the jump between them in [0, 1], the distance.

    Each measurement is paired with its `_NEIGHBOURS` nearest. On a sweep these lie mostly on its own scan line, where
    ground rises slowly; from line to line it does not. Those within `margin` of the border are left out, so that every
    placement compares the same pairs.
    """
    edge = math.ceil(margin) + 1
    rows, columns = np.nonzero(np.isfinite(depth))
    spacing = math.sqrt((np.ptp(rows) + 1) * (np.ptp(columns) + 1) / len(rows)) if len(rows) else 1.0
    inside = (rows >= edge) & (rows < depth.shape[0] - edge) & (columns >= edge) & (columns < depth.shape[1] - edge)
    points = np.stack((rows[inside], columns[inside]), axis=1)
    number = np.full(depth.shape, -1)
    number[tuple(points.T)] = np.arange(len(points))
    partners = _neighbours(number, points, math.ceil(_WINDOW * spacing))
    first, place = np.nonzero(partners >= 0)
    both = np.unique(np.sort(np.stack((first, partners[first, place]), axis=1), axis=1), axis=0)
    first, second = points[both[:, 0]], points[both[:, 1]]
    distances = np.linalg.norm(first - second, axis=1)
    near = distances <= _FARTHEST * (np.median(distances) if len(distances) else 0.0)
    first, second = first[near], second[near]
    ratio = np.abs(np.log(depth[tuple(first.T)] / depth[tuple(second.T)]))
    jumps = np.clip((ratio - _JUMP[0]) / (_JUMP[1] - _JUMP[0]), 0, 1)
    return first, second, jumps, distances[near]


@compiled()
def _neighbours(number: Any, points: Any, radius: int) -> Any:
    """For each point the numbers of its nearest ones within `radius`, (N, _NEIGHBOURS); -1 where there are fewer."""
    height, width = number.shape
    found = np.full((len(points), _NEIGHBOURS), -1)
    for n in range(len(points)):
        row, column = points[n, 0], points[n, 1]
        away = np.full(_NEIGHBOURS, radius * radius + 1)
        for i in range(max(row - radius, 0), min(row + radius, height - 1) + 1):
            for j in range(max(column - radius, 0), min(column + radius, width - 1) + 1):
                square = (i - row) ** 2 + (j - column) ** 2
                if number[i, j] < 0 or square == 0 or square >= away[-1]:
                    continue
                place = _NEIGHBOURS - 1
                while place > 0 and away[place - 1] > square:
                    away[place], found[n, place] = away[place - 1], found[n, place - 1]
                    place -= 1
                away[place], found[n, place] = square, number[i, j]
    return found


@compiled()
def _score(first: Any, second: Any, jumps: Any, steps: Any, features: Any, scores: Any) -> None:
    """Correlation of `jumps`, whose mean is 0, with the contrast between the pairs, for each placement."""
    count = len(first)
    size = 0.0
    for n in range(count):
        size += jumps[n] * jumps[n]
    for i in range(len(steps)):
        for j in range(len(steps)):
            total, squares, product = 0.0, 0.0, 0.0
            for n in range(count):
                a, b = first[n, 0] + steps[i], first[n, 1] + steps[j]
                c, d = second[n, 0] + steps[i], second[n, 1] + steps[j]
                red = features[a, b, 0] - features[c, d, 0]
                green = features[a, b, 1] - features[c, d, 1]
                blue = features[a, b, 2] - features[c, d, 2]
                contrast = min(math.sqrt(red * red + green * green + blue * blue), _CONTRAST)
                total += contrast
                squares += contrast * contrast
                product += jumps[n] * contrast
            spread = squares - total * total / count
            scores[i, j] = product / math.sqrt(size * spread) if size * spread > 0 else 0.0
