"""The page's labels for parameters, which errors and notes of the library refer to by their Python names."""

from __future__ import annotations

LABELS = {
    "image": "Image",
    "sparse": "Measurements",
    "points": "Measurements",
    "cloud": "Measurements",
    "prior": "Prior",
    "prior.kind": "The prior holds",
    "prior_kind": "The prior holds",
    "kind": "The prior holds",
    "unit": "Unit of the measurements",
    "sparse_unit": "Unit of the measurements",
    "reference": "Ground truth",
    "reference_unit": "Unit of the ground truth",
    "camera": "Camera",
    "intrinsics": "Camera",
    "extrinsics": "Extrinsics",
    "mask": "the drawn mask",
    "uncertainty": "Estimate the uncertainty",
    "sigma": "Estimate the uncertainty",
    "options": "Options of the method",
    "preset": "Preset",
    "exponent": "Exponent λ",
}
"""Labels of the controls of the page, by the Python name of what they set."""
_GROUPS = {"fit": "Fit", "reconstruction": "Reconstruction"}


def label_of(name: str) -> str:
    """The page's label of a parameter; names of nested options are dotted.

    Examples
    --------
    >>> label_of("unit"), label_of("fit.max_iterations"), label_of("outliers")
    ('Unit of the measurements', 'Fit: max iterations', 'Outliers')
    """
    if name in LABELS:
        return LABELS[name]
    group, _, field = name.rpartition(".")
    words = field.replace("_", " ")
    return f"{_GROUPS[group]}: {words}" if group in _GROUPS else words.capitalize()


def wording(name: str, value: str | None) -> str:
    """How the page refers to a parameter, and to a value that it should be given.

    Examples
    --------
    >>> wording("prior.kind", "disparity"), wording("unit", None)
    ('“The prior holds: disparity”', '“Unit of the measurements”')
    """
    return f"“{label_of(name)}”" if value is None else f"“{label_of(name)}: {value}”"
