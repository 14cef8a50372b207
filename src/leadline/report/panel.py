"""Pictures side by side with titles, captions and colour bars, drawn with Pillow alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leadline.base.errors import InputError
from leadline.report.colour import Picture, Scheme, colour_bar

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

_MARGIN, _GAP = 36, 22
_INK, _GREY, _LINE = (28, 30, 34), (104, 108, 116), (206, 208, 212)
_HEADING, _TITLE, _TEXT = 28, 19, 15  # font sizes in pixels
_BAR_WIDTH, _BAR_HEIGHT = 96, 10


@dataclass(frozen=True)
class Bar:
    """What the colours of a tile mean: the labels at the two ends of its ramp."""

    scheme: Scheme
    left: str
    right: str


@dataclass(frozen=True)
class Tile:
    """One picture of a panel."""

    picture: Picture  # (H, W, 3) uint8
    title: str
    caption: str = ""
    bar: Bar | None = None


def panel(rows: list[list[Tile]], *, heading: str = "", note: str = "", tile_width: int = 420) -> Image:
    """A titled grid of pictures on white, as a Pillow image.

    Pictures keep their aspect and are scaled to `tile_width`; a row is as high as its highest picture, and rows
    may differ in length. Text that is wider than its tile is cut with an ellipsis.

    Parameters
    ----------
    rows : list of lists of Tile
    heading, note : str
        A line over the grid, and a smaller one under the heading.
    tile_width : int
        Width of each picture in pixels, at least 120 so that a colour bar fits.

    Raises
    ------
    InputError
        If there is no tile or the width is below 120.
    """
    from PIL import Image, ImageDraw

    if not any(rows):
        raise InputError("`rows` must hold at least one tile, got none.")
    if tile_width < 120:
        raise InputError(f"`tile_width` must be at least 120 pixels, got {tile_width!r} instead.")
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


def _draw_bar(canvas: Image, draw: ImageDraw, bar: Bar, right: int, y: int) -> int:
    """A bar whose right label ends at `right`; returns the width it takes."""
    from PIL import Image

    left_width, right_width = _length(draw, bar.left), _length(draw, bar.right)
    start = right - right_width - 6 - _BAR_WIDTH
    strip = y + (_TEXT - _BAR_HEIGHT) // 2 + 2
    canvas.paste(Image.fromarray(colour_bar(_BAR_WIDTH, _BAR_HEIGHT, bar.scheme)), (start, strip))
    draw.rectangle((start - 1, strip - 1, start + _BAR_WIDTH, strip + _BAR_HEIGHT), outline=_LINE)
    _text(draw, (start - 6 - left_width, y), bar.left, _TEXT, _GREY, left_width + 1)
    _text(draw, (right - right_width, y), bar.right, _TEXT, _GREY, right_width + 1)
    return right_width + _BAR_WIDTH + left_width + 12


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
