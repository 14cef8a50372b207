"""Ratios to the paper's method, and the prior that is pulled towards the reference."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.bench.protocol import PriorEntry, _prior
from leadline.bench.pulled import OFFSET, POWER, PulledPrior, pull
from leadline.bench.ratios import ratios_table
from leadline.bench.records import Record
from leadline.bench.sources import cached, open_prior
from leadline.core.prior import Prior
from leadline.datasets.rendered import network_like_prior, render
from leadline.datasets.scene import Scene
from support.bench_runs import protocol, run

ROUNDING = 1e-5  # float32 depth and prior


def record(method: str, image: str, absrel: float, nmed: float = math.nan, case: str = "outer") -> Record:
    labels = {"dataset": "d", "prior": "p", "status": "ok"}
    return Record(
        key=f"{method}{image}{case}", method=method, image=image, case=case, absrel=absrel, nmed=nmed, **labels
    )


def test_means_are_geometric_and_paired_by_image() -> None:
    table = ratios_table(
        [
            *(record("Ours", image, 0.1, 10.0) for image in "abc"),
            record("Best", "a", 0.05, 5.0),
            record("Best", "b", 0.2, math.nan),
            record("Best", "lost", 9.0),  # no partner
        ]
    )
    assert table is not None
    (block,) = table.blocks
    ((label, values),) = [(row.label, row.values) for row in block.rows]
    assert (block.title, label) == ("p", "Best, outer")
    images, mean, low, high, worst, normals, *_ = values
    assert images == 2
    assert mean == pytest.approx(1.0)  # half and double
    assert (low, high, worst) == pytest.approx((0.5, 2.0, 2.0))
    assert normals == pytest.approx(0.5)


def test_without_the_base_there_is_no_table() -> None:
    assert ratios_table([record("Best", "a", 0.1)]) is None
    assert ratios_table([]) is None


@pytest.fixture(scope="module")
def room() -> Scene:
    return render(96, 72, seed=3)


def test_pulled_all_the_way_it_is_the_bent_reference(room: Scene) -> None:
    assert room.reference is not None
    prior = Prior(network_like_prior(room.reference, seed=3))
    logs = np.log(room.reference.astype(np.float64))
    expected = np.exp(POWER * (logs - logs.mean())) + OFFSET
    np.testing.assert_allclose(pull(prior, room.reference, 1.0), expected, rtol=ROUNDING)


def test_the_nearer_the_stronger(room: Scene) -> None:
    assert room.reference is not None
    prior = Prior(network_like_prior(room.reference, seed=3))
    target = np.log(pull(prior, room.reference, 1.0) - OFFSET)
    off = [np.abs(np.log(pull(prior, room.reference, q) - OFFSET) - target).mean() for q in (0.3, 0.7, 0.9)]
    assert off[0] > off[1] > off[2] > 0


def test_in_a_protocol_it_is_another_prior(tmp_path: Path) -> None:
    entry = _prior("strong=pulled:0.9:none")
    assert entry == PriorEntry("none", "strong", pulled=0.9)
    assert isinstance(open_prior(entry), PulledPrior)
    assert not cached(PriorEntry("onnx:m.onnx", pulled=0.5))
    assert cached(PriorEntry("onnx:m.onnx"))
    from dataclasses import replace

    chosen = replace(protocol("glog", count=1, cases=["distributed"]), priors=(entry, PriorEntry("none")))
    strong, flat = run(chosen, tmp_path)
    assert strong.status == "ok"
    assert flat.status == "failed"  # a constant prior has no gain
    assert strong.absrel < 0.05


@pytest.mark.parametrize("spec", ["a=pulled:far:none", "pulled::none"])
def test_a_share_must_be_a_number(spec: str) -> None:
    with pytest.raises(InputError, match=r"like pulled:0\.9"):
        _prior(spec)


def test_a_share_must_be_a_share_and_an_image_must_have_a_reference() -> None:
    with pytest.raises(InputError, match="at most 1"):
        open_prior(PriorEntry("none", pulled=1.5))
    source = open_prior(PriorEntry("none", pulled=0.5))
    with pytest.raises(InputError, match="no reference"):
        source(np.zeros((4, 4, 3), np.uint8))
