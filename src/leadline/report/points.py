"""A cloud over the picture it was projected into: what was kept, and what was dropped for which reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.report.colour import Picture, dots, limits
from leadline.report.panel import Bar, Tile, panel

if TYPE_CHECKING:
    from PIL.Image import Image

# Four colours that colour-blind readers tell apart (Okabe and Ito's), by the words that the caption uses.
_COLOURS = {"orange": (213, 94, 0), "blue": (0, 114, 178), "green": (0, 158, 115), "pink": (204, 121, 167)}
_WIDEST = 1200  # pixels of a tile


def points_picture(
    image: Picture, kept: FloatArray, dropped: Mapping[str, FloatArray], *, heading: str = "", note: str = ""
) -> Image:
    """Two tiles: the kept points coloured by depth, and below them the dropped ones in a colour for each reason.

    Parameters
    ----------
    image : (H, W, 3) uint8 array
    kept : (H, W) array
        Metres, NaN where there is nothing.
    dropped : mapping
        Up to four maps like `kept` by the words for the caption. One that is larger reaches equally far beyond all
        sides of the picture; the largest decides how wide the margin is.
    heading, note : str
        Above the tiles.
    """
    low, high = limits(kept)
    bar = Bar("depth", f"{low:.1f} m", f"{high:.1f} m")
    count = int(np.isfinite(kept).sum())
    tiles = [Tile(dots(kept, image, low=low, high=high), "points", f"{count} pixels", bar)]
    some = {words: values for words, values in dropped.items() if np.isfinite(values).any()}
    if some:
        named = dict(zip(dropped, _COLOURS, strict=False))  # a reason keeps its colour whatever the others are
        shown = _marked(image, {_COLOURS[named[words]]: values for words, values in some.items()})
        tiles.append(Tile(shown, "dropped", "; ".join(f"{named[words]}: {words}" for words in some)))
    width = max(min(image.shape[1], _WIDEST), 120)
    return panel([[tile] for tile in tiles], heading=heading, note=note, tile_width=width)


def _marked(image: Picture, marks: Mapping[tuple[int, int, int], FloatArray]) -> Picture:
    """Discs on the faded picture, which stands in a white margin if marks lie beyond it."""
    height, width = (max(values.shape[axis] for values in marks.values()) for axis in (0, 1))
    down, right = (height - image.shape[0]) // 2, (width - image.shape[1]) // 2
    canvas = np.full((height, width, 3), 255, np.uint8)
    grey = np.asarray(image).mean(axis=-1, keepdims=True) * 0.35 + 150
    canvas[down : down + image.shape[0], right : right + image.shape[1]] = grey.astype(np.uint8)
    reach = max(1, round(width / 500))  # of a disc, so that single pixels can be seen
    steps = [(i, j) for i in range(-reach, reach + 1) for j in range(-reach, reach + 1) if i * i + j * j <= reach**2]
    # The many points beside the picture come first, so that they cover none inside it.
    for colour, values in sorted(marks.items(), key=lambda item: -item[1].size):
        top, left = (height - values.shape[0]) // 2, (width - values.shape[1]) // 2
        rows, columns = np.nonzero(np.isfinite(values))
        for i, j in steps:
            places = np.clip(rows + top + i, 0, height - 1), np.clip(columns + left + j, 0, width - 1)
            canvas[places] = colour
    return canvas
