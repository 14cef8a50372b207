"""Colour ramps, dots and panels."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.report.colour import (
    ABOVE,
    UNKNOWN,
    colour_bar,
    colour_range,
    colourise,
    draw_measurements,
    normals_picture,
)
from leadline.report.tiles import ColourBar, Tile, depth_ticks, draw_panel, draw_preview

LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
NEIGHBOUR = 4  # levels of a channel: by how much two neighbouring pixels of a bar of 500 may differ, twice


def lightness(picture):
    """CIE L* of sRGB colours, (...,)."""
    linear = np.where(picture <= 10.3, picture / 255 / 12.92, ((picture / 255 + 0.055) / 1.055) ** 2.4)
    y = linear @ LUMINANCE
    return np.where(y > 0.008856, 116 * np.cbrt(y) - 16, 903.3 * y)


@pytest.mark.parametrize(("scheme", "sign"), [("depth", -1), ("error", -1)])
def test_lightness_is_strictly_monotone_and_even(scheme, sign):
    """Order survives colour blindness and grey print; no stretch of the ramp is flat."""
    steps = np.diff(lightness(colour_bar(17, 1, scheme)[0].astype(np.float64))) * sign
    assert steps.min() > 1.5  # L* over a sixteenth of the ramp: a just visible difference
    assert steps.max() < 3 * np.mean(steps)


def test_near_is_bright_and_equal_steps_of_inverse_depth_are_equal_steps_of_the_ramp():
    depth = 1 / np.linspace(1.0, 0.2, 17)[None]
    found, expected = (picture.astype(int) for picture in (colourise(depth, low=1, high=5), colour_bar(17, 1, "depth")))
    assert np.abs(found - expected).max() <= 1  # 1 / (1 / x) may round a channel's half the other way


def test_error_is_linear_and_clipped():
    values = np.concatenate((np.linspace(0, 2, 17), [9.0]))[None]
    picture = colourise(values, low=0, high=2, scheme="error")
    np.testing.assert_array_equal(picture[:, :17], colour_bar(17, 1, "error"))
    np.testing.assert_array_equal(picture[0, 17], picture[0, 16])


def test_values_beyond_the_range_may_have_a_colour_of_their_own():
    picture = colourise(np.array([[0.1, 0.3, 0.31, np.inf]]), low=0, high=0.3, scheme="error", above=ABOVE)
    assert [tuple(colour) == ABOVE for colour in picture[0].tolist()] == [False, False, True, False]
    steps = np.linalg.norm(colour_bar(64, 1, "error")[0].astype(float) - ABOVE, axis=-1)
    assert steps.min() > 100  # of 441 between black and white: not to be confused with the scale
    assert abs(lightness(np.array(ABOVE, float)) - lightness(colour_bar(2, 1, "error")[0, 1].astype(float))) > 20


def test_unknown_is_grey():
    picture = colourise(np.array([[1.0, np.nan, np.inf, 0.0, -1.0, 2.0]]))
    assert [tuple(colour) == UNKNOWN for colour in picture[0].tolist()] == [False, True, True, True, True, False]
    assert tuple(colourise(np.array([[0.0, 1.0]]), scheme="error")[0, 0].tolist()) != UNKNOWN
    assert (colourise(np.full((2, 2), np.nan)) == UNKNOWN).all()


def test_limits_leave_out_outliers():
    depth = np.concatenate((np.linspace(1, 2, 1000), [1e6, np.nan, -5.0]))[None]
    low, high = colour_range(depth)
    assert 1 <= low < 1.05 < 1.95 < high <= 2
    assert colour_range(depth, "error")[0] == 0.0
    assert np.isnan(colour_range(np.full((1, 1), np.nan))).all()


def test_a_constant_map_has_a_picture():
    assert colourise(np.full((2, 3), 4.0)).shape == (2, 3, 3)
    assert colourise(np.zeros((2, 3)), scheme="error").shape == (2, 3, 3)


def test_wrong_ranges_and_schemes_are_refused():
    with pytest.raises(InputError, match="`scheme`"):
        colourise(np.ones((2, 2)), scheme="rainbow")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="in order"):
        colourise(np.ones((2, 2)), low=3, high=2)
    with pytest.raises(InputError, match="positive for depth"):
        colourise(np.ones((2, 2)), low=0, high=2)


def test_normals_have_their_conventional_colours():
    normals = np.array([[[0, 0, -1.0], [1.0, 0, 0], [0, -1.0, 0], [np.nan] * 3]])
    np.testing.assert_array_equal(
        normals_picture(normals)[0], [[128, 128, 255], [255, 128, 128], [128, 255, 128], UNKNOWN]
    )
    with pytest.raises(InputError, match="`normals`"):
        normals_picture(np.ones((2, 2)))


def test_dots_are_discs_of_the_depth_colour_clipped_at_the_border():
    sparse = np.full((20, 20), np.nan)
    sparse[10, 10], sparse[0, 19] = 1.0, 5.0
    image = np.full((20, 20, 3), 200, np.uint8)
    picture = draw_measurements(sparse, image, low=1, high=5)
    near, far = colour_bar(2, 1, "depth")[0]
    # Two measurements in 11 x 10 pixels are 7.4 apart on average; a third of this, 2.5, is the radius.
    assert (picture == near).all(axis=-1).sum() == 21  # pixels within 2.5 of a pixel
    assert (picture == far).all(axis=-1).sum() == 8  # of which a corner keeps these
    assert (image == 200).all()
    assert draw_measurements(np.full((20, 20), np.nan), image, low=1, high=5).shape == image.shape


def test_panel_holds_each_picture_at_its_place():
    red, blue = (np.broadcast_to(np.uint8(colour), (30, 40, 3)).copy() for colour in ([255, 0, 0], [0, 0, 255]))
    bar = ColourBar("error", "0", "6%")
    first = [Tile(red, "Red", "a caption that is far too long for its tile", bar)]
    second = [Tile(red, "Red"), Tile(blue, "Blue")]
    image = draw_panel([first, second], heading="Heading", note="note", tile_width=200)
    pixels = np.asarray(image)
    assert (pixels == (255, 0, 0)).all(axis=-1).sum() == 2 * 200 * 150
    assert (pixels == (0, 0, 255)).all(axis=-1).sum() == 200 * 150
    edge = np.concatenate((pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))
    assert (edge == 255).all()  # nothing runs out of the page


def test_titles_have_no_letters_that_the_font_lacks():
    def page(title):
        return np.asarray(draw_panel([[Tile(np.zeros((20, 400, 3), np.uint8), title)]], heading=title))

    np.testing.assert_array_equal(page("Küche – 2 × 厨"), page("Kuche - 2 x ?"))


def test_panel_refuses_what_it_cannot_draw():
    with pytest.raises(InputError, match="`rows`"):
        draw_panel([[]])
    with pytest.raises(InputError, match="`tile_width`"):
        draw_panel([[Tile(np.zeros((2, 2, 3), np.uint8), "x")]], tile_width=50)


def ramp(height, width):
    """Depth from 1 to 3 m."""
    rows, columns = np.indices((height, width))
    return 1.0 + rows / max(1, height - 1) + columns / max(1, width - 1)


@pytest.mark.parametrize(("height", "width"), [(120, 160), (24, 32), (30, 8), (300, 60), (20, 400), (900, 1200)])
def test_a_preview_has_the_pixels_of_image_and_depth_and_a_scale_in_metres(height, width):
    depth, image = ramp(height, width), np.full((height, width, 3), 77, np.uint8)
    pixels = np.asarray(draw_preview(image, depth))
    np.testing.assert_array_equal(pixels[:height, :width], image)
    np.testing.assert_array_equal(pixels[:height, width : 2 * width], colourise(depth))
    below = pixels[height:]
    for end in colour_bar(2, 1, "depth")[0]:
        assert (below == end).all(axis=-1).any()
    edge = np.concatenate((below[-1], below[:, 0], below[:, -1]))
    assert (edge == 255).all()  # the scale is not cut off
    assert below.shape[0] >= 3 * max(15, height // 45, 2 * width // 50)  # letters grow with the picture


def test_the_letters_of_a_preview_are_where_their_depth_is():
    depth = ramp(480, 640)
    low, high = colour_range(depth)
    below = np.asarray(draw_preview(np.zeros((480, 640, 3), np.uint8), depth))[480:]
    row = below[below.shape[0] // 4]
    colours = colour_bar(1000, 1, "depth")[0]
    start, end = (
        np.flatnonzero((np.abs(row.astype(int) - colour) <= 1).all(axis=-1))[0] for colour in colours[[0, -1]]
    )
    for value, place in depth_ticks(low, high, closest=0.2):
        at = row[round(start + place * (end - start))].astype(int)
        assert np.abs(at - colourise(np.array([[value]]), low=low, high=high)[0, 0]).max() <= NEIGHBOUR


def test_a_preview_without_depth_or_with_one_depth():
    image = np.full((120, 160, 3), 77, np.uint8)
    assert draw_preview(image, np.full((120, 160), np.nan)).size == (320, 120)  # no depth, no scale
    assert draw_preview(image, np.full((120, 160), 2.0)).height > 120
    assert depth_ticks(2.0, 2.0, closest=0.2) == [(2.0, 0.5)]


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.2), (0.8, 8.0), (23.0, 77.8), (1.0, 1.01), (0.3, 900.0)])
def test_labels_of_a_depth_scale_keep_apart_and_have_its_ends(low, high):
    ticks = depth_ticks(low, high, closest=0.15)
    values, places = zip(*ticks, strict=True)
    assert (values[0], values[-1]) == (low, high)
    assert (places[0], places[-1]) == (0.0, 1.0)
    assert min(np.diff(places)) >= 0.15
    np.testing.assert_allclose(places, (1 / low - 1 / np.array(values)) / (1 / low - 1 / high), atol=1e-12)
