"""Results of one image: recomputed from a run, or computed from arrays."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("matplotlib")


from leadline.base.errors import FileError, InputError
from leadline.bench.records import read_records, read_run_protocol
from leadline.bench.tables import OURS
from leadline.core.prior import Prior
from leadline.datasets.rendered import RenderedDataset
from leadline.report import image_results
from leadline.report.image_results import compare_methods, recompute_results

FLOAT32 = 1e-6  # relative: both scores are sums in float64 of float32 errors, in different orders


def test_recomputed_maps_have_the_records_scores(run_folder, image_case, recomputed):
    for record in read_records(run_folder):
        if record.method in recomputed.predictions and image_case[:3] == (record.dataset, record.image, record.case):
            found = recomputed.predictions[record.method]
            error = np.abs(found.depth - recomputed.reference)[recomputed.scored]
            assert float(np.nanmean(error, dtype=np.float64)) == pytest.approx(record.mae, rel=FLOAT32)
            assert found.parameters == json.loads(record.parameters)


def test_the_second_time_no_method_runs(run_folder, image_case, tmp_path, monkeypatch):
    # A copy without cached depth maps, since other tests of the session compute some in the folder itself.
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder, ignore=shutil.ignore_patterns(image_results.DEPTH_FOLDER))
    first = recompute_results(folder, image_case, (OURS,))

    def refuse(*_, **__):
        raise AssertionError("a method ran again")

    monkeypatch.setattr(image_results.Evaluator, "predict", refuse)
    again = recompute_results(folder, image_case, (OURS,))
    np.testing.assert_array_equal(again.predictions[OURS].depth, first.predictions[OURS].depth)
    with pytest.raises(AssertionError, match="ran again"):
        recompute_results(folder, image_case, ("KNN",))


def test_data_that_changed_since_the_run_are_refused(run_folder, image_case, monkeypatch):
    load = RenderedDataset.load
    monkeypatch.setattr(RenderedDataset, "load", lambda self, name: _with_changed_reference(load(self, name)))
    with pytest.raises(InputError, match="the reference has changed since the run"):
        recompute_results(run_folder, image_case, (OURS,))


def _with_changed_reference(scene):
    return replace(scene, reference=scene.reference + 1)


def test_the_protocol_comes_back_as_it_was(run_folder, tmp_path):
    found = read_run_protocol(run_folder)
    assert [entry.name for entry in found.methods] == [
        "raw",
        "gdisp",
        "gmetric",
        "glog",
        "knn",
        "lwlr",
        "response",
        "ours",
        "best",
    ]
    assert found.datasets[0].options["width"] == 120
    with pytest.raises(FileError, match="contains no run"):
        read_run_protocol(tmp_path)


def test_a_missing_record_is_an_input_error(run_folder, image_case):
    with pytest.raises(InputError, match="no 'Poisson' for Rooms"):
        recompute_results(run_folder, image_case, ("Poisson",))


def test_a_mask_keeps_pixels_out_of_the_pairs_but_not_out_of_the_score():
    depth = np.linspace(1, 2, 400, dtype=np.float32).reshape(20, 20)
    sparse = np.where(np.arange(400).reshape(20, 20) % 7 == 0, depth, 0)
    valid = np.arange(20)[:, np.newaxis] < 15
    found = compare_methods(
        "made", np.zeros((20, 20, 3), np.uint8), Prior(depth), sparse, depth, valid=valid & (depth > 0)
    )
    assert np.isnan(found.sparse[15:]).all()
    assert found.pairs()[0].size == np.count_nonzero(sparse[:15])
    assert found.scored[15:].all()
    assert not found.scored[:15][sparse[:15] > 0].any()
