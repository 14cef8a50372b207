"""Frames one after the other: what a stream keeps, what it must not change, and what its filter smooths."""

from __future__ import annotations

import threading
from dataclasses import fields, replace

import numpy as np
import pytest

import leadline
import leadline.core.stream
from leadline.base.errors import InputError, LeadlineError, NotConverged
from leadline.core.fit.estimator import FitStatus, fit_response
from leadline.core.fit.response import Response
from leadline.core.inputs import check_inputs
from leadline.core.options import CompletionOptions, FitOptions, ReconstructionOptions
from leadline.core.pipeline import Completion, complete, fit_pairs
from leadline.core.prior import Prior
from leadline.core.response_filter import _Frame, _interpolate, _log_depth_at, _State
from leadline.core.stream import Stream
from support.operators import bent_scene
from support.stream_scenes import SHAPE, measured, scene

SOLVED = 3e-5  # two runs that stop at 1e-6 on different sides


def flicker(maps: list[np.ndarray], sparse: np.ndarray) -> float:
    """Mean change of log depth between frames of a scene that stands still, where nothing is measured."""
    logs = np.log(np.array(maps)[:, sparse == 0])
    return float(np.abs(np.diff(logs, axis=0)).mean())


# --- what must not change ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [CompletionOptions.paper(), CompletionOptions.best()], ids=["paper", "best"])
@pytest.mark.parametrize("extra", [{}, {"noise": 0.01}, {"uncertainty": True}], ids=["plain", "noise", "uncertainty"])
def test_one_frame_is_a_completion_bit_for_bit(options, extra):
    prior, sparse, _ = bent_scene(SHAPE)
    one, result = complete(prior, sparse, options=options, **extra), Stream(options)(prior, sparse, **extra)
    assert isinstance(result, Completion)
    for name in ("depth", "calibrated", "sigma"):
        np.testing.assert_array_equal(getattr(result, name), getattr(one, name))
    assert result.to_dict() == one.to_dict()
    assert (result.system_reused, result.restarted, result.filter_weight) == (False, False, 1.0)


@pytest.mark.parametrize("options", [CompletionOptions.paper(), CompletionOptions.best()], ids=["paper", "best"])
def test_without_the_filter_every_frame_is_a_completion(options):
    stream = Stream(options, filter=False)
    bound = 30 * options.reconstruction.tolerance  # of two runs that stop on different sides of it
    for k in range(5):
        prior, depth = scene(shift=0.01 * k)
        sparse = measured(depth)
        result = stream(prior, sparse)
        assert result.system_reused == (k > 0 and options.reconstruction.system == "fixed")
        assert result.fit.status is FitStatus.CONVERGED
        np.testing.assert_allclose(result.depth, complete(prior, sparse, options=options).depth, rtol=bound)


def test_unchanged_masks_save_the_set_up_and_iterations(monkeypatch):
    from leadline.core.solve.system import System

    built = []
    build = System.build_hierarchy
    monkeypatch.setattr(System, "build_hierarchy", lambda *a: built.append(a) or build(*a))
    stream, iterations = Stream("paper"), []
    for k in range(4):
        prior, depth = scene(shift=1e-4 * k)
        iterations.append(stream(prior, measured(depth)).reconstruction.iterations)
    assert len(built) == 1
    assert max(iterations[1:]) < iterations[0]


@pytest.mark.parametrize("change", ["measurement gone", "measurement moved", "prior hole", "valid"])
def test_a_changed_mask_is_seen(change):
    prior, depth = scene()
    stream, sparse, valid = Stream("paper", filter=False), measured(depth), None
    stream(prior, sparse)
    if change == "measurement gone":
        sparse[4, 4] = 0
    elif change == "measurement moved":
        sparse[4, 4], sparse[4, 5] = 0, depth[4, 5]
    elif change == "prior hole":
        prior[30:50, 40:60] = np.nan
    else:
        valid = np.ones(SHAPE, bool)
        valid[10:20] = False
    result = stream(prior, sparse, valid=valid)
    assert not result.system_reused
    alone = complete(prior, sparse, valid=valid, options="paper")
    np.testing.assert_allclose(result.depth, alone.depth, rtol=SOLVED)
    assert stream(prior, sparse, valid=valid).system_reused


