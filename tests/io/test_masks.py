"""Masks painted over measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leadline.base.errors import InputError
from leadline.io.masks import exclude_painted


def test_painted_measurements_are_excluded(tmp_path: Path) -> None:
    sparse = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    path = tmp_path / "mask.png"
    Image.fromarray(np.array([[255, 255], [0, 0]], np.uint8)).save(path)
    kept, count = exclude_painted(sparse, path)
    assert np.array_equal(kept, np.array([[np.nan, np.nan], [2.0, 3.0]], np.float32), equal_nan=True)
    assert (count, kept.dtype) == (1, np.float32)
    with pytest.raises(InputError, match="another size"):
        exclude_painted(np.ones((3, 2), np.float32), path)
    with pytest.raises(InputError, match="every measurement"):
        exclude_painted(np.array([[1.0, 2.0], [0.0, np.nan]], np.float32), path)
