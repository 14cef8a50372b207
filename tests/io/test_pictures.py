"""Pictures: every format, alpha and EXIF, and files that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.base.errors import FileError
from leadline.io import read_depth, read_image, write_depth


def test_pictures(tmp_path: Path) -> None:
    colour = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(colour).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png"), colour)
    Image.fromarray(colour[..., 0]).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(read_image(tmp_path / "grey.png"), np.repeat(colour[..., :1], 3, axis=2))
    Image.fromarray(np.dstack([colour, colour[..., :1]])).save(tmp_path / "alpha.png")
    np.testing.assert_array_equal(read_image(tmp_path / "alpha.png"), colour)
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(colour).save(tmp_path / "turned.jpg", exif=turned)
    assert read_image(tmp_path / "turned.jpg").shape == (5, 7, 3)  # the stored grid, not the turned one
    write_depth(tmp_path / "depth.png", [[1.0, 2.0]])
    with pytest.raises(FileError, match="depth map"):
        read_image(tmp_path / "depth.png")
    with pytest.raises(FileError, match=r"none\.jpg: no such file"):
        read_image(tmp_path / "none.jpg")
    (tmp_path / "text.jpg").write_text("not a picture")
    with pytest.raises(
        FileError, match=r"text\.jpg: is not a picture in a format that is read \(PNG, JPEG, .*BMP, PPM\)"
    ):
        read_image(tmp_path / "text.jpg")
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(FileError, match="is not a picture"):
        read_depth(tmp_path / "text.png")


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".mpo"])
def test_pictures_of_every_format(tmp_path: Path, suffix: str) -> None:
    colour = np.zeros((16, 32, 3), np.uint8)  # two blocks of JPEG
    colour[:, 16:] = 40, 200, 90
    jpeg = {"subsampling": 0}  # colours of full resolution
    options = {".webp": {"lossless": True}, ".jpg": jpeg, ".mpo": jpeg}.get(suffix, {})
    path = tmp_path / f"a{suffix}"
    more = {"save_all": True, "append_images": [Image.fromarray(colour)]} if suffix == ".mpo" else {}
    Image.fromarray(colour).save(path, **options, **more)
    close = 8 if suffix in (".jpg", ".mpo") else 0  # lossy
    np.testing.assert_allclose(read_image(path).astype(int), colour, atol=close)


def test_a_picture_with_too_many_pixels_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(np.zeros((10, 10), np.uint8)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60)  # Pillow warns here, which is an error in these tests
    assert read_image(tmp_path / "a.png").shape == (10, 10, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 49)
    for read in (read_image, read_depth):
        with pytest.raises(FileError, match=r"a\.png: has more pixels than the 98 that Pillow decodes. Scale it down"):
            read(tmp_path / "a.png")
