"""Materials: the reflectance and gloss of surfaces, from patterns and noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.base.arrays import FloatArray
from leadline.datasets.rendered.solids import Points, Solid


def paint(solid: Solid, place: Points, normal: Points, table: NDArray[np.int64]) -> tuple[Points, FloatArray]:
    """Reflectance, (3, N), and gloss, (N,), at surface points in local coordinates."""
    x, y, z = place
    tint = np.array(solid.tint, dtype=np.float64)[:, None]
    flat = np.zeros(place.shape[1])
    if solid.material == "room":
        wall = 0.93 + 0.1 * noise(place * 5, table, octaves=3) + 0.05 * noise(place * 55, table)
        warm = np.where(normal[1] < 0, 0.82, np.where(np.abs(normal[0]) > 0.5, 0.66, 0.7))
        plaster = np.array([[0.96], [0.93], [0.86]]) * warm * wall
        board, end = np.floor(x / 0.16), z / 1.3
        end = end + np.modf(np.abs(board) * 0.618)[0]
        number = board * 17 + np.floor(end) * 5
        tone = 0.75 + 0.5 * table[number.astype(np.int64) & 255] / 255
        grain = noise(np.stack((x * 46, number, z * 2.6)), table, octaves=2)
        gap = (np.abs(x / 0.16 - np.rint(x / 0.16)) < 0.014) | (np.abs(end - np.rint(end)) < 0.0018)
        planks = np.array([[0.45], [0.29], [0.165]]) * tone * (0.72 + 0.5 * grain) * np.where(gap, 0.35, 1.0)
        floor = normal[1] > 0
        return np.where(floor, planks, plaster), np.where(floor, 0.5, 0.0)
    if solid.material in ("wood", "crate"):
        longest = int(np.argmax(solid.half))
        stretch = np.where(np.arange(3) == longest, 3.0, 34.0)[:, None]
        shade = 0.66 + 0.6 * noise(place * stretch + solid.centre[0] * 9, table, octaves=2)
        if solid.material == "crate":
            edge = np.sort(np.abs(place) / np.array(solid.half)[:, None], axis=0)[1]  # along the face, not across it
            slats = np.abs(np.modf(np.abs(y / 0.115) + 0.5)[0] - 0.5) < 0.035
            shade = shade * np.where(edge > 0.82, 1.12, np.where(slats, 0.3, 0.9))
            shade *= np.where(np.abs(edge - 0.82) < 0.012, 0.45, 1)
        return tint * shade, flat + 0.25
    if solid.material == "rug":
        u, v = np.abs(x) / solid.half[0], np.abs(z) / solid.half[2]
        cream, border = np.array([[0.78], [0.7], [0.56]]), np.array([[0.1], [0.13], [0.26]])
        diamond = np.floor(x / 0.2 + z / 0.2) + np.floor(x / 0.2 - z / 0.2)
        stripes = np.where(np.mod(np.floor(x / 0.4), 3) == 1, cream, tint * 0.72)
        pattern = np.where(np.mod(diamond, 2) == 0, tint, stripes)
        rim = np.maximum(u * solid.half[0] - solid.half[0], v * solid.half[2] - solid.half[2])
        pattern = np.where(rim > -0.16, border, np.where(rim > -0.2, cream, pattern))
        return np.where(rim > -0.04, cream, pattern) * (0.75 + 0.5 * noise(place * 130, table)), flat
    if solid.material == "fabric":
        weave = 0.5 + 0.5 * np.sin(x * 420) * np.sin(y * 420 + z * 420)
        return tint * (0.82 + 0.16 * weave + 0.2 * noise(place * 14, table, octaves=2)), flat
    if solid.material == "leaf":
        return tint * (0.35 + 1.3 * noise(place * 26 + solid.centre[1] * 31, table, octaves=2)), flat + 0.1
    if solid.material == "ball":
        sector = np.mod(np.floor(np.arctan2(y, x) / math.pi * 4), 2) == 0
        return np.where(sector, tint, np.array([[0.88], [0.86], [0.8]])) + 0 * z, flat + 0.6
    if solid.material == "painting":
        field = 3.2 * noise(np.stack((x * 2.2, y * 5.5, z + 4)), table, octaves=3) + 1.4 * y
        hues = np.array([[0.85, 0.93, 0.9, 0.35, 0.12], [0.62, 0.8, 0.5, 0.42, 0.2], [0.3, 0.6, 0.25, 0.45, 0.33]])
        return hues[:, np.clip(np.floor(field * 1.55).astype(np.int64), 0, 4)], flat
    if solid.material == "street":
        high = y + solid.half[1]  # above the ground
        haze = np.clip(high / np.hypot(np.hypot(x, z), 1.0) / 0.7, 0, 1) ** 0.6
        clouds = np.clip(noise(place * np.array([[0.05], [0.12], [0.05]]) + 40, table, octaves=4) * 3 - 1.35, 0, 1)
        sky = np.array([[0.75], [0.85], [0.95]]) * (1 - haze) + np.array([[0.22], [0.45], [0.85]]) * haze
        sky = sky * (1 - 0.6 * clouds) + 0.95 * 0.6 * clouds
        grey = 0.17 * (0.8 + 0.25 * noise(place * 3, table, octaves=2) + 0.2 * noise(place * 60, table))
        dash = (np.abs(x) < 0.08) & (np.mod(z, 4.5) < 2.2)
        line = (np.abs(np.abs(x) - 1.75) < 0.06) | dash
        road = np.where(line, 0.62, grey) * np.array([[1.0], [1.0], [1.02]])
        return np.where(normal[1] > 0, road, sky), flat
    if solid.material == "paving":
        gap = (np.mod(x, 0.5) < 0.02) | (np.mod(z, 0.5) < 0.02)
        return tint * np.where(gap, 0.6, 0.85 + 0.25 * noise(place * 7, table, octaves=2)), flat
    if solid.material == "facade":
        along, up = np.where(np.abs(normal[0]) > 0.5, z, x), y + solid.half[1]
        across, storey = np.mod(along + 50, 2.3) - 1.15, np.mod(up, 3.0) - 1.65
        frame = (np.abs(across) < 0.62) & (np.abs(storey) < 0.9) & (np.abs(normal[1]) < 0.5)
        bars = (np.abs(across) < 0.03) | (np.abs(storey) < 0.03)
        window = frame & (np.abs(across) < 0.54) & (np.abs(storey) < 0.82) & ~bars
        courses = np.where(np.mod(up, 0.3) < 0.02, 0.85, 1.0) * (0.85 + 0.3 * noise(place * 1.7, table, octaves=3))
        wall = np.where(frame, 0.7, tint * courses)
        curtain = 0.06 + 0.1 * noise(np.stack((np.floor((along + 50) / 2.3), np.floor(up / 3), x * 0)) * 7.3, table)
        return np.where(window, curtain * np.array([[0.8], [1.0], [1.2]]), wall), flat + 0.4 * window
    speckle = 1.0 if solid.material == "light" else 0.95 + 0.1 * noise(place * 60, table)
    return tint * speckle + 0 * x, flat + {"glaze": 0.8, "plain": 0.12}.get(solid.material, 0.0)


def noise(place: Points, table: NDArray[np.int64], *, octaves: int = 1) -> NDArray[np.float64]:
    """Smooth value noise in [0, 1], (N,), from a permutation of 0..255."""
    total, weight = np.zeros(place.shape[1]), 0.0
    for octave in range(octaves):
        scaled = place * 2.0**octave
        cell = np.floor(scaled)
        fraction = scaled - cell
        fraction = fraction * fraction * (3 - 2 * fraction)
        corner = cell.astype(np.int64)
        value: Any = 0.0
        for i in (0, 1):
            first = table[(corner[0] + i) & 255]
            for j in (0, 1):
                second = table[(first + corner[1] + j) & 255]
                for k in (0, 1):
                    share = (fraction[0] if i else 1 - fraction[0]) * (fraction[1] if j else 1 - fraction[1])
                    third = table[(second + corner[2] + k) & 255]
                    value = value + share * (fraction[2] if k else 1 - fraction[2]) * third
        total += value * 0.5**octave / 255
        weight += 0.5**octave
    return total / weight
