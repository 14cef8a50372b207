"""Regions of outliers in the studio's server: what is left out, and regions that are taken back by hand."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from support.paths import ROOT
from support.studio_client import Visitor, read_points


def load_glass(visitor: Visitor) -> dict[str, Any]:
    """The request that completes the example with two regions behind glass."""
    offered = visitor.result("/api/example", {"name": "glass"})
    assert offered["options"] == {"outliers": "regions"}
    return {"unit": offered["files"]["sparse"]["unit"], "options": offered["options"]}


def saved(visitor: Visitor, summary: dict[str, Any], kind: str) -> Any:
    return np.load(io.BytesIO(visitor.download(summary, kind)))


def test_regions_are_left_out_and_can_be_taken_back(visitor: Visitor, tmp_path: Path) -> None:
    request = load_glass(visitor)
    first = visitor.complete(request)
    assert "regions" in first["views"]
    assert [region["kept"] for region in first["regions"]] == [False, False]
    counts = [region["count"] for region in first["regions"]]
    assert first["outliers"] == sum(counts)
    assert first["scores"]["absrel"] < 0.02
    everything = visitor.complete({**request, "options": {}})
    assert everything["scores"]["absrel"] > 0.05  # behind the glass
    assert everything["regions"] == []
    assert "regions" not in everything["views"]

    second = visitor.complete({**request, "kept_regions": [2]})
    assert [region["kept"] for region in second["regions"]] == [False, True]
    assert second["outliers"] == counts[0]
    assert second["measurements"] == first["measurements"] + counts[1]
    assert first["scores"]["absrel"] < second["scores"]["absrel"] < everything["scores"]["absrel"]
    assert second["scores"]["pixels"] == first["scores"]["pixels"]
    assert any("kept by hand" in note["text"] for note in second["notes"])
    assert json.loads(visitor.download(second, "report.json"))["regions_kept_by_hand"] == [2]
    assert second["compare_as"] == "result"  # it is not what the preset computes
    header, _ = read_points(visitor.get(f"/api/points/{second['revision']}"))
    assert header["left_out"] == counts[0]

    used = saved(visitor, second, "sparse.npy")
    assert np.count_nonzero(used > 0) == second["measurements"]
    np.save(tmp_path / "glass_sparse.npy", used)
    for role, name in second["inputs"].items():
        (tmp_path / name).write_bytes(visitor.get(f"/api/input/{role}"))
    command = second["recipe"]["command"].splitlines()[-1].split()
    assert "glass_sparse.npy" in command
    assert not any(word.startswith("--outliers") for word in command)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    arguments = [sys.executable, "-m", *command, "--format", "npy"]
    subprocess.run(arguments, cwd=tmp_path, env=environment, check=True, capture_output=True)
    depth = saved(visitor, second, "depth.npy")
    np.testing.assert_array_max_ulp(np.load(tmp_path / "out" / "glass_depth.npy"), depth, 2)


def test_the_map_of_the_regions(visitor: Visitor) -> None:
    summary = visitor.complete(load_glass(visitor))
    content = visitor.get(f"/api/regions/{summary['revision']}")
    width, height = np.frombuffer(content[:8], "<u4")
    labels = np.frombuffer(content[8:], "<u2").reshape(height, width)
    assert (width, height) == (480, 360)
    assert sorted(np.unique(labels)) == [0, 1, 2]
    assert np.bincount(labels.ravel())[1:].min() > 1000


def test_what_cannot_be_kept(visitor: Visitor) -> None:
    request = load_glass(visitor)
    error = visitor.run("/api/complete", {**request, "options": {}, "kept_regions": [1]})["error"]
    assert error == "a region can be kept only with “Outliers: regions”."
    summary = visitor.complete(request)
    for place in ("480/0", "0/360", "-1/0", "x/0"):
        status, _, content = visitor.request("GET", f"/api/values/{summary['revision']}/{place}")
        assert (status, "480x360" in content.decode()) == (422, True)
