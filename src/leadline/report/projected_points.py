"""The points of a cloud over the image that they were projected into: those kept, and those dropped by reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.report.colour import Picture, colour_range, draw_measurements
from leadline.report.tiles import ColourBar, Tile, draw_panel

if TYPE_CHECKING:
    from PIL.Image import Image

# Four colours of Okabe and Ito, which colour-blind readers can distinguish, by their names in the caption.
_COLOURS = {"orange": (213, 94, 0), "blue": (0, 114, 178), "green": (0, 158, 115), "pink": (204, 121, 167)}
_WIDEST_TILE = 1200  # pixels


def draw_projected_points(
    image: Picture, kept: FloatArray, dropped: Mapping[str, FloatArray], *, heading: str = "", note: str = ""
) -> Image:
    """Two tiles: the kept points coloured by depth, and below them the dropped points in one colour per reason.

    Parameters
    ----------
    image : (H, W, 3) uint8 array
    kept : (H, W) array
        Metres, NaN where there is no point.
    dropped : mapping
        Up to four maps like `kept`, by reason. A map may be larger than the image, with a margin of the same width on
        opposite sides for points outside the image; the largest map sets the margin of the tile.
    heading, note : str
        Lines above the tiles.
    """
    low, high = colour_range(kept)
    bar = ColourBar("depth", f"{low:.1f} m", f"{high:.1f} m")
    count = int(np.isfinite(kept).sum())
    tiles = [Tile(draw_measurements(kept, image, low=low, high=high), "kept points", f"{count} pixels", bar)]
    some = {words: values for words, values in dropped.items() if np.isfinite(values).any()}
    if some:
        named = dict(zip(dropped, _COLOURS, strict=False))  # the colour of a reason does not depend on the others
        shown = _marked(image, {_COLOURS[named[words]]: values for words, values in some.items()})
        tiles.append(Tile(shown, "dropped points", "; ".join(f"{named[words]}: {words}" for words in some)))
    width = max(min(image.shape[1], _WIDEST_TILE), 120)
    return draw_panel([[tile] for tile in tiles], heading=heading, note=note, tile_width=width)


def _marked(image: Picture, marks: Mapping[tuple[int, int, int], FloatArray]) -> Picture:
    """Discs on the faded image, which has a white margin if points lie outside of it."""
    height, width = (max(values.shape[axis] for values in marks.values()) for axis in (0, 1))
    down, right = (height - image.shape[0]) // 2, (width - image.shape[1]) // 2
    canvas = np.full((height, width, 3), 255, np.uint8)
    grey = np.asarray(image).mean(axis=-1, keepdims=True) * 0.35 + 150
    canvas[down : down + image.shape[0], right : right + image.shape[1]] = grey.astype(np.uint8)
    reach = max(1, round(width / 500))  # radius of the discs, so that single pixels are visible
    steps = [(i, j) for i in range(-reach, reach + 1) for j in range(-reach, reach + 1) if i * i + j * j <= reach**2]
    # The many points outside the image are drawn first, so that they cover none inside it.
    for colour, values in sorted(marks.items(), key=lambda item: -item[1].size):
        top, left = (height - values.shape[0]) // 2, (width - values.shape[1]) // 2
        rows, columns = np.nonzero(np.isfinite(values))
        for i, j in steps:
            places = np.clip(rows + top + i, 0, height - 1), np.clip(columns + left + j, 0, width - 1)
            canvas[places] = colour
    return canvas