@pytest.mark.parametrize("options", [CompletionOptions.paper(), CompletionOptions.best()], ids=["paper", "best"])
def test_later_frames_leave_a_result_alone(options):
    """What a stream writes over in every frame must not be what it has given away."""
    stream, results = Stream(options), []
    for k in range(4):
        prior, depth = scene(shift=0.01 * k)
        result = stream(prior, measured(depth))
        results.append((result, result.depth.copy(), result.calibrated.copy()))
    for result, depth, calibrated in results:
        np.testing.assert_array_equal(result.depth, depth)
        np.testing.assert_array_equal(result.calibrated, calibrated)


def test_measurements_are_exact_in_every_frame(rng):
    stream = Stream()
    gains = []
    for k in range(12):
        prior, depth = scene(shift=0.002 * k)
        sparse = measured(depth, 16, 0.02, rng)
        result = stream(prior, sparse)
        gains.append(result.filter_weight)
        np.testing.assert_array_equal(result.depth[sparse > 0], sparse[sparse > 0])
        assert np.isfinite(result.depth).all()
    assert min(gains) < 1.0  # the filter was at work


# --- what begins anew ----------------------------------------------------------------------------------------------


def test_another_size_begins_anew():
    stream = Stream()
    for shape in (SHAPE, (60, 50), SHAPE):
        prior, sparse, _ = bent_scene(shape)
        result = stream(prior, sparse)
        assert not result.system_reused
        np.testing.assert_array_equal(result.depth, complete(prior, sparse).depth)


def test_reset_forgets_all_but_the_latency():
    prior, sparse, _ = bent_scene(SHAPE)
    stream = Stream()
    assert stream.latency.count == 0
    assert np.isnan(stream.latency.p50)
    for _ in range(3):
        stream(prior, sparse)
    stream.reset()
    result = stream(prior, sparse)
    assert not result.system_reused
    np.testing.assert_array_equal(result.depth, complete(prior, sparse).depth)
    latency = stream.latency
    assert latency.count == 4
    assert 0 < latency.p50 <= latency.p99 <= latency.longest
    assert "over 4 frames" in str(latency)


def test_a_cut_is_seen_and_the_new_scene_gets_its_own_fit(rng):
    stream = Stream()
    for _ in range(10):
        prior, depth = scene()
        assert not stream(prior, measured(depth, 12, 0.02, rng)).restarted
    other, there, depth = bent_scene(SHAPE, seed=5)
    other = (1 / (0.2 + 1 / other[::-1] ** 2)).astype(np.float32)
    there = measured(3.0 * depth[::-1], 12, 0.02, rng)
    result = stream(other, there)
    assert result.restarted
    assert result.filter_weight == 1.0
    assert "restarted" in str(result)
    np.testing.assert_allclose(result.depth, complete(other, there).depth, rtol=SOLVED)


def test_a_prediction_that_leaves_no_larger_residuals_is_no_cut_however_certain_the_fit_seems(rng):
    """At extreme exponents covariances come out too small by orders of magnitude."""
    prior, depth = scene()
    pairs = check_inputs(prior, measured(depth, 6, 0.1, rng)).pairs
    fit = fit_pairs(pairs, FitOptions.paper())
    frame = _Frame(pairs)
    fitted = _State.of(frame, fit, FitOptions.paper())
    assert fitted is not None
    certain = replace(fitted, covariance=1e-6 * fitted.covariance)
    for shift, near in ((0.02, True), (0.5, False)):
        other = replace(fit.response, scale=fit.response.scale * np.exp(shift))
        for response in (other, None):  # as given, and as found through its values
            assert certain.is_plausible(fitted.log_depth + shift, response, frame, fit.rmse) == near
    assert fitted.is_plausible(fitted.log_depth + 1e-3, None, frame, fit.rmse)
    assert not certain.is_plausible(fitted.log_depth[::-1], None, frame, np.inf)  # of no response, which all rise


