"""What may go into complete(), in which types and layouts, and how it refuses what may not."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from leadline.base.errors import InputError, InputWarning
from leadline.core.fit.response import Response
from leadline.core.pipeline import Completion, complete
from leadline.core.prior import Prior
from support.operators import bent_scene, generator

SHAPE = (50, 67)
STORED = 3e-7  # float32 priors and results, a few roundings apart
SOLVED = 3e-5  # two runs that stop at 1e-6 on different sides

PRIOR, SPARSE, _ = bent_scene(SHAPE)
HIT = SPARSE > 0


@pytest.fixture(scope="module")
def plain() -> Completion:
    return complete(PRIOR, SPARSE)


def strided(array):
    """The same values, every second of a larger array."""
    wide = np.zeros((2 * array.shape[0], 3 * array.shape[1]), array.dtype)
    wide[::2, ::3] = array
    return wide[::2, ::3]


def unaligned(array):
    buffer = bytearray(array.nbytes + 1)
    result = np.ndarray(array.shape, array.dtype, buffer, offset=1)
    result[:] = array
    return result


def read_only(array):
    result = array.copy()
    result.flags.writeable = False
    return result


LAYOUTS = {
    "fortran": np.asfortranarray,
    "read-only": read_only,
    "negative strides": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "strided": strided,
    "unaligned": unaligned,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "list": np.ndarray.tolist,
    "matrix": lambda a: a.view(type("Subclass", (np.ndarray,), {})),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layout_in_memory_changes_nothing(layout, plain):
    result = complete(layout(PRIOR), layout(SPARSE), valid=layout(np.ones(SHAPE, bool)))
    np.testing.assert_allclose(result.depth, plain.depth, rtol=STORED)
    np.testing.assert_array_equal(result.depth[HIT], SPARSE[HIT])


@pytest.mark.parametrize("sparse_type", [np.float16, np.float32, np.float64, np.longdouble, np.int16, np.uint32])
@pytest.mark.parametrize("prior_type", [np.float16, np.float32, np.float64, np.uint8, np.int32])
def test_types_in_any_mix(prior_type, sparse_type):
    whole = not np.issubdtype(prior_type, np.floating)
    prior = np.rint(PRIOR * 40).astype(prior_type) if whole else PRIOR.astype(prior_type)
    sparse = (SPARSE * 1000).astype(sparse_type)  # millimetres, so that integers make sense
    result = complete(prior, sparse, unit="m")
    assert result.depth.dtype == (np.float64 if sparse_type in (np.float64, np.longdouble) else np.float32)
    np.testing.assert_array_equal(result.depth[HIT], sparse[HIT])
    reference = complete(prior.astype(np.float64), sparse.astype(np.float64), unit="m")
    np.testing.assert_allclose(result.depth, reference.depth, rtol=SOLVED)


def test_sparse_in_float64_keeps_all_its_digits():
    sparse = SPARSE * (1 + 1e-12 * np.arange(SPARSE.size).reshape(SHAPE))
    result = complete(PRIOR, sparse)
    assert result.depth.dtype == np.float64
    np.testing.assert_array_equal(result.depth[HIT], sparse[HIT])


def test_arguments_are_left_alone():
    mask = generator("mask").random(SHAPE) < 0.9
    for kind in ("depth", "disparity", "log_depth"):
        arrays = PRIOR.copy(), SPARSE.copy(), mask.copy(), mask.copy()
        prior = Prior(arrays[0], kind=kind, valid=arrays[2])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)  # as a disparity the prior falls where the depth rises
            complete(prior, arrays[1], valid=arrays[3])
        for now, before in zip(arrays, (PRIOR, SPARSE, mask, mask), strict=True):
            np.testing.assert_array_equal(now, before)
        assert prior.values is arrays[0]


def test_result_shares_no_memory_with_the_arguments(plain):
    everything = np.ones(SHAPE, np.float32)
    result = complete(everything, everything)
    for ours in (result.depth, result.calibrated):
        assert not np.shares_memory(ours, everything)
    assert not np.shares_memory(plain.depth, plain.calibrated)


@pytest.mark.parametrize("missing", [0.0, -1.0, np.nan, np.inf, -np.inf])
def test_every_way_to_say_not_measured(missing, plain):
    sparse = np.where(HIT, SPARSE, np.float32(missing))
    np.testing.assert_array_equal(complete(PRIOR, sparse).depth, plain.depth)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [0.0, -0.0, -2.0, np.nan, np.inf, -np.inf])
def test_invalid_prior_at_a_measurement_and_beside_it(bad, dtype):
    """Zero is what networks write into the sky. The measurement is kept, counted, and takes no part."""
    prior = PRIOR.astype(dtype)
    at, off = np.argwhere(HIT)[3], np.argwhere(~HIT)[40]
    prior[tuple(at)] = prior[tuple(off)] = bad
    result = complete(prior, SPARSE)
    assert (result.unpaired, result.invalid) == (1, 2)
    assert result.depth[tuple(at)] == SPARSE[tuple(at)]
    assert np.isnan(result.calibrated[tuple(at)])
    assert np.isnan(result.depth[tuple(off)])
    assert np.isfinite(result.depth).sum() == PRIOR.size - 1
    assert "1 more where the prior is invalid, 2 pixels without a prior" in str(result)
    without = SPARSE.copy()
    without[tuple(at)] = 0
    np.testing.assert_array_equal(complete(prior, without).calibrated, result.calibrated)


def test_valid_mask_hides_prior_and_measurements():
    mask = np.ones(SHAPE, bool)
    mask[:, 40:] = False
    wild = np.where(mask, SPARSE, 1e4).astype(np.float32)
    result = complete(PRIOR, wild, valid=mask, options="paper")
    np.testing.assert_array_equal(np.isnan(result.depth), ~mask)
    assert result.fit.count == (HIT & mask).sum()
    assert (result.unpaired, result.invalid) == (0, (~mask).sum())
    cropped = complete(PRIOR[:, :40], SPARSE[:, :40], options="paper")
    np.testing.assert_allclose(result.depth[:, :40], cropped.depth, rtol=SOLVED)
    # The same mask on the prior alone lets measurements through.
    through = complete(Prior(PRIOR, valid=mask), wild)
    assert through.unpaired == (~mask).sum()
    np.testing.assert_array_equal(through.depth[~mask], wild[~mask])


def test_kinds_of_prior_agree(plain):
    far = PRIOR.astype(np.float64)
    for prior in (Prior(1 / far, kind="disparity"), Prior(np.log(far), kind="log_depth")):
        result = complete(prior, SPARSE)
        assert result.fit.response.exponent == pytest.approx(plain.fit.response.exponent, rel=1e-4)
        np.testing.assert_allclose(result.depth, plain.depth, rtol=SOLVED)


def test_floor_of_a_disparity_fills_the_far_pixels():
    disparity = 1 / PRIOR
    disparity[:3] = 0.0
    disparity[3] = -1.0
    assert complete(Prior(disparity, kind="disparity"), SPARSE).invalid == 4 * SHAPE[1]
    result = complete(Prior(disparity, kind="disparity", floor=0.01), SPARSE)
    assert result.invalid == 0
    assert np.isfinite(result.depth).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: complete(PRIOR, SPARSE[:-1]), r"`sparse`.*\(50, 67\).*\(49, 67\)"),
        (lambda: complete(PRIOR, SPARSE.T), r"`sparse`.*\(50, 67\).*\(67, 50\)"),
        (lambda: complete(PRIOR, SPARSE, valid=HIT[1:]), r"`valid`.*\(50, 67\).*\(49, 67\)"),
        (lambda: complete(Prior(PRIOR, valid=HIT[1:]), SPARSE), r"`valid`.*\(50, 67\).*\(49, 67\)"),
        (lambda: complete(PRIOR[..., None], SPARSE), r"`prior`.*\(50, 67, 1\)"),
        (lambda: complete(PRIOR, np.stack((SPARSE, SPARSE))), r"`sparse`.*\(2, 50, 67\)"),
        (lambda: complete(np.zeros((0, 5)), np.zeros((0, 5))), r"`prior`.*\(0, 5\)"),
        (lambda: complete(PRIOR + 1j, SPARSE), "`prior`.*complex"),
        (lambda: complete(PRIOR, HIT), "`sparse`.*bool"),
        (lambda: complete(PRIOR, SPARSE, valid=HIT.astype(np.uint8)), "`valid`.*uint8.*mask > 0"),
        (lambda: complete(PRIOR, SPARSE.astype(object)), "`sparse`.*object"),
    ],
)
def test_wrong_input_is_named(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_masked_arrays_are_unknown_where_masked() -> None:
    prior = np.linspace(1.0, 2.0, 20 * 30).reshape(20, 30)
    sparse = np.ma.masked_array(np.full((20, 30), 7.0), mask=True)
    sparse[::4, ::4] = 3.0 * prior[::4, ::4]
    result = complete(np.ma.masked_array(prior, mask=prior > 1.9), sparse)
    assert result.fit.count + result.unpaired == 5 * 8
    assert np.isnan(result.depth[-1, -1])
    np.testing.assert_allclose(result.depth[prior <= 1.9], 3.0 * prior[prior <= 1.9], rtol=1e-6)
    json.dumps(result.to_dict(), allow_nan=False)


def test_a_float32_prior_with_zeros_can_be_calibrated() -> None:
    response = Response(exponent=-1.0, gain=0.5, offset=0.0, scale=1.0)
    np.testing.assert_array_equal(response(np.array([[0.0, 1.0]], np.float32)), [[np.nan, 1.0]])


@pytest.mark.parametrize("axes", [(1,), (1, 1)])
def test_leading_axes_of_length_one_are_dropped(axes):
    prior = np.linspace(1.0, 2.0, 12 * 16).reshape(12, 16)
    sparse = np.where(np.arange(16) % 4 == 0, 3.0 * prior, 0.0)
    expected = complete(prior, sparse, valid=prior < 1.9)
    shape = (*axes, 12, 16)
    result = complete(prior.reshape(shape), sparse.reshape(shape), valid=(prior < 1.9).reshape(shape))
    np.testing.assert_array_equal(result.depth, expected.depth)


def test_tensors_are_referred_to_leadline_torch():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(4, 5, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(InputError, match="`prior` is a torch tensor; use leadline"):
        complete(tensor, np.ones((4, 5)))
    with pytest.raises(InputError, match="`sparse` is a torch tensor"):
        complete(np.ones((4, 5)), tensor)
