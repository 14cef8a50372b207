"""Colour pictures of depth, errors, normals and measurements.

The lightness of both colour schemes changes evenly from end to end, so they keep their order for colour-blind readers
and in grey print. Unknown pixels are a neutral grey that neither scheme contains.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.base.arrays import FloatArray, as_map
from leadline.base.errors import InputError, param, require_choice

Scheme = Literal["depth", "error"]
Picture = NDArray[np.uint8]  # (H, W, 3) RGB

UNKNOWN = (128, 128, 128)
ABOVE = (150, 62, 204)
"""Purple, for values beyond the end of an error scale; lighter than the scale's dark end, so that the two differ."""
_STOPS: dict[Scheme, str] = {
    # far to near: dark blue, purple, coral, pale yellow
    "depth": "0b1039 2f1964 5c2383 982c7c ce3e5d ec6853 ff9555 fec879 fbf4be",
    # no error to large error: off-white, ochre, rust, dark red
    "error": "f7f6e7 dfcd91 d39d2f c16908 a33804 771412 460011",
}


def colour_range(values: FloatArray, scheme: Scheme = "depth") -> tuple[float, float]:
    """The default range of `colourise`: percentiles 1 to 99, but from 0 for errors; NaN if all values are unknown."""
    known = _known(as_map(values, "values"), scheme)
    if not known.any():
        return float("nan"), float("nan")
    low, high = (float(value) for value in np.percentile(np.asarray(values)[known], (1, 99)))
    return (low, high) if scheme == "depth" else (0.0, high)


def round_up(value: float) -> float:
    """A round number for the end of a colour scale: the next larger of 1, 1.5, 2, 3, 5 and 7 times a power of ten.

    Examples
    --------
    >>> round_up(0.021), round_up(7.0), round_up(8.0)
    (0.03, 7.0, 10.0)
    """
    power = 10.0 ** np.floor(np.log10(max(value, 1e-4)))
    return next(float(f"{step * power:.3g}") for step in (1, 1.5, 2, 3, 5, 7, 10) if step * power >= value * (1 - 1e-9))


def colourise(
    values: FloatArray,
    *,
    low: float | None = None,
    high: float | None = None,
    scheme: Scheme = "depth",
    above: tuple[int, int, int] | None = None,
) -> Picture:
    """A map as an RGB picture, (H, W, 3) uint8.

    Colours of depth are linear in *inverse* depth, near ones bright, since most detail is near. Colours of errors are
    linear from `low` to `high`, larger ones darker. Values outside the range get the colour of its nearer end.

    Parameters
    ----------
    values : (H, W) array
        NaN and inf, and for depth also values <= 0, are unknown and grey.
    low, high : float, optional
        Range of the colours; see `colour_range` for the default.
    scheme : {"depth", "error"}
    above : (3,) tuple, optional
        Colour of values larger than `high`, instead of that of the nearer end.

    Examples
    --------
    >>> colourise(np.array([[1.0, np.nan, 4.0]]), low=1, high=4).tolist()
    [[[251, 244, 190], [128, 128, 128], [11, 16, 57]]]
    """
    values = as_map(values, "values")
    known = _known(values, scheme)
    found = colour_range(values, scheme) if low is None or high is None else (low, high)
    low, high = (found[0] if low is None else low), (found[1] if high is None else high)
    if low > high or (scheme == "depth" and low <= 0):
        raise InputError(
            f"{param('low')} and {param('high')} must be in order, and positive for depth, "
            f"got {low!r} and {high!r} instead."
        )
    kept = values[known].astype(np.float64)
    near, far = (1 / low, 1 / high) if scheme == "depth" else (high, low)
    # The range of a map with a single value is empty; it gets the first colour.
    position = ((1 / kept if scheme == "depth" else kept) - far) / (near - far) if near > far else np.zeros(kept.shape)
    picture = np.empty((*values.shape, 3), np.uint8)
    picture[:] = UNKNOWN
    picture[known] = _ramp(position, scheme)
    if above is not None:
        picture[known & (values > high)] = above
    return picture


def colour_bar(width: int, height: int, scheme: Scheme) -> Picture:
    """The colours of a scheme as a (height, width, 3) strip, with the nearest depth or no error at the left."""
    position = np.linspace(0, 1, width)
    strip = _ramp(position[::-1] if scheme == "depth" else position, scheme)
    return np.tile(strip, (height, 1, 1))


def normals_picture(normals: FloatArray) -> Picture:
    """Unit normals, (H, W, 3) in camera axes, as RGB: red to the right, green up, blue towards the camera."""
    normals = np.asarray(normals)
    if normals.ndim != 3 or normals.shape[-1] != 3:
        raise InputError(f"{param('normals')} must be an (H, W, 3) array, got shape {normals.shape} instead.")
    known = np.isfinite(normals).all(axis=-1)
    picture = np.empty(normals.shape, np.uint8)
    picture[:] = UNKNOWN
    picture[known] = np.rint((np.clip(normals[known] * (1.0, -1.0, -1.0), -1, 1) + 1) * 127.5)
    return picture


def draw_measurements(sparse: FloatArray, image: Picture, *, low: float, high: float) -> Picture:
    """Measurements as discs coloured by depth on a faded grey image, so that single pixels are visible.

    The radius of the discs is a third of the mean distance between measurements, from 1 to 6 pixels. `low` and `high`
    are the range of the colours in metres, as for `colourise`.
    """
    sparse = as_map(sparse, "sparse")
    known = _known(sparse, "depth")
    picture = fade_image(image)
    rows, columns = np.nonzero(known)
    if rows.size:
        covered = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        radius = float(np.clip(np.sqrt(covered / rows.size) / 3, 1, 6))
        paint_discs(picture, rows, columns, colourise(sparse, low=low, high=high)[known], radius)
    return picture


def fade_image(image: Picture) -> Picture:
    """The image in light grey, on which coloured discs stand out."""
    grey = np.asarray(image).mean(axis=-1, keepdims=True) * 0.35 + 150
    return np.repeat(grey, 3, axis=-1).astype(np.uint8)


def paint_discs(
    picture: Picture, rows: NDArray[np.intp], columns: NDArray[np.intp], colours: ArrayLike, radius: float
) -> None:
    """Paint discs onto `picture`, in place, around n pixels; `colours` is (n, 3), or (3,) for all."""
    height, width, _ = picture.shape
    colours = np.broadcast_to(np.asarray(colours, np.uint8), (rows.size, 3))
    steps = range(-int(radius), int(radius) + 1)
    for down, right in ((i, j) for i in steps for j in steps if i * i + j * j <= radius * radius):
        y, x = rows + down, columns + right
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        picture[y[inside], x[inside]] = colours[inside]


def _known(values: FloatArray, scheme: Scheme) -> NDArray[np.bool_]:
    require_choice("scheme", scheme, Scheme)
    return np.isfinite(values) & (values > 0) if scheme == "depth" else np.isfinite(values)


def _ramp(position: FloatArray, scheme: Scheme) -> Picture:
    """Colours, (N, 3), at positions in [0, 1] of a scheme, linear between its stops."""
    stops = np.array([list(bytes.fromhex(colour)) for colour in _STOPS[scheme].split()], np.float64)
    places = np.linspace(0, 1, len(stops))
    channels = [np.interp(np.clip(position, 0, 1), places, stops[:, channel]) for channel in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