@pytest.mark.parametrize("filtered", [True, False], ids=["filter", "no filter"])
def test_a_frame_without_measurements_has_the_response_of_the_one_before(filtered):
    prior, depth = scene()
    sparse = measured(depth)
    stream = Stream(filter=filtered)
    assert np.isnan(stream(prior, 0 * sparse).depth).all()  # no response is known yet
    before = stream(prior, sparse)
    moved, _ = scene(shift=0.01)
    nothing = stream(moved, 0 * sparse)
    assert nothing.response_carried
    assert not before.response_carried
    assert nothing.fit.status is FitStatus.NO_MEASUREMENTS
    assert nothing.fit.response == before.fit.response
    assert "response of the last frame with measurements" in str(nothing)
    np.testing.assert_array_equal(nothing.depth, before.fit.response(moved))
    assert not nothing.system_reused
    assert np.isnan(stream(np.nan * prior, 0 * sparse).depth).all()
    np.testing.assert_allclose(stream(prior, sparse).depth, complete(prior, sparse).depth, rtol=SOLVED)
    other = np.s_[:60, :50]
    assert np.isnan(stream(prior[other], 0 * sparse[other]).depth).all()  # another size is another camera


def test_a_stream_in_use_refuses_other_threads(monkeypatch):
    """Two frames at a time would overwrite each other's linear system and give wrong depth."""
    prior, sparse, _ = bent_scene(SHAPE)
    stream = Stream("paper")
    expected = stream(prior, sparse).depth
    inside, leave = threading.Event(), threading.Event()
    plain = leadline.core.stream.finish

    def slow(*arguments):
        inside.set()
        assert leave.wait(60)
        return plain(*arguments)

    monkeypatch.setattr("leadline.core.stream.finish", slow)
    results = []
    thread = threading.Thread(target=lambda: results.append(stream(prior, sparse)))
    thread.start()
    assert inside.wait(60)
    for use in (lambda: stream(prior, sparse), stream.reset):
        with pytest.raises(LeadlineError, match="completing a frame in another thread"):
            use()
    leave.set()
    thread.join()
    np.testing.assert_allclose(results[0].depth, expected, rtol=SOLVED)
    np.testing.assert_allclose(stream(prior, sparse).depth, expected, rtol=SOLVED)  # from one thread after the other


def test_bad_input_gets_the_sentence_of_complete_and_does_no_harm():
    prior, sparse, _ = bent_scene(SHAPE)
    stream = Stream("paper")
    stream(prior, sparse)
    for bad in ((prior, sparse[:-1], None), (prior, sparse > 0, None), (prior, sparse, np.ones(SHAPE))):
        with pytest.raises(InputError) as expected:
            complete(bad[0], bad[1], valid=bad[2])
        with pytest.raises(InputError) as raised:
            stream(bad[0], bad[1], valid=bad[2])
        assert str(raised.value) == str(expected.value)
    assert stream(prior, sparse).system_reused
    assert stream.latency.count == 2


def test_strict_raises():
    prior, sparse, _ = bent_scene(SHAPE)
    options = CompletionOptions.paper(reconstruction=ReconstructionOptions.paper(max_iterations=1), strict=True)
    with pytest.raises(NotConverged, match="iteration_limit"):
        Stream(options)(prior, sparse)


# --- the filter ----------------------------------------------------------------------------------------------------


def gauges(rng: np.random.Generator):
    """How a network's numbers may change between frames that show the same; disparity in, prior out."""
    return {
        "steady": lambda d: Prior(d, kind="disparity"),
        "scale": lambda d: Prior(d * np.float32(np.exp(rng.standard_normal())), kind="disparity"),
        "affine": lambda d: Prior(
            d * np.float32(rng.uniform(0.5, 2)) + np.float32(rng.uniform(0, 0.3)), kind="disparity"
        ),
        "power": lambda d: Prior(d ** np.float32(rng.uniform(0.7, 1.4)), kind="disparity"),
    }


@pytest.mark.parametrize("options", [CompletionOptions.paper(), CompletionOptions.best()], ids=["paper", "best"])
@pytest.mark.parametrize("gauge", ["steady", "scale", "affine", "power"])
def test_noise_flickers_less_whatever_the_gauge_of_the_prior(rng, gauge, options):
    prior, depth = scene()
    regauged = gauges(rng)[gauge]
    stream, alone, together = Stream(options), [], []
    for _ in range(40):
        sparse = measured(depth, 24, 0.05, rng)
        given = regauged(1 / prior)
        alone.append(complete(given, sparse, options=options))
        together.append(stream(given, sparse))
    for name, bound in (("calibrated", 0.85), ("depth", 1.0)):
        maps = [[getattr(result, name) for result in results] for results in (alone, together)]
        assert flicker(maps[1], sparse) < bound * flicker(maps[0], sparse)
        errors = [np.abs(np.log(np.array(each) / depth)).mean() for each in maps]
        assert errors[1] < errors[0]
    assert np.mean([result.filter_weight for result in together[10:]]) < 0.8


