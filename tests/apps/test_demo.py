"""`leadline demo`: its files, and a folder that cannot be made."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from leadline.apps.demo import DEMO_METHODS, run_demo
from leadline.base.errors import FileError
from leadline.bench.observations import CASES
from leadline.io.depth import read_depth
from leadline.io.ply import read_ply


def test_demo_writes_its_files(tmp_path):
    screen = io.StringIO()
    result = run_demo(tmp_path / "new" / "demo", width=64, height=48, console=Console(file=screen, width=160))
    assert [path.name for path in result.files] == ["demo.png", "demo_depth.png", "cloud.ply", "demo.json"]
    assert {path.name for path in (tmp_path / "new" / "demo").iterdir()} == {path.name for path in result.files}
    assert {(score.case, score.method) for score in result.scores} == {(c, m) for c in CASES for m in DEMO_METHODS}
    record = json.loads(result.files[3].read_text(encoding="utf-8"))
    assert len(record["scores"]) == len(result.scores)
    assert record["scores"][0]["depth"]["absrel"] == result.scores[0].depth.absrel
    depth = read_depth(result.files[1], "mm").values
    assert depth.shape == (48, 64)
    assert 1 < np.nanmedian(depth) < 8
    points, _ = read_ply(result.files[2])
    assert 0.5 * depth.size < len(points) < depth.size  # without flying pixels
    assert "not metric" in screen.getvalue()


def test_demo_names_a_folder_it_cannot_make(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file"):
        run_demo(tmp_path / "file", width=64, height=48, console=Console(file=io.StringIO()))
