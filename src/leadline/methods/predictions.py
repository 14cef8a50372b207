"""Depth maps that some system made earlier, scored like any method: ``predictions:DIR`` and ``predictions:scene``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError
from leadline.core.prior import Prior
from leadline.io.depth.files import DepthMap, read_depth
from leadline.methods import MethodResult
from leadline.methods.global_fits import measured_pixels
from leadline.priors.stored import find_prediction

SCENE = "scene"  # in place of a folder: the predictions that scene folders carry


def predictions(
    prior: Prior,
    sparse: FloatArray,
    *,
    folder: str,
    unit: str | float | None = None,
    by: str | None = None,
    dataset: Any = None,
    name: str | None = None,
) -> MethodResult:
    """The depth map of the image `name` in `folder`, in any form of `sensors.depth_files`.

    It was made earlier, perhaps from other measurements than `sparse`, of which nothing is used here but the shape: for
    a fair comparison save the predictions from the same ones. ``folder="scene"`` takes what a scene folder itself lists
    under ``predictions``.

    Parameters
    ----------
    prior : Prior
        Not used but for its shape.
    sparse : (H, W) array
        Likewise.
    folder : str
        Of one file an image, found by the image's name as `priors.stored.find_prediction` does.
    unit : str or float, optional
        Of the files; by default they say or are guessed by `read_depth`, and the status tells.
    by : str, optional
        For ``folder="scene"``: the method to take where a scene has predictions of several; default: the first.
    dataset, name
        Where the image comes from.

    Raises
    ------
    InputError
        The image has no name, or an option does not fit.
    FileError
        There is no prediction of this image, or none that can be read, or it is of another size.
    """
    begun = time.perf_counter()
    measured_pixels(prior, sparse)
    if name is None:
        raise InputError("predictions are found by the image's name, and this image has none.")
    if folder == SCENE:
        if unit is not None:
            raise InputError("`unit` is for folders of predictions: a scene states the unit of its own.")
        found = _of_scene(dataset, name, by)
    else:
        if by is not None:
            raise InputError(f"`by` chooses among the predictions of a scene, got {by!r} for the folder {folder}.")
        if not Path(folder).is_dir():
            raise FileError(f"{folder}: there is no such folder of predictions.")
        found = read_depth(find_prediction(Path(folder), name), unit)
    if found.values.shape != prior.shape:
        raise FileError(
            f"{found.path}: the prediction is {found.values.shape[1]}x{found.values.shape[0]}, "
            f"the image {prior.shape[1]}x{prior.shape[0]}. Save it at the image's size."
        )
    assumed = f"; {found.note}" if found.guessed else ""
    missing = int(np.count_nonzero(np.isnan(found.values)))
    status = f"ok, but {missing} of {found.values.size} pixels have no depth" if missing else "ok"
    return MethodResult(found.values, status + assumed, time.perf_counter() - begun, {})


def _of_scene(dataset: Any, name: str, by: str | None) -> DepthMap:
    if not hasattr(dataset, "describe"):
        raise InputError(f"{name}: comes from no scene folder, so it has no predictions of its own. Give a folder.")
    entries = dataset.describe(name).get("predictions")
    listed = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    fitting = [entry for entry in listed if by is None or entry.get("method") == by]
    if not fitting:
        there = ", ".join(str(entry.get("method")) for entry in listed) or "none"
        raise FileError(f"{name}: its scene.json lists no prediction{f' by {by}' if by else ''}; there are: {there}.")
    try:
        path, unit = dataset.root / name / fitting[0]["file"], float(fitting[0]["metres_per_unit"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{name}: a prediction in its scene.json needs `file` and `metres_per_unit`.") from error
    return read_depth(path, unit, key=fitting[0].get("key"))
