"""What a page needs to draw a completed image in 3D, and the regions of outliers over its picture."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from leadline.base.arrays import FloatArray, IndexArray
from leadline.base.strict_json import dump_json
from leadline.core.outliers import Outliers
from leadline.geometry.surface import surface_from_depth
from leadline.report.colour import colour_range, colourise
from leadline.report.completed_scene import CompletedScene
from leadline.report.diagnostics.curves import even_subset

MAX_POINTS, MAX_MEASUREMENTS = 400_000, 60_000
_MAP_SIZE = 480  # cells along the longer side of a map of regions; in them regions are shown and clicked
_REACH = 1.5  # a region reaches this many mean distances between measurements beyond its own


def encode_points(scene: CompletedScene, depth: FloatArray) -> bytes:
    """A depth map as coloured points for a page, thinned evenly: little endian, a header and then arrays.

    A uint32 is the length of the header, a JSON object that begins after it: ``points``, the number n of points, of
    which those from ``clean`` on lie on depth edges; ``colourings``, the names of the colours that each has;
    ``measurements``, the number m of measured points, of which the last ``left_out`` are outliers; and ``corners``, the
    rays through the corners of the image at a depth of 1 m. Then follow the points as (n, 3) and the measurements as
    (m, 3) float32, in metres, x right, y down, z forward, and each of the colourings as (n, 3) uint8.
    """
    low, high = colour_range(scene.completion.depth)
    colours = {"image": scene.image, "depth": colourise(depth, low=low, high=high)}
    if scene.completion.sigma is not None:
        colours["uncertainty"] = colourise(scene.completion.sigma, scheme="error")
    points = scene.camera.points(depth).reshape(-1, 3)
    clean = surface_from_depth(depth, scene.camera).pixels
    on_edges = np.setdiff1d(np.flatnonzero(np.isfinite(points).all(axis=-1)), clean, assume_unique=True)
    share = min(1.0, MAX_POINTS / max(1, clean.size + on_edges.size))
    clean, on_edges = (_thinned(pixels, share) for pixels in (clean, on_edges))
    shown = np.concatenate((clean, on_edges))
    used, left_out = _measured_points(scene)
    height, width = depth.shape
    rays = scene.camera.points(np.ones((height, width), np.float32))
    header = {
        "points": shown.size,
        "clean": clean.size,
        "colourings": list(colours),
        "measurements": len(used) + len(left_out),
        "left_out": len(left_out),
        "corners": [rays[row, column].tolist() for row, column in ((0, 0), (0, -1), (-1, -1), (-1, 0))],
    }
    text = dump_json(header).encode()
    text += b" " * (-len(text) % 4)  # floats begin at a multiple of four bytes
    arrays = [
        points[shown].astype("<f4"),
        used,
        left_out,
        *(colour.reshape(-1, 3)[shown] for colour in colours.values()),
    ]
    return b"".join([np.array(len(text), "<u4").tobytes(), text, *(array.tobytes() for array in arrays)])


def _thinned(pixels: IndexArray, share: float) -> IndexArray:
    return pixels[even_subset(pixels.size, math.ceil(share * pixels.size))]


def _measured_points(scene: CompletedScene) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The measurements as points, (k, 3): those that were used, and the outliers."""
    points = scene.camera.points(scene.sparse).reshape(-1, 3)
    outliers = scene.completion.outliers
    left_out = np.empty(0, np.int64) if outliers is None else outliers.where
    used = np.setdiff1d(np.flatnonzero(np.isfinite(points).all(axis=-1) & (scene.sparse.ravel() > 0)), left_out)
    share = min(1.0, MAX_MEASUREMENTS / max(1, used.size + left_out.size))
    first, second = (points[_thinned(pixels, share)].astype("<f4") for pixels in (used, left_out))
    return first, second


def map_regions(outliers: Outliers, sparse: FloatArray) -> NDArray[np.uint16]:
    """The regions of outliers as a map of the whole image, reduced to 480 cells along its longer side.

    A cell has the number of the region of the nearest measurement, counted from 1; 0 is outside of all, and where no
    measurement is near.
    """
    height, width = sparse.shape
    step = -(-max(height, width) // _MAP_SIZE)
    shape = -(-height // step), -(-width // step)
    labels = np.zeros(sparse.size, np.uint16)
    labels[outliers.where] = outliers.region
    measured = np.flatnonzero(sparse.ravel() > 0)
    rows, columns = measured // width // step, measured % width // step
    cells, known = np.zeros(shape, np.uint16), np.zeros(shape, np.bool_)
    known[rows, columns] = True
    np.maximum.at(cells, (rows, columns), labels[measured])
    distance, nearest = ndimage.distance_transform_edt(~known, return_indices=True)
    spacing = math.sqrt(known.size / max(1, int(known.sum())))
    found: NDArray[np.uint16] = np.where(distance <= _REACH * spacing, cells[tuple(nearest)], np.uint16(0))
    return found
