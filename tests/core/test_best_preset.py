"""What the preset `best` wins over the paper's on real scenes with a real network, and with a strong prior."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.bench.compiled_metrics import Scorer
from leadline.bench.observations import CASES, simulate
from leadline.bench.sources import blend_with_reference
from leadline.core.options import CompletionOptions
from leadline.core.pipeline import complete
from leadline.core.prior import Prior
from leadline.datasets.scene_folders import SceneFolders
from leadline.priors import prior_source
from support.paths import SHARED

NETWORK = SHARED / "models" / "tcmonodepth_small.onnx"
ROOM = 1.08  # other processors round otherwise
# Ratios of AbsRel and of the median normal error, when this was written: distributed, central and outer.
REACHED = {
    ("nyuv2/basement_00000", False): ((0.49, 0.85), (0.51, 0.87), (0.79, 0.83)),
    ("nyuv2/basement_00000", True): ((0.31, 0.38), (0.58, 0.82), (0.86, 0.93)),
    ("tum_rgbd/fr2_desk_1", False): ((0.45, 0.74), (0.59, 0.96), (0.83, 0.95)),
    ("tum_rgbd/fr2_desk_1", True): ((0.17, 0.43), (0.55, 0.68), (0.92, 0.93)),
}


@pytest.mark.skipif(not NETWORK.is_file(), reason=f"needs the scenes and the network in {SHARED}, which are not there")
@pytest.mark.parametrize(("name", "strong"), REACHED)
def test_gains_on_real_scenes(name: str, strong: bool) -> None:
    folders = SceneFolders(SHARED / "data")
    scene = folders.load(name)
    assert scene.reference is not None
    assert scene.reference is not None
    scorer = Scorer(scene.reference, scene.camera)
    prior: Prior = prior_source(f"onnx:{NETWORK}")(scene.image, dataset=folders, name=name)
    if strong:
        prior = Prior(blend_with_reference(prior, scene.reference, 0.9))
    for case, wanted in zip(CASES, REACHED[name, strong], strict=True):
        measured = simulate(scene, case, dataset=folders.name)
        scores = []
        for options in (CompletionOptions.paper(), CompletionOptions.best()):
            depth = complete(prior, measured.sparse, options=options).depth
            known = np.isfinite(measured.sparse)
            np.testing.assert_array_equal(depth[known], measured.sparse[known])
            found = scorer.depth(depth, measured.scored), scorer.normals(depth, measured.scored)
            scores.append((found[0].absrel, found[1].median_deg))
        ratios = np.divide(scores[1], scores[0])
        assert (ratios < ROOM * np.array(wanted)).all(), f"{case}: {ratios}"
