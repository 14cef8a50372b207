"""Checks of the maps of a frame, and the steps that bring a prior and a mask to the size of the image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from leadline.base.arrays import BoolArray, FloatArray
from leadline.base.errors import FileError, InputError, param
from leadline.core.prior import Prior
from leadline.geometry.grids import mask_low_confidence, resize_bilinear
from leadline.io.depth import read_depth, read_image, read_values
from leadline.io.notes import Note, NoteKind, rename_parameter

# If more than half of the sparse map is measured and more than half of the prior is missing, they are swapped.
HALF = 0.5
# Medians outside this range (metres) suggest a wrong unit: mm read as m, or m read as mm.
PLAUSIBLE_MEDIAN = (1e-3, 1e3)
# Median depths of an image's ground truth and of its measurements differ by less than this factor: the next unit in use
# is four times as large or small.
SIMILAR_MEDIANS = 3.0
# Two sizes of the same view may still differ by a rounded pixel or two.
ASPECT_TOLERANCE = 0.02


def resize_prior(prior: Prior, shape: tuple[int, int]) -> Prior:
    """The prior interpolated to `shape` (H, W), in its own numbers: disparities as disparities."""
    if prior.shape == shape:
        return prior
    height, width = shape
    values = resize_bilinear(prior.values, shape, usable_pixels(prior))
    camera = None if prior.camera is None else prior.camera.scaled(width, height)
    return replace(prior, values=values, valid=None, camera=camera)


def read_mask(path: Path, shape: tuple[int, ...]) -> BoolArray:
    valid: BoolArray = read_image(path).max(axis=2) > 0
    if valid.shape != shape:
        raise InputError(
            f"{param('valid')} {path}: is {size_text(valid.shape)} and the image {size_text(shape)}; make them equal."
        )
    if not valid.any():
        raise InputError(
            f"{param('valid')} {path}: is 0 everywhere, so no pixel is valid; a mask is > 0 where there is something "
            "to use."
        )
    return valid


def exclude_painted(sparse: FloatArray, path: Path) -> tuple[FloatArray, int]:
    """The measurements outside a painted mask, an image that is > 0 inside, and the number of those inside."""
    painted = read_image(path).max(axis=2) > 0
    if painted.shape != sparse.shape:
        raise InputError(f"{param('mask')} belongs to an image of another size; clear it and draw it again.")
    kept = np.where(painted, sparse.dtype.type(np.nan), sparse)
    if not (kept > 0).any():
        raise InputError(f"{param('mask')} removes every measurement; erase a part of it.")
    return kept, int(np.count_nonzero(painted & (sparse > 0)))


def read_reference(
    path: Path, unit: str | None, sparse: FloatArray, sparse_unit: str | None = None
) -> tuple[FloatArray, tuple[Note, ...]]:
    """The ground truth in metres of the image that has the measurements `sparse`, (H, W) in metres, and notes about it.

    If the file does not determine its unit and none is stated, that of the measurements (`sparse_unit`, None if it was
    guessed itself) is taken where it gives similar distances, or else the unit is guessed.
    """
    try:
        measured = read_depth(path, unit)
        if measured.guessed and sparse_unit is not None:
            same = read_depth(path, sparse_unit)
            if abs(_log_ratio(same.values, sparse)) < math.log(SIMILAR_MEDIANS):
                measured = same
    except (FileError, InputError) as error:
        raise type(error)(rename_parameter(error.render(param), "unit", "reference_unit")) from error
    if measured.values.shape != sparse.shape:
        raise InputError(
            f"{param('reference')} {path}: is {size_text(measured.values.shape)} and the image "
            f"{size_text(sparse.shape)}; make them equal."
        )
    notes, advice = [], f"set {param('reference_unit')} if that is wrong"
    if measured.note is not None:
        text = f"reference: {rename_parameter(measured.note.text, 'unit', 'reference_unit')}"
        notes.append(Note(NoteKind.REFERENCE_UNIT_GUESSED, text))
    elif unit is None and measured.unit == sparse_unit != "m":
        text = f"reference: unit taken from the measurements, {measured.unit}; {advice}."
        notes.append(Note(NoteKind.UNIT_FROM_MEASUREMENTS, text))
    ratio = math.exp(_log_ratio(measured.values, sparse))
    if not 1 / SIMILAR_MEDIANS < ratio < SIMILAR_MEDIANS:  # also if one of them is empty
        text = f"reference: its median depth is {ratio:.3g} times that of the measurements; is"
        text = f"{text} {param('reference_unit')} right? It was read in the unit {measured.unit}."
        notes.append(Note(NoteKind.UNIT_IMPLAUSIBLE, text))
    return measured.values, tuple(notes)


def _log_ratio(depth: FloatArray, other: FloatArray) -> float:
    """The logarithm of the ratio of the median depths; NaN if one of them has no depth."""
    medians = [float(np.median(values[values > 0])) if (values > 0).any() else math.nan for values in (depth, other)]
    return math.log(medians[0] / medians[1])


def usable_pixels(prior: Prior) -> BoolArray:
    """Pixels at which the prior has a value. Zero is a disparity and a log depth, but no depth."""
    finite = np.isfinite(prior.values)
    usable = finite & (prior.values > 0) if prior.kind == "depth" else finite
    return usable if prior.valid is None else usable & prior.valid


def check_content(files: Mapping[str, Path], sparse: FloatArray, prior: Prior) -> None:
    """Refuse maps that are empty or that look swapped."""
    usable = float(np.mean(usable_pixels(prior)))
    measured = float(np.mean(sparse > 0))  # NaN compares as not measured
    if "prior" in files and "sparse" in files and usable < HALF < measured:
        raise InputError(
            f"{files['prior']}: {1 - usable:.0%} of the prior is missing while {measured:.0%} of the sparse map "
            f"{files['sparse']} is measured; are {param('sparse')} and {param('prior')} swapped?"
        )
    if usable == 0:
        raise InputError(
            f"{files.get('prior', files['image'])}: the prior has no usable pixel (all are NaN, infinite"
            f"{' or not positive' if prior.kind == 'depth' else ''}); check the file and {param('prior_kind')} (now "
            f"{prior.kind})."
        )
    if measured == 0:
        raise InputError(
            f"{files.get('sparse', files.get('points', files['image']))}: the sparse map has no measurement (all "
            "pixels are 0, NaN or infinite); check that this is the file of the measurements."
        )


def check_sizes(
    sizes: Mapping[str, tuple[int, ...]], *, resized: bool, scattered: bool, exif: str | None = None
) -> None:
    """Refuse different sizes, with a message that lists them and the options that allow them.

    A map in portrait of an image in landscape is refused in any case. `exif` is a sentence about the image's tag.
    """
    height, width = sizes["image"]
    turned = [
        name
        for name, size in sizes.items()
        if abs(size[0] * height / (size[1] * width) - 1) < ASPECT_TOLERANCE < abs(height / width - 1)
    ]
    if turned:
        shown = " and ".join(f"the {name} map is {size_text(sizes[name])}" for name in turned)
        about = "" if exif is None else f" {exif}"
        raise InputError(
            f"{shown} and the image {width}x{height}: they are turned by 90 degrees.{about} Turn the image or the maps "
            "so that all have the same pixels."
        )
    remedies = []
    if sizes["prior"] != sizes["image"] and not resized:
        remedies.append(f"{param('resize_prior', True)} to interpolate the prior")
    if sizes["sparse"] != sizes["image"] and not scattered:
        remedies.append(f"{param('scatter_sparse', True)} to move each measurement to its nearest pixel")
    if remedies:
        named = ", ".join(f"{name} {size_text(size)}" for name, size in sizes.items())
        raise InputError(f"the sizes differ: {named}; if all show the same view, add {' and '.join(remedies)}.")


def check_plausible(sizes: Mapping[str, tuple[int, ...]], sparse: FloatArray, unit: str) -> list[Note]:
    """Notes about maps with other aspect ratios than the image, and about distances that suggest a wrong unit."""
    height, width = sizes["image"]
    notes = [
        Note(
            NoteKind.ASPECT_RATIO,
            f"the {name} map is {size_text(size)} and the image {width}x{height}: with different aspect ratios they "
            "may not show the same view.",
        )
        for name, size in sizes.items()
        if abs(size[1] * height / (size[0] * width) - 1) > ASPECT_TOLERANCE
    ]
    median = float(np.nanmedian(sparse))
    nearest, farthest = PLAUSIBLE_MEDIAN
    if not nearest <= median <= farthest:
        lie = f"half of the measurements lie {'within' if median < nearest else 'beyond'} {median:.3g} m"
        text = f"{lie} if read in the unit {unit}; is {param('unit')} right?"
        notes.append(Note(NoteKind.UNIT_IMPLAUSIBLE, text))
    return notes


def size_text(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[0]}"


def without_doubtful(
    sparse: Path, confidence: Path, depth: FloatArray, least: float
) -> tuple[FloatArray, tuple[Note, ...]]:
    """The measurements whose confidence is at least `least`, and a note that counts the others."""
    levels = read_values(confidence)
    if levels.shape != depth.shape:
        raise InputError(
            f"{param('confidence')} {confidence}: is {size_text(levels.shape)} and the sparse map "
            f"{size_text(depth.shape)}; it must have one value for each pixel of the sparse map."
        )
    confirmed = mask_low_confidence(depth, levels, least)
    before, after = (int(np.count_nonzero(values > 0)) for values in (depth, confirmed))
    if before and not after:
        raise InputError(
            f"{param('confidence')} {confidence}: no measurement of {sparse} has a confidence of {least:g} or more "
            f"(the largest is {float(np.nanmax(levels[depth > 0])):g}); lower {param('min_confidence')}."
        )
    if after == before:
        return confirmed, ()
    text = (
        f"{before - after} of {before} measurements have a confidence below {least:g} and were left out; "
        f"{param('min_confidence')} changes the limit."
    )
    return confirmed, (Note(NoteKind.LOW_CONFIDENCE, text),)
