"""`leadline.torch` against the NumPy core on photographs with a real network's prior, weak and strong."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

import leadline
from leadline.bench.observations import CASES, simulate
from leadline.bench.sources import blend_with_reference
from leadline.core.prior import Prior
from leadline.datasets.scene_folders import SceneFolders
from leadline.priors import prior_source
from support.matrix import parametrize
from support.paths import DATA, MODELS

torch = pytest.importorskip("torch")

import leadline.torch as lt  # noqa: E402

NETWORK = MODELS / "tcmonodepth_small.onnx"
pytestmark = pytest.mark.skipif(
    not (DATA.is_dir() and NETWORK.is_file()), reason=f"needs the scenes in {DATA} and the network in {MODELS}"
)
# Both stop at the same residual and differ by the order of float32 sums.
LARGEST, MEDIAN = 1e-4, 1e-5
QUICK = ("nyuv2/basement_00000",)


def names():
    """All scenes with a reference."""
    if not DATA.is_dir():
        return list(QUICK)
    folders = sorted(path.parent for path in DATA.glob("*/*/scene.json"))
    scenes = [folder for folder in folders if json.loads((folder / "scene.json").read_text())["reference"]]
    return [str(folder.relative_to(DATA)) for folder in scenes]


@cache
def load(name):
    """The scene, and its weak prior (the network's) and strong one (nine tenths of it replaced by the reference)."""
    folders = SceneFolders(DATA)
    scene = folders.load(name)
    weak = prior_source(f"onnx:{NETWORK}")(scene.image, dataset=folders, name=name)
    strong = Prior(blend_with_reference(weak, scene.reference, 0.9))
    return folders, scene, {"weak": weak, "strong": strong}


# In one frame the network's prior is anti-correlated with the measurements, of which the core warns.
@pytest.mark.filterwarnings("ignore::leadline.base.errors.InputWarning")
@pytest.mark.parametrize("backend", ["core", "tensor"])
@pytest.mark.parametrize("preset", ["best", "paper"])
@parametrize("name", names(), quick=QUICK)
def test_the_depth_is_that_of_the_core(name, preset, backend):
    folders, scene, priors = load(name)
    for strength, prior in priors.items():
        h = np.ascontiguousarray(prior.depth())
        sparses = [np.nan_to_num(simulate(scene, case, dataset=folders.name).sparse) for case in CASES]
        expected = [leadline.complete(h, sparse, options=preset) for sparse in sparses]
        batch = torch.tensor(np.stack([h] * len(sparses))), torch.tensor(np.stack(sparses))
        result = lt.complete(*batch, options=preset, backend=backend)
        for k, (case, sparse) in enumerate(zip(CASES, sparses, strict=True)):
            where = f"{name} {strength} {case}"
            depth, wanted = result.depth[k].numpy(), expected[k].depth
            np.testing.assert_array_equal(np.isfinite(depth), np.isfinite(wanted), where)
            np.testing.assert_array_equal(depth[sparse > 0], sparse[sparse > 0], where)
            errors = np.abs(depth / wanted - 1)[np.isfinite(wanted)]
            assert errors.max() <= LARGEST, where
            assert np.median(errors) <= MEDIAN, where
            assert lt.FIT_STATUSES[int(result.status[k])] is expected[k].fit.status, where
            assert lt.SOLVE_STATUSES[int(result.solve_status[k])] is expected[k].reconstruction.status, where
