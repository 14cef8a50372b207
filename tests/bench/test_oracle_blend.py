"""The prior that is blended with the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.bench.protocol import PriorEntry
from leadline.bench.protocol_files import parse_prior
from leadline.bench.records import RecordStatus
from leadline.bench.sources import OFFSET, POWER, OracleBlend, blend_with_reference, is_cached, open_prior
from leadline.core.prior import Prior
from leadline.datasets import Scene
from leadline.datasets.rendered import network_like_prior, render
from support.bench_runs import protocol, run

ROUNDING = 1e-5  # float32 depth and prior


@pytest.fixture(scope="module")
def room() -> Scene:
    return render(96, 72, seed=3)


def test_a_share_of_one_is_the_distorted_reference(room: Scene) -> None:
    assert room.reference is not None
    prior = Prior(network_like_prior(room.reference, seed=3))
    logs = np.log(room.reference.astype(np.float64))
    expected = np.exp(POWER * (logs - logs.mean())) + OFFSET
    np.testing.assert_allclose(blend_with_reference(prior, room.reference, 1.0), expected, rtol=ROUNDING)


def test_a_larger_share_has_smaller_errors(room: Scene) -> None:
    assert room.reference is not None
    prior = Prior(network_like_prior(room.reference, seed=3))
    target = np.log(blend_with_reference(prior, room.reference, 1.0) - OFFSET)
    off = [
        np.abs(np.log(blend_with_reference(prior, room.reference, q) - OFFSET) - target).mean() for q in (0.3, 0.7, 0.9)
    ]
    assert off[0] > off[1] > off[2] > 0


def test_an_oracle_prior_in_a_protocol(tmp_path: Path) -> None:
    entry = parse_prior("strong=oracle:0.9:none")
    assert (entry.label, entry.share, entry.spec, entry.kind) == ("strong", 0.9, "none", "none")
    assert isinstance(open_prior(entry), OracleBlend)
    assert is_cached(PriorEntry("onnx:m.onnx"))
    assert not is_cached(PriorEntry("oracle:0.5:onnx:m.onnx"))  # the image alone does not determine it
    chosen = replace(protocol("glog", count=1, cases=["distributed"]), priors=(entry, PriorEntry("none")))
    strong, flat = run(chosen, tmp_path)
    assert strong.status is RecordStatus.OK
    assert flat.status is RecordStatus.FAILED  # a constant prior cannot be fitted
    assert strong.absrel < 0.05


def test_paths_of_oracle_priors_become_absolute() -> None:
    assert parse_prior("oracle:0.9:onnx:m.onnx").source == f"oracle:0.9:onnx:{Path('m.onnx').resolve()}"


@pytest.mark.parametrize("source", ["oracle:far:none", "oracle::none", "oracle:0.9", "oracle:1.5:none"])
def test_malformed_oracle_priors_are_refused(source: str) -> None:
    with pytest.raises(InputError, match=r"like oracle:0\.9"):
        PriorEntry(source)


def test_an_image_without_reference_is_refused() -> None:
    with pytest.raises(InputError, match="needs a reference"):
        open_prior(PriorEntry("oracle:0.5:none"))(np.zeros((4, 4, 3), np.uint8))


def test_pixels_at_which_the_network_predicts_zero_have_no_prior(room: Scene) -> None:
    assert room.reference is not None
    values = network_like_prior(room.reference, seed=3).copy()
    values[:2, :5] = 0.0
    blend = blend_with_reference(Prior(values), room.reference, 0.9)
    assert np.array_equal(np.isnan(blend), values == 0)
