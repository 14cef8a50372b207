"""Predictions on disk: the cache by content, and files with their sidecars."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from leadline.base.errors import FileError, InputError
from leadline.core.prior import Prior, PriorKind
from leadline.geometry.cameras import Camera
from leadline.io.priors import WRITERS, read_prior, sidecar_path, write_prior
from leadline.priors import PriorSource, prior_source
from leadline.priors.predictor import PriorCache, content_hash, default_cache_folder

CAMERA = Camera(5, 4, 6.0, 7.0, 2.0, 1.5)
NEEDS = {".exr": "OpenEXR", ".tiff": "tifffile"}


class Counting(PriorSource):
    """A network that counts how often it is asked."""

    name, quantity, gauge = "counting", "disparity", "affine"

    def __init__(self) -> None:
        self.calls = 0

    def fingerprint(self) -> str:
        return "counting"

    def __call__(self, image: np.ndarray, *, dataset: Any = None, name: str | None = None) -> Prior:
        self.calls += 1
        return make_prior(image.mean(axis=2, dtype=np.float32) / 100)


def make_prior(values: np.ndarray | None = None) -> Prior:
    values = np.linspace(-1, 2, 20, dtype=np.float32).reshape(4, 5) if values is None else values
    return Prior(values, kind="disparity", valid=np.arange(20).reshape(4, 5) % 3 > 0, floor=0.1, camera=CAMERA)


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)


def assert_same(found: Prior | None, expected: Prior) -> None:
    assert found is not None
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.valid, expected.valid)
    assert (found.kind, found.floor, found.camera) == (expected.kind, expected.floor, expected.camera)


# ---- the cache


def test_cache_preserves_every_field_of_a_prior(tmp_path: Path) -> None:
    cache = PriorCache(tmp_path)
    for key, prior in (("ab12", make_prior()), ("cd34", Prior(np.ones((4, 5))))):
        cache.put(key, prior)
        assert_same(cache.get(key), prior)
    assert cache.get("ef56") is None


def test_a_damaged_cache_file_is_predicted_again(tmp_path: Path) -> None:
    cache = PriorCache(tmp_path)
    cache.put("ab12", make_prior())
    file = next(tmp_path.rglob("*.npy"))
    whole = file.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert cache.get("ab12") is None


class Fires:
    def __reduce__(self) -> tuple[Any, ...]:
        return (sys.exit, ("a pickle was loaded",))


def test_a_pickle_in_the_cache_is_not_loaded(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Fires()], dtype=object), allow_pickle=True)
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "ab12.npy").write_bytes(buffer.getvalue())
    assert PriorCache(tmp_path).get("ab12") is None


def test_a_file_from_before_there_were_cameras(tmp_path: Path) -> None:
    facts = {"kind": "depth", "floor": 0.0, "masked": False}
    (tmp_path / "ab").mkdir()
    with (tmp_path / "ab" / "ab12.npy").open("wb") as file:
        np.save(file, np.ones((2, 3)))
        np.save(file, np.frombuffer(json.dumps(facts).encode(), np.uint8))
    assert_same(PriorCache(tmp_path).get("ab12"), Prior(np.ones((2, 3))))


def test_cache_predicts_each_image_and_model_once(tmp_path: Path) -> None:
    network, cache = Counting(), PriorCache(tmp_path)
    first = cache.predict(network, picture(0), "a")
    assert_same(cache.predict(network, picture(0), "a"), first)
    assert_same(cache.predict(network, picture(0), "a", image_hash=content_hash(picture(0))), first)
    assert network.calls == 1
    cache.predict(network, picture(1), "a")
    cache.predict(network, picture(0), "b")
    assert network.calls == 3
    cache.predict(network, picture(0), "")
    assert (network.calls, len(list(tmp_path.rglob("*.npy")))) == (4, 3)


def test_an_unwritable_cache_folder_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    network, cache = Counting(), PriorCache(tmp_path / "file")
    assert_same(cache.predict(network, picture(0), "a"), cache.predict(network, picture(0), "a"))
    assert network.calls == 2


@given(st.lists(st.one_of(st.text(max_size=4), arrays(np.uint8, (2, 2))), min_size=1, max_size=3))
def test_content_hash_depends_on_the_division_into_parts(parts: list[Any]) -> None:
    assert content_hash(*parts) == content_hash(*[part.copy() if hasattr(part, "copy") else part for part in parts])
    assert content_hash(*parts, "") != content_hash(*parts)
    assert content_hash("ab", "c", *parts) != content_hash("a", "bc", *parts)


def test_the_environment_overrides_the_platforms_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    monkeypatch.setenv(variable, str(tmp_path / "override"))
    assert default_cache_folder() == tmp_path / "override" / "leadline" / "priors"
    monkeypatch.delenv(variable)
    assert default_cache_folder().parts[-2:] == ("leadline", "priors")


# ---- files with sidecars


@pytest.mark.parametrize("suffix", WRITERS)
def test_saved_predictions_need_no_options(suffix: str, tmp_path: Path) -> None:
    if suffix in NEEDS:
        pytest.importorskip(NEEDS[suffix], reason=f"{suffix} files need it")
    path, prior = tmp_path / f"photo{suffix}", make_prior()
    write_prior(path, prior, {"gauge": "affine"})
    found = read_prior(path).prior
    assert (found.kind, found.floor, found.camera) == ("disparity", 0.1, CAMERA)
    np.testing.assert_array_equal(found.depth(), prior.depth())  # zero and negative ones at the floor, masked ones NaN
    source = prior_source(f"files:{tmp_path}")
    np.testing.assert_array_equal(source(np.zeros((4, 5, 3), np.uint8), name="photo").depth(), prior.depth())
    assert {file.name for file in tmp_path.iterdir()} == {f"photo{suffix}", "photo.prior.json"}


def test_the_prior_saved_is_not_changed_by_it(tmp_path: Path) -> None:
    prior = make_prior()
    write_prior(tmp_path / "photo.npy", prior, {})
    assert np.isfinite(prior.values).all()


@pytest.mark.parametrize(
    ("kind", "floor", "expected"),
    [
        (None, None, ("disparity", 0.1)),
        ("disparity", 0.3, ("disparity", 0.3)),
        (None, 0.0, ("disparity", 0.0)),
        ("log_depth", None, ("log_depth", 0.0)),
    ],
)
def test_options_override_the_sidecar(
    kind: PriorKind | None, floor: float | None, expected: tuple[str, float], tmp_path: Path
) -> None:
    write_prior(tmp_path / "photo.npy", make_prior(), {})
    found = read_prior(tmp_path / "photo.npy", kind=kind, floor=floor).prior
    assert (found.kind, found.floor) == expected


def test_a_file_without_a_sidecar_is_depth(tmp_path: Path) -> None:
    np.save(tmp_path / "photo.npy", np.ones((4, 5), np.float32))
    assert_same(read_prior(tmp_path / "photo.npy").prior, Prior(np.ones((4, 5), np.float32)))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"quantity": "height", "floor": 0, "camera": null}',
        '{"quantity": "depth", "floor": "much", "camera": null}',
        '{"quantity": "depth", "floor": 0, "camera": {"fx": 1}}',
    ],
)
def test_a_garbled_sidecar_is_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "photo.npy"
    np.save(path, np.ones((4, 5)))
    sidecar_path(path).write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match=r"photo\.prior\.json: cannot be read as the sidecar of a prediction"):
        read_prior(path)


def test_a_camera_of_another_size_and_an_unfit_form(tmp_path: Path) -> None:
    write_prior(tmp_path / "photo.npy", make_prior(), {})
    np.save(tmp_path / "photo.npy", np.ones((8, 10)))
    with pytest.raises(FileError, match="camera is not of the size"):
        read_prior(tmp_path / "photo.npy")
    with pytest.raises(InputError, match=r"can be saved as \.npy"):
        write_prior(tmp_path / "photo.png", make_prior(), {})
