"""What every registered method and every registered prior must keep, whichever it is.

The trained systems are stand-ins in processes of their own (`standins`). What cannot run here for want of a package or
of weights must say so in one line; nothing is ever downloaded.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from leadline.base.errors import FileError, InputError, MissingExtra
from leadline.bench.observations import observe
from leadline.core.prior import Prior
from leadline.datasets import Scene
from leadline.datasets.rendered import network_like_prior, render
from leadline.methods import METHODS, MethodResult, method, run_method
from leadline.methods.external import process, systems
from leadline.priors import PRIORS, PriorSource, prior_source
from support.paths import MODELS
from support.standins import FILES, UNIDEPTH, checkout

Result = TypeVar("Result")
SIZE = (64, 48)
CONFIGURED_BY = "APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME"


@pytest.fixture(scope="module", autouse=True)
def no_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """An empty cache of weights, no way to fill it, and set-ups of this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hub")))
        patch.delenv("HF_HUB_CACHE", raising=False)
        folder = tmp_path_factory.mktemp("config")
        patch.setenv(CONFIGURED_BY, str(folder))
        yield patch
        process.stop_all_processes()


@pytest.fixture(scope="module")
def scene() -> Scene:
    return render(*SIZE)


@pytest.fixture(scope="module")
def prior(scene: Scene) -> Prior:
    values = network_like_prior(scene.reference)
    return Prior(values, valid=np.arange(values.size).reshape(values.shape) % 97 > 0)


@pytest.fixture(scope="module")
def sparse(scene: Scene) -> np.ndarray:
    return observe(scene.reference, "distributed").sparse


