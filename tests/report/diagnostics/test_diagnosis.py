"""The diagnosis of one image."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.bench.tables import OURS, RESPONSE
from leadline.core.prior import Prior
from leadline.methods import MethodResult, method
from leadline.report.diagnostics import ADAPTIVE, SCALED_PRIOR, all_linearity, chosen_exponent, diagnose
from leadline.report.diagnostics.curves import FIXED_EXPONENTS, GROUPS
from leadline.report.image_results import ImageResults


def make_results(rng, shape=(90, 120)):
    rows, columns = np.indices(shape)
    reference = (1.5 + 0.01 * rows + 0.005 * columns + 0.4 * (columns > 70)).astype(np.float32)
    prior = Prior((reference**1.7 * np.exp(rng.normal(0, 0.01, shape))).astype(np.float32))
    sparse = np.full(shape, np.nan, np.float32)
    sparse[4::8, 4::8] = reference[4::8, 4::8]
    predictions = {}
    for name, label in {"gmetric": "GMetric", "response": RESPONSE, "ours": OURS}.items():
        predictions[label] = method(name)(prior, sparse)
    image = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    return ImageResults("made", image, prior, sparse, reference, np.isnan(sparse), None, predictions)


def test_a_diagnosis_has_every_part_and_the_methods_own_numbers(rng):
    results = make_results(rng)
    found = diagnose(results)
    assert list(found.linearity) == [SCALED_PRIOR, "GMetric", RESPONSE, OURS]
    for label in ("GMetric", RESPONSE, OURS):
        error = np.abs(results.predictions[label].depth - results.reference)[results.scored]
        assert found.linearity[label].mae == pytest.approx(float(error.mean()), rel=1e-6)
        assert found.residuals[label].at.size == GROUPS
    assert len({entry.window for entry in found.linearity.values()}) == 1
    assert found.profile.chosen == results.predictions[RESPONSE].parameters["exponent"]
    assert found.linearity[RESPONSE].trend_cm < found.linearity["GMetric"].trend_cm  # the prior is bent
    assert list(found.gains) == [*FIXED_EXPONENTS, ADAPTIVE]
    written = found.to_dict()
    assert written["exponent_profile"]["chosen"] == found.profile.chosen
    assert written["linearity"][OURS]["trend_cm"] == found.linearity[OURS].trend_cm


def test_without_a_recorded_exponent_it_is_estimated(rng):
    results = make_results(rng)
    recorded = results.predictions[RESPONSE].parameters["exponent"]
    bare = ImageResults(
        **{**vars(results), "predictions": {"GMetric": MethodResult(results.predictions["GMetric"].depth)}},
    )
    assert chosen_exponent(bare) == pytest.approx(recorded, rel=1e-3)


def test_the_prior_is_scaled_by_one_factor(rng):
    results = make_results(rng)
    ten = ImageResults(**{**vars(results), "prior": Prior(results.prior.values * 10)})
    first, second = (all_linearity(own, [])[SCALED_PRIOR] for own in (results, ten))
    np.testing.assert_allclose(first.predicted, second.predicted, rtol=1e-5)
    assert first.pearson == pytest.approx(second.pearson, abs=1e-6)


def test_no_measurement_with_a_prior_is_an_input_error(rng):
    results = make_results(rng)
    with pytest.raises(InputError, match="no measurement has a valid prior"):
        diagnose(ImageResults(**{**vars(results), "sparse": np.full_like(results.sparse, np.nan)}))
