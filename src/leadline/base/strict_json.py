"""JSON that conforms to the standard: no NaN, no infinity."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def json_ready(value: Any) -> Any:
    """`value` with None for numbers that are not finite and lists for tuples, as JSON represents them."""
    if isinstance(value, Mapping):
        return {key: json_ready(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def dump_json(value: Any, *, indent: int | None = 2) -> str:
    """`value` as the text of a JSON file, ending in a newline."""
    return json.dumps(json_ready(value), indent=indent, allow_nan=False) + "\n"


def canonical_json(value: Any) -> str:
    """Compact JSON that does not depend on the order of keys; for cache keys and digests.

    Values that JSON cannot represent are written as their ``str``.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