def test_what_moves_on_is_followed(rng):
    """A response that drifts by more than its noise in each frame: the filter must not lag behind it."""
    prior, depth = scene()
    stream, errors, alone = Stream(), [], []
    for k in range(40):
        now = depth * 1.01**k
        sparse = measured(now, 12, 0.005, rng)
        errors.append(np.abs(np.log(stream(prior, sparse).depth / now)).mean())
        alone.append(np.abs(np.log(complete(prior, sparse).depth / now)).mean())
    assert np.mean(errors[10:]) < 1.1 * np.mean(alone[10:])


def test_the_same_frame_again_and_again_stays_the_same():
    prior, depth = scene()
    sparse = measured(depth)
    stream = Stream()
    first = stream(prior, sparse)
    for _ in range(50):
        last = stream(prior, sparse)
    np.testing.assert_allclose(last.depth, first.depth, rtol=SOLVED)
    assert last.system_reused


def test_result_says_what_it_is():
    prior, sparse, _ = bent_scene(SHAPE)
    stream = leadline.Stream("paper")
    for _ in range(2):
        result = stream(prior, sparse)
    assert isinstance(result, leadline.StreamResult)
    assert "system reused" in str(result)
    assert result.seconds > 0
    assert {field.name for field in fields(result)} > {field.name for field in fields(Completion)}


RESPONSES = [
    Response.from_centred(1.3, *theta, 2.0) for theta in ((-1.5, 0.7, 0.1), (0.0, 1.2, -0.1), (2.0, 0.4, 0.05))
]


@pytest.mark.parametrize("response", RESPONSES, ids=lambda response: f"exponent {response.exponent}")
def test_slopes_are_derivatives(response):
    h = np.array([0.9, 1.3, 1.9])

    def log_depth(exponent, log_gain, offset):
        return np.log(Response.from_centred(1.3, exponent, np.exp(log_gain), offset, 2.0)(h))

    _, gain, offset = response.centred
    at = np.array([response.exponent, np.log(gain), offset])
    steps = 1e-5 * np.eye(3)
    expected = np.stack([(log_depth(*(at + step)) - log_depth(*(at - step))) / 2e-5 for step in steps], axis=1)
    values, slopes = _log_depth_at(response, h)
    np.testing.assert_allclose(values, np.log(response(h)), rtol=1e-12)
    np.testing.assert_allclose(slopes, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("response", RESPONSES, ids=lambda response: f"exponent {response.exponent}")
def test_the_response_through_values_is_found_from_a_near_one(response):
    h = np.array([0.9, 1.3, 1.9])
    _, gain, offset = response.centred
    near = Response.from_centred(1.3, response.exponent + 0.1, 1.02 * gain, offset + 0.01, 2.0)
    state = _State(near, h, np.log(near(h)), np.eye(3))
    found = _interpolate(np.log(response(h)), state, (0.8, 2.0))
    np.testing.assert_allclose(found(h), response(h), rtol=1e-6)


def test_values_of_no_response_lead_to_one_that_maps_the_whole_prior():
    h, ends = np.array([0.9, 1.3, 1.9]), (0.5, 3.0)
    near = RESPONSES[0]
    state = _State(near, h, np.log(near(h)), np.eye(3))
    for values in ([1.0, 0.0, 2.0], [-1.0, -1.0, 9.0], [0.0, 0.0, 0.0]):  # responses rise
        assert _interpolate(np.array(values), state, ends).feasible(*ends)


def test_a_warm_fit_ends_where_a_cold_one_does(rng):
    h = rng.uniform(1.0, 3.0, 3000)
    s = (0.2 + 0.1 / h) ** -1 * np.exp(0.05 * rng.standard_normal(h.size))
    for options in (FitOptions.paper(), CompletionOptions.best().fit):
        cold = fit_response(h, s, options=options)
        near = fit_response(7.0 * h[:2000], 3.0 * s[:2000], options=options).response  # other units, other pairs
        warm = fit_response(h, s, options=options, start=near)
        assert warm.status is FitStatus.CONVERGED
        assert len(warm.descents) < len(cold.descents)
        np.testing.assert_allclose(warm.response(h), cold.response(h), rtol=1e-4)
