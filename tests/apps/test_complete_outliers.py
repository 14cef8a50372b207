"""`leadline complete --outliers regions`: what is recorded, and the mask of measured, left out and filled pixels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.batch.outputs import PixelOrigin
from leadline.datasets.rendered import render
from support.cli_frames import leadline

LINE = "complete photo.png --sparse depth.npy --unit m --prior prior.npy --format npy"


@pytest.fixture(autouse=True)
def glass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Files of a room with a pane of glass, behind which all is measured a quarter too far; where it was measured."""
    monkeypatch.chdir(tmp_path)
    scene = render(160, 120)
    assert scene.reference is not None
    Image.fromarray(scene.image).save("photo.png")
    prior = scene.reference**1.3
    prior[:, :10] = np.nan
    np.save("prior.npy", prior)
    sparse, pane = np.full_like(scene.reference, np.nan), np.zeros(scene.reference.shape, np.bool_)
    sparse[2::4, 2::4] = scene.reference[2::4, 2::4]
    pane[40:80, 60:110] = True
    np.save("depth.npy", np.where(pane, 1.25 * sparse, sparse))
    valid = np.full(pane.shape, 255, np.uint8)
    valid[:20] = 0
    Image.fromarray(valid).save("valid.png")
    return pane & np.isfinite(sparse)


def test_regions_are_recorded_and_masked(glass: np.ndarray) -> None:
    done = leadline(f"{LINE} -o out --outliers regions --mask --valid valid.png")
    assert done.exit_code == 0
    assert f"{glass.sum()} measurements, on average 25 % too far, in rows" in done.output
    sidecar = json.loads(Path("out/photo.json").read_text(encoding="utf-8"))
    (region,) = sidecar["result"]["outliers"]["regions"]
    assert (region["count"], region["reason"]) == (glass.sum(), "prior_continues")
    assert sidecar["result"]["outliers"]["count"] == glass.sum()
    mask = np.asarray(Image.open(f"out/{sidecar['outputs']['mask']}"))
    np.testing.assert_array_equal(mask == PixelOrigin.LEFT_OUT, glass)
    depth, sparse = np.load("out/photo_depth.npy"), np.load("depth.npy")
    measured = mask == PixelOrigin.MEASURED
    np.testing.assert_array_equal(depth[measured], sparse[measured].astype(depth.dtype))
    rows = np.arange(120)[:, None]
    np.testing.assert_array_equal(measured, np.isfinite(sparse) & ~glass & (rows >= 20))
    np.testing.assert_array_equal(mask == PixelOrigin.NO_DEPTH, np.isnan(depth))
    assert (mask == PixelOrigin.FILLED).any()


def test_nothing_is_left_out_and_no_mask_is_written_by_default() -> None:
    assert leadline(f"{LINE} -o out").exit_code == 0
    assert json.loads(Path("out/photo.json").read_text(encoding="utf-8"))["result"]["outliers"] is None
    assert not list(Path("out").glob("*mask*"))
