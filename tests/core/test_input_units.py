"""What Python says about arguments that are probably not what was meant, and the ways to say what is meant."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import leadline
from leadline.base.errors import InputError, InputWarning
from leadline.core.fit.estimator import FitStatus
from support.operators import bent_scene

SHAPE = (48, 64)


def scene() -> tuple[np.ndarray, np.ndarray]:
    """A prior and 16-bit measurements in millimetres."""
    prior, sparse, _ = bent_scene(SHAPE)
    return prior, np.rint(1000 * np.nan_to_num(sparse)).astype(np.uint16)


USES = {
    "complete": leadline.complete,
    "align": leadline.align,
    "stream": lambda *maps, **extra: leadline.Stream()(*maps, **extra),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("dtype", [np.uint16, np.int64, np.float32], ids=["uint16", "int64", "float32"])
def test_millimetres_are_not_taken_for_metres_in_silence(use, dtype):
    prior, counts = scene()
    counts = counts.astype(dtype)
    expected = "holds integers" if np.dtype(dtype).kind in "iu" else "more than a kilometre"
    with pytest.warns(InputWarning, match=f"`sparse` .*{expected}.*pass `unit='mm'`") as caught:
        USES[use](prior, counts)
    assert caught[0].filename == __file__  # the line that called, not one of ours
    assert len(caught) == 1
    for unit in ("mm", 1e-3, "m"):  # warnings are errors here: a stated unit is believed
        USES[use](prior, counts, unit=unit)


def test_it_warns_once_for_each_line_that_calls():
    prior, counts = scene()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            leadline.complete(prior, counts)
    assert len(caught) == 1


def test_a_unit_gives_the_depth_of_metres():
    prior, counts = scene()
    metres = (counts * np.float64(1e-3)).astype(np.float32)
    expected = leadline.complete(prior, metres).depth
    for unit in ("mm", 0.001, "0.001 m"):
        np.testing.assert_array_equal(leadline.complete(prior, counts, unit=unit).depth, expected)
    double = leadline.complete(prior, counts.astype(np.float64), unit="mm").depth
    assert double.dtype == np.float64
    with pytest.raises(InputError, match="`unit` must be one of mm, cm, m, kitti"):
        leadline.complete(prior, counts, unit="furlong")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda values: values.tolist(), np.float32),
        (lambda values: values.astype(np.int64), np.float32),
        (lambda values: values.astype(np.int32), np.float32),
        (lambda values: values.astype(np.float16), np.float32),
        (lambda values: values.astype(np.float64), np.float64),
    ],
    ids=["list", "int64", "int32", "float16", "float64"],
)
def test_lists_and_integers_give_float32(make, expected):
    prior = np.linspace(1.0, 2.0, 48 * 64).reshape(48, 64)
    sparse = np.zeros((48, 64))
    sparse[::8, ::8] = np.rint(3.0 * prior[::8, ::8])
    assert leadline.complete(prior, make(sparse), unit="m").depth.dtype == expected


def test_a_few_wrong_measurements_are_no_reason_to_warn():
    prior, sparse, _ = bent_scene(SHAPE)
    sparse.flat[np.flatnonzero(sparse > 0)[0]] = 5e3
    leadline.complete(prior, sparse)


@pytest.mark.parametrize("use", USES)
def test_a_disparity_given_as_depth_warns_and_auto_finds_it(use):
    prior, sparse, _ = bent_scene(SHAPE)
    with pytest.warns(
        InputWarning,
        match=r"falls where the measured depth rises.*`kind='disparity'` if.*`kind='depth'` if.*`kind='auto'`",
    ):
        wrong = USES[use](1 / prior, sparse)
    assert wrong.fit.status is FitStatus.ANTI_CORRELATED
    stated = USES[use](leadline.Prior(1 / prior, kind="disparity"), sparse)
    found = USES[use](leadline.Prior(1 / prior, kind="auto"), sparse)
    np.testing.assert_array_equal(found.calibrated, stated.calibrated)
    same = USES[use](leadline.Prior(prior, kind="auto"), sparse)
    np.testing.assert_array_equal(same.calibrated, USES[use](prior, sparse).calibrated)


def test_the_summary_says_what_auto_chose():
    prior, sparse, _ = bent_scene(SHAPE)
    found = leadline.complete(leadline.Prior(1 / prior, kind="auto"), sparse)
    assert found.chosen_kind == "disparity"
    assert "prior  taken as disparity, because it falls where the measured depth rises" in str(found)
    assert found.to_dict()["prior_kind_chosen"] == "disparity"
    stated = leadline.complete(prior, sparse)
    assert stated.chosen_kind is None
    assert "taken as" not in str(stated)


def test_auto_without_a_tendency_or_measurements_is_depth():
    prior = leadline.Prior(np.ones(SHAPE), kind="auto")
    sparse = np.zeros(SHAPE)
    assert prior.resolved(sparse, sparse > 0).kind == "depth"
    assert prior.resolved(sparse + 2, sparse == 0).kind == "depth"
    with pytest.raises(InputError, match="needs measurements"):
        prior.depth()


def test_measurements_outside_the_mask_do_not_decide():
    prior, sparse, _ = bent_scene(SHAPE)
    valid = np.zeros(SHAPE, bool)
    valid[:, :32] = True
    disparity = np.where(valid, 1 / prior, prior * 1e3)
    found = leadline.complete(leadline.Prior(disparity, kind="auto"), sparse, valid=valid)
    assert found.chosen_kind == "disparity"


def test_other_parts_of_leadline_are_not_warned():
    """The commands and the studio have notes of their own."""
    from leadline.methods import method, run_method

    prior, sparse, _ = bent_scene(SHAPE)
    run_method(method("ours"), leadline.Prior(1 / prior), sparse)
