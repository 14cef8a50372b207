"""Panels of pictures with titles, captions and colour bars, drawn with Pillow alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import InputError, param
from leadline.report.colour import Picture, Scheme, colour_bar, colour_range, colourise

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

_MARGIN, _GAP = 36, 22
_INK, _GREY, _LINE = (28, 30, 34), (104, 108, 116), (206, 208, 212)
_HEADING, _TITLE, _TEXT = 28, 19, 15  # font sizes in pixels


@dataclass(frozen=True)
class ColourBar:
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
    may differ in length. Text that is wider than its tile is shortened and ends in an ellipsis.

    Parameters
    ----------
    rows : list of lists of Tile
    heading, note : str
        A line above the grid, and a smaller one below the heading.
    tile_width : int
        Width of each picture in pixels, at least 120 so that a colour bar fits.

    Raises
    ------
    InputError
        There is no tile, or the width is below 120.
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


def draw_preview(image: Picture, depth: FloatArray) -> Image:
    """An image beside its depth in colours, with the colour scale in metres below, as a Pillow image.

    Parameters
    ----------
    image : (H, W, 3) uint8 array
    depth : (H, W) array
        Metres; NaN, inf and values <= 0 are unknown and grey.
    """
    from PIL import Image, ImageDraw

    low, high = colour_range(depth)
    pictures = Image.fromarray(np.hstack((image, colourise(depth, low=low, high=high))))
    if math.isnan(low):
        return pictures
    size = max(_TEXT, pictures.width // 100)
    canvas = Image.new("RGB", (pictures.width, pictures.height + 2 * size), "white")
    canvas.paste(pictures, (0, 0))
    bar = ColourBar("depth", f"{low:.3g} m", f"{high:.3g} m")
    _draw_bar(canvas, ImageDraw.Draw(canvas), bar, pictures.width - size // 2, pictures.height + size // 3, size)
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


def _length(draw: ImageDraw, text: str, size: int = _TEXT) -> int:
    from PIL import ImageFont

    return int(draw.textlength(text, font=ImageFont.load_default(size=size))) + 1


def _text(
    draw: ImageDraw, place: tuple[int, int], text: str, size: int, colour: tuple[int, int, int], room: int
) -> None:
    from PIL import ImageFont

    if _length(draw, text, size) > room:
        while text and _length(draw, text + "...", size) > room:
            text = text[:-1].rstrip()
        text += "..."
    draw.text(place, text, fill=colour, font=ImageFont.load_default(size=size))
