"""A contact sheet of refined frames: image, measured depth, refined depth, and what was done to each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from leadline.base.arrays import BoolArray, FloatArray
from leadline.report.colour import Picture, colour_range, colourise, draw_measurements, fade_image
from leadline.report.tiles import ColourBar, Tile, draw_panel

if TYPE_CHECKING:
    from PIL.Image import Image

# Orange and blue of Okabe and Ito, which colour-blind readers can distinguish, over the faded image.
_LEFT_OUT, _FILLED = (213, 94, 0), (0, 114, 178)
_OPACITY = 0.6
_DENSE = 0.2  # measured share of the pixels above which single measurements need not be drawn as discs
_TILE_WIDTH = 320


@dataclass(frozen=True, eq=False)
class RefinedFrame:
    """One row of the sheet."""

    name: str
    caption: str
    image: Picture
    measured: FloatArray  # (H, W) metres, NaN where nothing was measured
    depth: FloatArray  # (H, W) metres, refined
    left_out: BoolArray  # where a measurement was replaced
    filled: BoolArray  # where nothing was measured


def draw_contact_sheet(frames: Sequence[RefinedFrame], *, heading: str, note: str = "") -> Image:
    """A row of four pictures for each frame; measured and refined depth have the same colours."""
    return draw_panel([_row(frame) for frame in frames], heading=heading, note=note, tile_width=_TILE_WIDTH)


def draw_origins(image: Picture, left_out: BoolArray, filled: BoolArray) -> Picture:
    """The faded image, orange where measurements were left out and blue where depth was filled in, (H, W, 3)."""
    shown = fade_image(image).astype(np.float64)
    for where, colour in ((filled, _FILLED), (left_out, _LEFT_OUT)):
        shown[where] += _OPACITY * (np.array(colour) - shown[where])
    return np.rint(shown).astype(np.uint8)


def _row(frame: RefinedFrame) -> list[Tile]:
    low, high = colour_range(frame.depth)
    bar = ColourBar("depth", f"{low:.2f} m", f"{high:.2f} m")
    known = np.isfinite(frame.measured) & (frame.measured > 0)
    if known.mean() > _DENSE:
        measured = colourise(frame.measured, low=low, high=high)
    else:
        measured = draw_measurements(frame.measured, frame.image, low=low, high=high)
    return [
        Tile(frame.image, frame.name),
        Tile(measured, "measured", _share(known)),
        Tile(colourise(frame.depth, low=low, high=high), "refined", "", bar),
        Tile(draw_origins(frame.image, frame.left_out, frame.filled), "left out, filled", frame.caption),
    ]


def _share(known: BoolArray) -> str:
    share = float(known.mean())
    return f"{share:.1%} of the pixels" if share >= 0.001 else f"{int(known.sum())} pixels"
