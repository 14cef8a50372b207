"""`leadline complete` with sensor noise, outliers left out, and standard deviations in a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.cli_frames import leadline, prepare

LINE = "complete photo.jpg --sparse lidar.png --unit mm --prior prior.npy"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare()


def test_sigma_is_written_and_equals_the_noise_at_measurements() -> None:
    assert leadline(f"{LINE} -o out --sigma --outliers single --noise 0.02,0.01").exit_code == 0
    sidecar = json.loads(Path("out/photo.json").read_text(encoding="utf-8"))
    sigma = np.load(f"out/{sidecar['outputs']['sigma']}")
    measured = np.asarray(Image.open("lidar.png")) / 1000
    expected = np.hypot(0.02, 0.01 * measured)[measured > 0]
    np.testing.assert_allclose(sigma[measured > 0], expected, rtol=0.02)  # sigma is relative to the completed depth
    assert sidecar["settings"]["inputs"]["noise"] == {"constant": 0.02, "proportional": 0.01, "quadratic": 0.0}
    assert sidecar["result"]["outliers"] == {"count": 0, "where": []}


def test_sigma_is_not_written_unless_requested() -> None:
    assert leadline(f"{LINE} -o plain").exit_code == 0
    assert not list(Path("plain").glob("*sigma*"))


def test_too_many_noise_coefficients_are_an_error() -> None:
    wrong = leadline(f"{LINE} -o out --noise 1,2,3,4")
    assert wrong.exit_code == 2
    assert "--noise must be" in wrong.stderr
