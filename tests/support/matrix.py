"""Parametrisation with a few values by default, and all values behind the marker `full`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def parametrize(name: str, values: Sequence[Any], *, quick: Collection[Any], **extra: Any) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize` over `values`, of which all but the `quick` ones carry the marker `full`."""
    marked = [value if value in quick else pytest.param(value, marks=pytest.mark.full) for value in values]
    return pytest.mark.parametrize(name, marked, **extra)
