"""Depth Anything 3 through a stand-in of its package: the same names and signatures, predictions made up here.

The stand-in checks what it is called with, since the real package, with its pins of old versions, is not installed.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from leadline.base.errors import FileError, InputError, MissingExtra
from leadline.priors import prior_source

HALF_A_PIXEL = 1 / 120  # of a ramp from 1 to 3 over the image: centres move by as much when it is resized

STAND_IN = """
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np


class DepthAnything3:
    @classmethod
    def from_pretrained(cls, place):
        network = cls()
        network.label = json.loads((Path(place) / "config.json").read_text())["model_name"]
        return network

    def to(self, device):
        self.device = device
        return self

    def eval(self):
        return self

    def inference(self, image, extrinsics=None, intrinsics=None, process_res=504):
        (one,) = image
        assert one.dtype == np.uint8 and one.shape[2] == 3 and str(self.device) == "cpu"
        rows, columns = (max(14, round(side * process_res / max(one.shape[:2]) / 14) * 14) for side in one.shape[:2])
        depth = np.broadcast_to(np.linspace(1, 3, columns, dtype=np.float32), (rows, columns))[None]
        sky = np.zeros((1, rows, columns), bool)
        sky[:, : rows // 2] = True
        camera = np.array([[[100.0, 0, columns / 2], [0, 100.0, rows / 2], [0, 0, 1]]])
        mono = self.label.startswith("da3mono")
        return SimpleNamespace(depth=depth, is_metric=0, sky=sky if mono else None, intrinsics=None if mono else camera)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs the extra 'transformers'")
    home = tmp_path / "site" / "depth_anything_3"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("")
    (home / "api.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(home.parent))
    yield home
    for name in [name for name in sys.modules if name.split(".")[0] == "depth_anything_3"]:
        del sys.modules[name]


def model(folder: Path, label: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_name": label}))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_depth_and_sky_of_the_monocular_model(package, tmp_path):
    source = prior_source(f"depth-anything-3:{model(tmp_path / 'mono', 'da3mono-large')}", device="cpu", threads=1)
    assert (source.name, source.quantity, source.gauge) == ("mono", "depth", "affine")
    image = np.zeros((90, 120, 3), np.uint8)
    prior = source(image)
    assert prior.shape == (90, 120)
    assert prior.camera is None
    assert not prior.valid[:40].any()
    assert prior.valid[50:].all()
    assert prior.values[:, 0] == pytest.approx(1.0, abs=HALF_A_PIXEL)
    assert prior.values[:, -1] == pytest.approx(3.0, abs=HALF_A_PIXEL)
    again = pickle.loads(pickle.dumps(source))
    assert again.fingerprint() == source.fingerprint()
    finer = prior_source(f"depth-anything-3:{tmp_path / 'mono'}", resolution=700)
    assert finer.fingerprint() != source.fingerprint()


def test_camera_is_that_of_the_image(package, tmp_path):
    source = prior_source(f"depth-anything-3:{model(tmp_path / 'any', 'da3-large')}", device="cpu")
    assert source.gauge == "scale"
    camera = source(np.zeros((252, 1008, 3), np.uint8)).camera  # at 504 a pixel is two
    assert (camera.fx, camera.fy) == (200.0, 200.0)
    assert (camera.cx, camera.cy) == (503.5, 125.5)


def test_wrong_models_and_a_missing_package(tmp_path, monkeypatch, request):
    folder = model(tmp_path / "mono", "da3mono-large")
    with pytest.raises(MissingExtra, match=r"leadline\[depth-anything-3\]"):
        prior_source(f"depth-anything-3:{folder}")
    request.getfixturevalue("package")
    with pytest.raises(FileError, match="begin with da3, got 'dpt'"):
        prior_source(f"depth-anything-3:{model(tmp_path / 'other', 'dpt')}")
    with pytest.raises(InputError, match="`resolution` must be a positive number"):
        prior_source(f"depth-anything-3:{folder}", resolution=0)
