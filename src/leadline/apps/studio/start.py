"""The choices that the page offers when it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leadline.apps.studio.examples import EXAMPLES
from leadline.apps.studio.form import form_fields
from leadline.apps.studio.scene import CLOUD_SUFFIXES, PRIOR_FILE, comparable_methods
from leadline.io.depth import DEPTH_SUFFIXES
from leadline.io.units import UNITS
from leadline.priors import PRIORS
from leadline.priors.model_files import needs_download

if TYPE_CHECKING:
    from leadline.apps.studio.server import Studio


def list_choices(studio: Studio) -> dict[str, Any]:
    """Examples, priors, methods, units and options, and the limits of uploads."""
    titles = {PRIOR_FILE: "a file", "none": "none: interpolate the measurements smoothly", **_offer_download(studio)}
    return {
        "examples": [{"name": name, "title": each.title, "text": each.text} for name, each in EXAMPLES.items()],
        "priors": [
            {"name": name, "title": titles.get(name, name), "metric": _is_metric(name)}
            for name in (PRIOR_FILE, *studio.predictors)
        ],
        "default_prior": studio.default_prior or PRIOR_FILE,
        "methods": [{"name": name, "title": title} for name, title in comparable_methods().items()],
        "units": list(UNITS),
        "options": list(form_fields().values()),
        "depth_suffixes": list(DEPTH_SUFFIXES),
        "cloud_suffixes": CLOUD_SUFFIXES,
        "upload_limit": studio.limits.upload,  # bytes
        "local": studio.local,  # only this machine can reach the server
    }


def _is_metric(name: str) -> bool:
    """Whether a network by its name on the page predicts metres, which nothing confirms without measurements."""
    network = name.partition(":")[0]
    return network in PRIORS and PRIORS[network].gauge == "metric"


def _offer_download(studio: Studio) -> dict[str, str]:
    """Titles of the networks whose weights would be downloaded, which say so: to choose one is to agree."""
    return {
        name: f"{name}: downloads {PRIORS[name].size} parameters, licence {PRIORS[name].licence}"
        for name in studio.predictors
        if name in PRIORS and needs_download(name)
    }
