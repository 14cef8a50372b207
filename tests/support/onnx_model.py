"""A network of one node in ONNX form, with its card."""

from __future__ import annotations

import json
from pathlib import Path

from support.onnx_graphs import node, value, write_graph


def write_onnx(path: Path, *, quantity: str = "depth", gauge: str = "scale", short_side: int = 24) -> Path:
    """A network that returns the mean of the colours, with its card; for images of any size."""
    mean = node("ReduceMean", ["image"], "mean", axes=[1], keepdims=1)
    sides = ("height", "width")
    write_graph(path, [mean], [value("image", (1, 3, *sides))], [value("mean", (1, 1, *sides))])
    card = {
        "input": {"range": [0, 1], "resize": {"mode": "short_side", "size": short_side, "multiple_of": 1}},
        "output": {"quantity": quantity, "gauge": gauge},
    }
    path.with_suffix(".json").write_text(json.dumps(card), encoding="utf-8")
    return path
