"""The outlier policies of the core on tensors: what is left out there is left out here."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.core.options import CompletionOptions
from leadline.core.pipeline import complete
from leadline.datasets.rendered import render

torch = pytest.importorskip("torch")


def test_regions_are_left_out_as_in_the_core() -> None:
    from leadline.torch import complete as complete_tensors

    reference = render(160, 120).reference
    assert reference is not None
    sparse = np.zeros_like(reference)
    sparse[2::4, 2::4] = reference[2::4, 2::4]
    sparse[40:80, 60:110] *= 1.25
    options = CompletionOptions(outliers="regions")
    expected = complete(reference**1.3, sparse, options=options)
    assert expected.outliers is not None
    assert expected.outliers.where.size > 100
    found = complete_tensors(torch.tensor(reference**1.3)[None], torch.tensor(sparse)[None], options=options)
    np.testing.assert_allclose(found.depth[0].numpy(), expected.depth, rtol=1e-4)
