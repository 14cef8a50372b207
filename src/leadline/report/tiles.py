"""Panels of pictures with titles, captions and colour bars, drawn with Pillow alone: previews, projected points."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.report.colour import (
    Picture,
    Scheme,
    colour_bar,
    colour_range,
    colourise,
    draw_measurements,
    fade_image,
    paint_discs,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

_MARGIN, _GAP = 36, 22
_INK, _GREY, _LINE = (28, 30, 34), (104, 108, 116), (206, 208, 212)
_HEADING, _TITLE, _TEXT = 28, 19, 15  # font sizes in pixels
# Four colours of Okabe and Ito, which colour-blind readers can distinguish, by their names in the caption.
_COLOURS = {"orange": (213, 94, 0), "blue": (0, 114, 178), "green": (0, 158, 115), "pink": (204, 121, 167)}
# What Pillow's own font has no letters for, and is not a letter with an accent.
_ASCII = str.maketrans({"×": "x", "−": "-", "–": "-", "—": "-", "…": "...", "ß": "ss", "æ": "ae", "ø": "o", "ł": "l"})
_WIDEST_TILE = 1200  # pixels
_SHORTEST_BAR = 9  # times the height of its letters: the bar under a small preview


class ColourBar(NamedTuple):
    """The colour scale of a tile: a scheme, and the labels at the two ends of its bar."""

    scheme: Scheme
    left: str
    right: str


@dataclass(frozen=True)
class Tile:
    """One picture of a panel."""

    picture: Picture  # (H, W, 3) uint8
    title: str
    caption: str = ""
    bar: ColourBar | None = None


def draw_panel(rows: list[list[Tile]], *, heading: str = "", note: str = "", tile_width: int = 420) -> Image:
    """A grid of tiles on white, as a Pillow image.

    Pictures are scaled to `tile_width` and keep their aspect ratio. A row is as high as its highest picture, and rows
    may differ in length. Text that is wider than its tile is shortened and ends in an ellipsis. `heading` is a line
    above the grid, and `note` a smaller one below it. `tile_width` is at least 120 pixels, so that a colour bar fits.
    """
    from PIL import Image, ImageDraw

    if not any(rows):
        raise InputError(f"{param('rows')} must have at least one tile, got none.")
    if tile_width < 120:
        raise InputError(f"{param('tile_width')} must be at least 120 pixels, got {tile_width!r} instead.")
    above, below = _TITLE + 12, _TEXT + 16
    heights = [max((_scaled_height(tile, tile_width) for tile in row), default=0) for row in rows]
    top = _MARGIN + (_HEADING + 12 if heading else 0) + (_TEXT + 14 if note else 0)
    columns = max(len(row) for row in rows)
    width = 2 * _MARGIN + columns * tile_width + (columns - 1) * _GAP
    height = top + sum(heights) + len(rows) * (above + below) + (len(rows) - 1) * _GAP + _MARGIN - 8
    canvas = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(canvas)
    y = _MARGIN - 6
    if heading:
        _text(draw, (_MARGIN, y), heading, _HEADING, _INK, width - 2 * _MARGIN)
        y += _HEADING + 12
    if note:
        _text(draw, (_MARGIN, y), note, _TEXT, _GREY, width - 2 * _MARGIN)
    y = top
    for row, row_height in zip(rows, heights, strict=True):
        for column, tile in enumerate(row):
            x = _MARGIN + column * (tile_width + _GAP)
            _text(draw, (x, y), tile.title, _TITLE, _INK, tile_width)
            size = (tile_width, _scaled_height(tile, tile_width))
            canvas.paste(Image.fromarray(tile.picture).resize(size, Image.Resampling.LANCZOS), (x, y + above))
            draw.rectangle((x - 1, y + above - 1, x + size[0], y + above + size[1]), outline=_LINE)
            foot = y + above + size[1] + 8
            room = tile_width
            if tile.bar is not None:
                room -= _draw_bar(canvas, draw, tile.bar, x + tile_width, foot) + 10
            _text(draw, (x, foot), tile.caption, _TEXT, _GREY, room)
        y += above + row_height + below + _GAP
    return canvas


def draw_preview(image: Picture, depth: FloatArray, *, unit: str | None = "m") -> Image:
    """An image beside its depth in colours, with the colour scale below, as a Pillow image.

    The scale is labelled in `unit`; with None the depth is relative, and the scale says only where near and far are.

    The pictures keep their pixels. The letters of the scale grow with the pictures, so that they are legible when a
    large preview is shown smaller; the canvas is wider than two small pictures if the scale needs it.
    """
    from PIL import Image, ImageDraw

    low, high = colour_range(depth)
    pictures = Image.fromarray(np.hstack((image, colourise(depth, low=low, high=high))))
    if math.isnan(low):
        return pictures
    size = max(_TEXT, pictures.width // 50, pictures.height // 45)
    space = size // 2
    bar = max(pictures.width // 2 - 3 * size, _SHORTEST_BAR * size)  # the end labels reach beyond the bar
    title = f"depth ({unit})" if unit else "relative depth"
    name = _length(ImageDraw.Draw(pictures), title, size)
    width = max(pictures.width, name + bar + 4 * size)
    canvas = Image.new("RGB", (width, pictures.height + 3 * size), "white")
    canvas.paste(pictures, (0, 0))
    draw = ImageDraw.Draw(canvas)
    left, top = width - bar - 3 * size // 2, pictures.height + space
    canvas.paste(Image.fromarray(colour_bar(bar, size, "depth")), (left, top))
    draw.rectangle((left - 1, top - 1, left + bar, top + size), outline=_LINE)
    _text(draw, (left - name - size, top - size // 8), title, size, _INK, name + 1)
    ticks = [(f"{value:.3g}", share) for value, share in depth_ticks(low, high, closest=2.6 * size / bar)]
    for label, share in ticks if unit else [("near", 0.0), ("far", 1.0)]:
        place = left + round(share * (bar - 1))
        draw.line((place, top + size, place, top + size + space // 2), fill=_GREY, width=max(1, size // 12))
        length = _length(draw, label, size)
        _text(draw, (place - length // 2, top + size + space // 2), label, size, _INK, length + 1)
    return canvas


def depth_ticks(low: float, high: float, *, closest: float) -> list[tuple[float, float]]:
    """Depths to label at a bar of `colour_bar` that spans `low` to `high` metres, and their places in [0, 1], in order.

    Both ends are labelled, and between them round depths that are at least `closest` apart; numbers with fewer digits
    come first. The bar is linear in inverse depth.

    Examples
    --------
    >>> [(value, round(place, 3)) for value, place in depth_ticks(0.8, 8.0, closest=0.2)]
    [(0.8, 0.0), (1.0, 0.222), (2.0, 0.667), (8.0, 1.0)]
    """
    if not high > low:
        return [(low, 0.5)]
    found = {low: 0.0, high: 1.0}
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1.5, 3, 4, 7), (1.2, 2.5, 6, 8)):
        for value in (float(f"{step * 10.0**decade:.3g}") for decade in decades for step in steps):
            place = (1 / low - 1 / value) / (1 / low - 1 / high)
            if all(abs(place - other) >= closest for other in found.values()) and low < value < high:
                found[value] = place
    return sorted(found.items())


def draw_projected_points(
    image: Picture, kept: FloatArray, dropped: Mapping[str, FloatArray], *, heading: str = "", note: str = ""
) -> Image:
    """Two tiles: the kept points coloured by depth, and below them the dropped points in one colour per reason.

    `kept` is an (H, W) map in metres, NaN where there is no point; `dropped` has up to four such maps by reason. A map
    may be larger than the image, with a margin of the same width on opposite sides for points outside the image; the
    largest map sets the margin of the tile.
    """
    low, high = colour_range(kept)
    bar = ColourBar("depth", f"{low:.1f} m", f"{high:.1f} m")
    count = int(np.isfinite(kept).sum())
    tiles = [Tile(draw_measurements(kept, image, low=low, high=high), "kept points", f"{count} pixels", bar)]
    some = {reason: values for reason, values in dropped.items() if np.isfinite(values).any()}
    if some:
        named = dict(zip(dropped, _COLOURS, strict=False))  # the colour of a reason does not depend on the others
        shown = _mark_points(image, {_COLOURS[named[reason]]: values for reason, values in some.items()})
        tiles.append(Tile(shown, "dropped points", "; ".join(f"{named[reason]}: {reason}" for reason in some)))
    width = max(min(image.shape[1], _WIDEST_TILE), 120)
    return draw_panel([[tile] for tile in tiles], heading=heading, note=note, tile_width=width)


def _mark_points(image: Picture, marks: Mapping[tuple[int, int, int], FloatArray]) -> Picture:
    """Discs on the faded image, which has a white margin if points lie outside of it."""
    height, width = (max(values.shape[axis] for values in marks.values()) for axis in (0, 1))
    down, right = (height - image.shape[0]) // 2, (width - image.shape[1]) // 2
    canvas = np.full((height, width, 3), 255, np.uint8)
    canvas[down : down + image.shape[0], right : right + image.shape[1]] = fade_image(image)
    # The many points outside the image are drawn first, so that they cover none inside it.
    for colour, values in sorted(marks.items(), key=lambda item: -item[1].size):
        rows, columns = np.nonzero(np.isfinite(values))
        top, left = (height - values.shape[0]) // 2, (width - values.shape[1]) // 2
        paint_discs(canvas, rows + top, columns + left, colour, max(1, round(width / 500)))
    return canvas


def _draw_bar(canvas: Image, draw: ImageDraw, bar: ColourBar, right: int, y: int, size: int = _TEXT) -> int:
    """Draw a colour bar with labels of a font size, the right one ending at `right`; returns the width of all."""
    from PIL import Image

    width, height = round(6.4 * size), round(size / 1.5)
    left_width, right_width = _length(draw, bar.left, size), _length(draw, bar.right, size)
    start = right - right_width - 6 - width
    top = y + (size - height) // 2 + 2
    canvas.paste(Image.fromarray(colour_bar(width, height, bar.scheme)), (start, top))
    draw.rectangle((start - 1, top - 1, start + width, top + height), outline=_LINE)
    _text(draw, (start - 6 - left_width, y), bar.left, size, _GREY, left_width + 1)
    _text(draw, (right - right_width, y), bar.right, size, _GREY, right_width + 1)
    return right_width + width + left_width + 12


def _scaled_height(tile: Tile, width: int) -> int:
    height, own_width, _ = tile.picture.shape
    return max(1, round(int(height) * width / int(own_width)))


def drawable(text: str) -> str:
    """`text` in letters that Pillow's own font has: without accents, and with a question mark for each other letter.

    Examples
    --------
    >>> drawable("Küche 3 – 厨房")
    'Kuche 3 - ??'
    """
    letters = unicodedata.normalize("NFKD", text.translate(_ASCII))
    return "".join(x if x.isascii() else "?" for x in letters if not unicodedata.combining(x))


def _length(draw: ImageDraw, text: str, size: int = _TEXT) -> int:
    from PIL import ImageFont

    return int(draw.textlength(text, font=ImageFont.load_default(size=size))) + 1


def _text(
    draw: ImageDraw, place: tuple[int, int], text: str, size: int, colour: tuple[int, int, int], room: int
) -> None:
    from PIL import ImageFont

    text = drawable(text)
    if _length(draw, text, size) > room:
        while text and _length(draw, text + "...", size) > room:
            text = text[:-1].rstrip()
        text += "..."
    draw.text(place, text, fill=colour, font=ImageFont.load_default(size=size))
