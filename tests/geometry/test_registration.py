"""The registration check on synthetic images; real sensors are in test_real_sensors.py."""

from __future__ import annotations

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.geometry.registration import check_registration


def test_registration_is_unknown_without_edges(rng):
    stepped = np.where(np.arange(200) < 90, 2.0, 6.0) * np.ones((120, 1))
    picture = np.repeat((stepped * 30).astype(np.uint8)[..., None], 3, axis=2)
    assert check_registration(stepped, picture).better == 0
    few, flat = np.full((120, 200), np.nan), np.full_like(picture, 90)
    few[::40, ::40] = 2.0
    for depth, image, reason in (
        (few, picture, "only 0 pairs"),
        (np.full((120, 200), 3.0), picture, "only 0 pairs"),
        (np.full((120, 200), np.nan), picture, "only 0 pairs"),
        (stepped, flat, "no contrast"),
    ):
        checked = check_registration(depth, image)
        assert not checked.known
        assert checked.aligned
        assert reason in str(checked)
    noise = rng.integers(0, 256, picture.shape, dtype=np.uint8)
    assert check_registration(stepped, noise).score < 0.1
    with pytest.raises(InputError, match="`image`"):
        check_registration(stepped, picture[1:])
