"""Depth maps that some system made earlier, scored like any method: ``predictions:DIR`` and ``predictions:scene``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from leadline.base.arrays import FloatArray
from leadline.base.errors import FileError, InputError, param
from leadline.core.prior import Prior
from leadline.io.depth import DepthMap, read_depth
from leadline.methods import MethodResult, measured_pixels
from leadline.priors.without_network import find_prediction, require_image_size

SCENE = "scene"  # in place of a folder: the predictions that scene folders contain


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
    """The depth map of the image `name` in `folder`, in any format that `read_depth` reads.

    The prediction may have been made from other measurements than `sparse`, of which only the shape is used here. For a
    fair comparison, save predictions that were made from the same measurements.

    Parameters
    ----------
    folder : str
        A folder with one file per image, found by the image's name as `find_prediction` does; or ``"scene"``, for what
        a scene folder lists under ``predictions``.
    unit : str or float, optional
        Unit of the files. Default: `read_depth` finds or guesses it, and the status reports a guess.
    by : str, optional
        For ``folder="scene"``: the method whose prediction to take. Default: the first one listed.
    """
    measured_pixels(prior, sparse)
    if name is None:
        raise InputError("predictions are found by the image's name, and this image has none.")
    if folder == SCENE:
        if unit is not None:
            raise InputError(f"{param('unit')} is for folders of predictions: a scene states its own unit.")
        found = _read_scene_prediction(dataset, name, by)
    else:
        if by is not None:
            raise InputError(f"{param('by')} chooses among the predictions of a scene, got {by!r} for {folder}.")
        if not Path(folder).is_dir():
            raise FileError(f"{folder}: there is no such folder of predictions.")
        found = read_depth(find_prediction(Path(folder), name), unit)
    require_image_size(found.path, found.values.shape, prior.shape)
    missing = int(np.count_nonzero(np.isnan(found.values)))
    status = f"ok, but {missing} of {found.values.size} pixels have no depth" if missing else "ok"
    return MethodResult(found.values, f"{status}; {found.note}" if found.guessed else status)


def _read_scene_prediction(dataset: Any, name: str, by: str | None) -> DepthMap:
    if not hasattr(dataset, "describe"):
        raise InputError(f"{name}: is not from a scene folder, so it has no stored predictions. Give a folder.")
    entries = dataset.describe(name).get("predictions")
    listed = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    matching = [entry for entry in listed if by is None or entry.get("method") == by]
    if not matching:
        methods = ", ".join(str(entry.get("method")) for entry in listed) or "none"
        raise FileError(f"{name}: its scene.json lists no prediction{f' by {by}' if by else ''}; it lists: {methods}.")
    try:
        path, unit = dataset.root / name / matching[0]["file"], float(matching[0]["metres_per_unit"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{name}: a prediction in its scene.json needs `file` and `metres_per_unit`.") from error
    return read_depth(path, unit, key=matching[0].get("key"))