@pytest.fixture(scope="module")
def saved(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    np.save(folder / "room.npy", scene.reference)
    return folder


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in FILES:
        folder = checkout(name, tmp_path_factory.mktemp("stand-in") / name)
        options = {"checkpoint": str(folder / "any2full.pth.tar")} if name == "any2full" else {}
        systems.set_up(name, sys.executable, str(folder), options)
    package = tmp_path_factory.mktemp("stand-in") / "unidepth_custom"  # its descent needs torch itself
    package.mkdir()
    (package / "models.py").write_text(UNIDEPTH, encoding="utf-8")
    systems.set_up("testpromptdc", sys.executable, str(package.parent), {"steps": 2, "device": "cpu"})


def outcome(name: str, scene: Scene, prior: Prior, sparse: np.ndarray) -> MethodResult:
    return run_method(method(name), prior, sparse, image=scene.image, camera=scene.camera, dataset=None, name="room")


def tried(work: Callable[[], Result]) -> tuple[Result | None, str]:
    """What came out, or the line that says why nothing did."""
    try:
        return work(), ""
    except (MissingExtra, FileError, InputError) as error:
        reason = str(error)
    assert "\n" not in reason.strip()
    assert 20 < len(reason) < 600
    return None, reason


def spelled(name: str, saved: Path) -> str:
    return f"{name}:{saved}" if METHODS[name].argument else name


@pytest.mark.parametrize("name", FILES)
def test_not_set_up_is_a_failed_result_that_says_how(
    name: str, scene: Scene, prior: Prior, sparse: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONFIGURED_BY, str(tmp_path))
    result = outcome(name, scene, prior, sparse)
    assert result.status.startswith(f"failed: not set up; see 'leadline methods setup {name}'")
    assert np.isnan(result.depth).all()


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_contract(
    name: str, scene: Scene, prior: Prior, sparse: np.ndarray, saved: Path
) -> None:
    before = prior.values.copy(), prior.valid.copy(), sparse.copy(), scene.image.copy()  # type: ignore[union-attr]
    found, reason = tried(lambda: [outcome(spelled(name, saved), scene, prior, sparse) for _ in range(2)])
    if found is None:
        assert METHODS[name].extra is not None, f"{name} should run here: {reason}"
        return
    first, second = found
    assert first.depth.shape == scene.reference.shape  # type: ignore[union-attr]
    assert first.depth.dtype == np.float32
    assert (np.isnan(first.depth) | ((first.depth > 0) & np.isfinite(first.depth))).all()
    assert np.isfinite(first.depth).any()
    assert first.status
    assert not first.status.startswith("failed")
    assert first.seconds >= 0
    assert all(isinstance(value, float | int) for value in first.parameters.values())
    assert all(isinstance(value, str) for value in first.versions.values())
    np.testing.assert_array_equal(first.depth, second.depth)
    assert (first.status, first.parameters, first.versions) == (second.status, second.parameters, second.versions)
    after = prior.values, prior.valid, sparse, scene.image
    for now, then in zip(after, before, strict=True):
        np.testing.assert_array_equal(now, then)
    first.depth[0, 0] = 1.0  # a result is the caller's own, and no view of an argument
    np.testing.assert_array_equal(prior.values, before[0])


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("name", METHODS)
def test_another_shape_of_measurements_is_refused(name: str, scene: Scene, prior: Prior, saved: Path) -> None:
    with pytest.raises((InputError, MissingExtra), match=r"sparse|needs the package"):
        outcome(spelled(name, saved), scene, prior, np.ones((3, 3)))


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("name", METHODS)
def test_no_measurement_at_all_is_no_crash(name: str, scene: Scene, prior: Prior, saved: Path) -> None:
    result, reason = tried(lambda: outcome(spelled(name, saved), scene, prior, np.full(prior.shape, np.nan)))
    if result is None:
        assert METHODS[name].extra is not None, reason
        return
    assert result.depth.shape == prior.shape
    assert result.status


def test_the_list_names_the_weights_that_are_loaded() -> None:
    for name, facts in METHODS.items():
        if facts.model is not None:
            assert inspect.signature(method(name)).parameters["model"].default == facts.model


def test_a_function_of_two_arguments_gets_two_and_an_option_by_that_name_stays() -> None:
    seen: dict[str, Any] = {}

    def plain(prior: Prior, sparse: np.ndarray) -> MethodResult:
        return MethodResult(np.ones((2, 2), np.float32), "ok", 0.0, {})

    def greedy(prior: Prior, sparse: np.ndarray, name: str = "nearest", *, image: Any, camera: Any = 1) -> MethodResult:
        seen.update(name=name, image=image, camera=camera)
        return plain(prior, sparse)

    arguments = Prior(np.ones((2, 2))), np.ones((2, 2))
    assert run_method(plain, *arguments, image="picture", camera=None, name="room").status == "ok"
    run_method(greedy, *arguments, image="picture", camera=None, name="room")
    assert seen == {"name": "nearest", "image": "picture", "camera": None}  # `name` is not keyword-only


class OneRoom:
    """A data set whose scene folder carries a prior."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior

    def scene_priors(self, name: str) -> list[Prior]:
        return [self.prior]


def source_of(name: str, saved: Path) -> PriorSource:
    arguments = {"files": str(saved), "onnx": str(MODELS / "tcmonodepth_small.onnx"), "transformers": "no/such-model"}
    return prior_source(f"{name}:{arguments[name]}" if name in arguments else name)


@pytest.mark.parametrize("name", PRIORS)
def test_every_prior_keeps_the_contract(name: str, scene: Scene, prior: Prior, saved: Path) -> None:
    image, where = scene.image.copy(), {"dataset": OneRoom(prior), "name": "room"}
    found, reason = tried(lambda: [source_of(name, saved)(image, **where) for _ in range(2)])
    if found is None:
        assert name not in ("files", "scene", "none"), f"{name} should run here: {reason}"
        return
    source = source_of(name, saved)
    first, second = found
    assert first.shape == image.shape[:2]
    assert first.values.dtype in (np.float32, np.float64)
    depth = first.depth()
    assert (np.isfinite(depth) & (depth > 0)).any()
    assert source.name
    assert source.quantity in ("depth", "disparity", "log_depth")
    assert source.gauge in ("metric", "scale", "affine", "unknown")
    assert source.fingerprint() == source_of(name, saved).fingerprint() != ""
    np.testing.assert_array_equal(first.values, second.values)
    np.testing.assert_array_equal(image, scene.image)
