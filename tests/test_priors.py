"""Priors: model cards, the real networks where they are at hand, files, scene folders, none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from leadline import LeadlineError, complete
from leadline.priors import PRIORS, prior_source
from leadline.priors.onnx import Card
from leadline.sensors.depth_files import read_depth, read_image

SHARED = Path(__file__).parents[2] / "shared"
NETWORKS = sorted((SHARED / "models").glob("*.onnx"))
SCENE = SHARED / "data" / "ibims1" / "restaurant_11"
real = pytest.mark.skipif(not (NETWORKS and SCENE.is_dir()), reason="needs the networks and scenes in ../shared")

CARD = {
    "input": {"range": [0, 1], "resize": {"mode": "short_side", "size": 256, "multiple_of": 32}},
    "output": {"name": "d", "quantity": "disparity", "gauge": "affine"},
}


def write_card(folder: Path, **changes: object) -> Path:
    path = folder / "net.json"
    path.write_text(json.dumps({**CARD, **changes}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(480, 640, (256, 352)), (640, 480, (352, 256)), (256, 256, (256, 256)), (100, 1000, (256, 2560))],
)
def test_short_side_rule(tmp_path: Path, height: int, width: int, expected: tuple[int, int]) -> None:
    assert Card.read(write_card(tmp_path)).input_size(height, width) == expected


def test_fixed_size_rule(tmp_path: Path) -> None:
    resize = {"mode": "fixed", "size": [224, 288], "multiple_of": 32}
    card = Card.read(write_card(tmp_path, input={"range": [0, 255], "resize": resize}))
    assert card.input_size(1080, 1920) == (224, 288)


@pytest.mark.parametrize(
    "changes",
    [
        {"output": {"quantity": "height"}},
        {"output": {}},
        {"input": {"range": [0, 1], "resize": {"mode": "stretch", "size": 3}}},
        {"input": {"range": [0], "resize": {"mode": "short_side", "size": 256}}},
        {"input": None},
    ],
)
def test_a_garbled_card_is_one_sentence(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(LeadlineError, match=r"net\.json: the model card lacks or garbles"):
        Card.read(write_card(tmp_path, **changes))


def test_missing_files_and_unknown_kinds(tmp_path: Path) -> None:
    with pytest.raises(LeadlineError, match="no such ONNX model"):
        prior_source(f"onnx:{tmp_path / 'none.onnx'}")
    (tmp_path / "net.onnx").write_bytes(b"not a network")
    with pytest.raises(LeadlineError, match="no model card"):
        prior_source(f"onnx:{tmp_path / 'net.onnx'}")
    write_card(tmp_path)
    broken = prior_source(f"onnx:{tmp_path / 'net.onnx'}")
    with pytest.raises(LeadlineError, match="cannot load it"):
        broken(np.zeros((32, 32, 3), np.uint8))
    with pytest.raises(LeadlineError, match="did you mean onnx"):
        prior_source("onx:model")
    with pytest.raises(LeadlineError, match="follows a colon"):
        prior_source("onnx")


def test_every_registered_prior_can_be_imported() -> None:
    for target in PRIORS.values():
        module, factory = target.split(":")
        assert hasattr(__import__(module, fromlist=[factory]), factory)


def test_files_are_found_by_name_and_refused_at_another_size(tmp_path: Path) -> None:
    values = np.linspace(1.0, 2.0, 12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "room_1.npy", values)
    source = prior_source(f"files:{tmp_path}", kind="disparity")
    prior = source(np.zeros((3, 4, 3), np.uint8), name="room/1")
    np.testing.assert_array_equal(prior.depth(), 1 / values)
    with pytest.raises(LeadlineError, match="no prediction for 'room/2'"):
        source(np.zeros((3, 4, 3), np.uint8), name="room/2")
    with pytest.raises(LeadlineError, match=r"4x3.*8x6"):
        source(np.zeros((6, 8, 3), np.uint8), name="room/1")
    before = source.fingerprint()
    np.save(tmp_path / "room_1.npy", np.ones((5, 5)))
    assert source.fingerprint() != before


def test_without_a_prior_the_measurements_make_a_membrane() -> None:
    prior = prior_source("none")(np.zeros((20, 30, 3), np.uint8))
    sparse = np.zeros((20, 30), np.float32)
    sparse[::5, ::5] = np.linspace(2.0, 4.0, 24).reshape(4, 6)
    result = complete(prior, sparse)
    assert result.fit.status.name == "SCALE_ONLY"
    assert 2.0 <= result.depth.min() <= result.depth.max() <= 4.0  # a maximum principle, to within the screening
    np.testing.assert_array_equal(result.depth[::5, ::5], sparse[::5, ::5])


@real
@pytest.mark.parametrize("model", NETWORKS, ids=lambda path: path.stem)
def test_real_network_sees_the_scene(model: Path) -> None:
    description = json.loads((SCENE / "scene.json").read_text())
    image = read_image(SCENE / description["image"])
    source = prior_source(f"onnx:{model}")
    prior = source(image)
    assert prior.shape == image.shape[:2]
    assert prior.kind == source.quantity
    np.testing.assert_array_equal(source(image).values, prior.values)
    part = description["reference"]
    reference = read_depth(SCENE / part["file"], part["metres_per_unit"]).values
    known = np.isfinite(reference) & np.isfinite(prior.depth())
    ranks = [np.argsort(np.argsort(values[known])) for values in (prior.depth(), reference)]
    assert np.corrcoef(*ranks)[0, 1] > 0.5  # Spearman: both networks order this room's depths
