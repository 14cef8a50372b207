"""Statistics of references against a flood fill and NumPy, the audit by hand, and both commands on a small tree."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from leadline.apps.cli import group
from leadline.base.errors import FileError, InputError
from leadline.datasets import Scene
from leadline.datasets.far_pixel_audit import Audit, FrameAudit, audit, audit_frame, write_audit
from leadline.datasets.reference_statistics import (
    PERCENTILES,
    DepthHistogram,
    Support,
    reference_geometry,
    support,
    write_reference_geometry,
)

HALF_BIN = 5.01e-5  # the stated relative error of a pooled percentile, and its rounding
NAN = math.nan


def flood_fill_support(valid: np.ndarray) -> Support:
    """The support by a flood fill of each 4-connected region."""
    height, width = valid.shape
    seen = np.zeros(valid.shape, bool)
    holes, largest = 0, 0
    for start in np.ndindex(valid.shape):
        if seen[start]:
            continue
        seen[start] = True
        region, at_border = [start], False
        for row, column in region:  # the list grows while it is iterated
            at_border |= row in (0, height - 1) or column in (0, width - 1)
            for i, j in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                inside = 0 <= i < height and 0 <= j < width
                if inside and not seen[i, j] and valid[i, j] == valid[start]:
                    seen[i, j] = True
                    region.append((i, j))
        if valid[start]:
            largest = max(largest, len(region))
        elif not at_border:
            holes += len(region)
    return Support(valid.size, int(valid.sum()), holes, largest)


@given(
    height=st.integers(1, 14),
    width=st.integers(1, 14),
    fraction=st.sampled_from([0.0, 0.2, 0.5, 0.6, 0.8, 0.95, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_support_equals_that_of_a_flood_fill(height, width, fraction, seed):
    rng = np.random.default_rng(seed)
    valid = rng.random((height, width)) < fraction
    reference = np.where(valid, 2.0, rng.choice([np.nan, np.inf, 0.0, -1.0], (height, width)))
    assert support(reference) == flood_fill_support(valid)


def test_support_of_large_structures():
    rows, columns = np.indices((121, 160))
    spiral = (np.hypot(rows - 60, columns - 80) + 4 * np.arctan2(rows - 60, columns - 80)) % 12 < 6
    rings = np.hypot(rows - 60, columns - 80) % 11 < 6
    for valid in (spiral, rings, ~rings, (rows + columns) % 2 == 0):
        assert support(valid.astype(np.float32)) == flood_fill_support(valid)


def test_holes_and_components_by_hand():
    reference = np.array(
        [
            [1, 1, 1, 1, NAN, 1],
            [1, NAN, 1, 1, NAN, 1],
            [1, 1, NAN, 1, NAN, NAN],
            [1, 1, 1, 1, NAN, 1],
        ]
    )
    # Two holes that touch at a corner only; the column of NaN reaches the border. Regions of 14, 2 and 1 pixels.
    found = support(reference)
    assert found == Support(24, 17, 2, 14)
    assert found.valid_fraction == 17 / 24
    assert found.hole_fraction == 2 / 19
    assert found.largest_component == 14 / 17


def test_support_without_valid_pixels():
    found = support(np.full((3, 4), np.nan))
    assert found.valid_fraction == 0.0
    assert math.isnan(found.hole_fraction)
    assert math.isnan(found.largest_component)


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    spread=st.sampled_from([0.0, 0.3, 3.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_pooled_percentiles_are_within_half_a_bin(sizes, spread, seed):
    rng = np.random.default_rng(seed)
    parts = [np.exp(rng.normal(1.0, spread, size)).astype(np.float32) for size in sizes]
    pooled = DepthHistogram()
    for part in parts:
        pooled.add(np.concatenate((part, np.array([np.nan, 0.0, -1.0, np.inf], np.float32))))
    depths = np.concatenate(parts).astype(np.float64)
    assert pooled.count == len(depths)
    for percentile in (0, *PERCENTILES, 100):
        if len(depths):
            expected = np.percentile(depths, percentile)
            assert pooled.percentile(percentile) == pytest.approx(expected, rel=HALF_BIN)
        else:
            assert math.isnan(pooled.percentile(percentile))


def test_depths_beyond_the_histogram_count_as_its_bounds():
    pooled = DepthHistogram()
    pooled.add(np.array([1e-9, 1e9]))
    assert pooled.count == 2
    assert pooled.percentile(0) == pytest.approx(1e-4, rel=1e-3)
    assert pooled.percentile(100) == pytest.approx(1e5, rel=1e-3)


@dataclass(frozen=True)
class Made:
    """A data set of given references; a string in place of one is the error on reading it."""

    references: dict[str, np.ndarray | str | None]
    name: str = "made"

    def names(self) -> list[str]:
        return list(self.references)

    def load(self, name: str) -> Scene:
        reference = self.references[name]
        if isinstance(reference, str):
            raise FileError(reference)
        return Scene(name, np.zeros((*np.shape(reference), 3), np.uint8), reference)

    def files(self, name: str) -> list[Path]:
        return []


class MadeInSubsets(Made):
    def subset(self, name: str) -> str:
        return name.partition("/")[0]


def references(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    made = {}
    for index in range(count):
        depth = rng.uniform(0.5, 9.0, (12 + index, 15)).astype(np.float32)
        depth[rng.random(depth.shape) < 0.3] = np.nan
        made[f"{'AB'[index % 2]}/{index}"] = depth
    return made


def test_rows_are_percentiles_over_images_and_pooled_depth():
    made = references(9)
    steps = []
    found = reference_geometry(MadeInSubsets(made), progress=lambda done, total: steps.append((done, total)))
    assert steps == [(index, 9) for index in range(1, 10)]
    assert [(row.percentile, row.subset) for row in found.rows] == [(p, s) for p in PERCENTILES for s in "AB"]
    for row in found.rows:
        own = [depth for name, depth in made.items() if name[0] == row.subset]
        supports = [flood_fill_support(np.isfinite(depth)) for depth in own]
        depths = np.concatenate([depth[np.isfinite(depth)] for depth in own]).astype(np.float64)
        assert (row.images, row.valid_pixels) == (len(own), len(depths))
        for name in ("valid_fraction", "hole_fraction", "largest_component"):
            expected = np.percentile([getattr(one, name) for one in supports], row.percentile)
            assert getattr(row, name) == pytest.approx(expected, rel=1e-12)
        assert row.depth_m == pytest.approx(np.percentile(depths, row.percentile), rel=HALF_BIN)


def test_unreadable_images_are_listed_and_empty_ones_counted():
    made = {"a": np.ones((3, 3), np.float32), "b": "b.png: broken", "c": None, "d": np.full((3, 3), np.nan, np.float32)}
    found = reference_geometry(Made(made, "ibims"))
    assert [name for name, _ in found.failures] == ["b", "c"]
    assert {(row.subset, row.images) for row in found.rows} == {("iBims", 2)}
    middle = next(row for row in found.rows if row.percentile == 50)
    assert middle.valid_fraction == 0.5
    assert (middle.hole_fraction, middle.largest_component) == (0.0, 1.0)
    with pytest.raises(FileError, match=r"none of its 1 images can be used\. b\.png: broken"):
        reference_geometry(Made({"b": "b.png: broken"}))


def test_tables_have_the_papers_format(tmp_path):
    made = references(4)
    paths = write_reference_geometry(reference_geometry(Made(made), subset="Some, set"), tmp_path)
    text = paths[0].read_text()
    head = "percentile,subset,images,valid_pixels,valid_fraction,hole_fraction,largest_component,depth_m"
    assert text.splitlines()[0] == head
    rows = list(csv.DictReader(text.splitlines()))
    assert [int(row["percentile"]) for row in rows] == list(PERCENTILES)
    assert {row["subset"] for row in rows} == {"Some, set"}
    assert all(row["valid_fraction"].startswith(".") and len(row["valid_fraction"]) == 5 for row in rows)
    images = list(csv.DictReader(paths[1].read_text().splitlines()))
    assert [row["image"] for row in images] == list(made)
    assert float(images[0]["valid_fraction"]) == support(made["A/0"]).valid_fraction


def test_audit_of_a_frame_by_hand():
    """Median 2, so that 4 is the bound: of the pixels at 9, one has a near neighbour, one has a near one at three."""
    reference = np.full((9, 12), np.nan, np.float32)
    reference[0, :8] = 2.0
    reference[1, 3] = 9.0
    reference[3, 7] = 9.0
    reference[8, 11] = 9.0
    reference[8, 0] = 4.0  # not beyond the bound
    found = audit_frame("x", reference, radii=(0, 1, 3, 30))
    assert found == FrameAudit("x", 12, 3, (0, 1, 2, 3))
    assert found.far_fraction == 3 / 12
    assert audit_frame("x", reference, radii=(1,), far_ratio=5.0).far == 0
    empty = audit_frame("x", np.full((3, 3), np.nan), radii=(1,))
    assert (empty.valid, empty.far, empty.recovered) == (0, 0, (0,))
    assert math.isnan(empty.far_fraction)


def test_audit_looks_at_the_full_resolution():
    reference = np.full((2, 3), 1.0)
    reference[1, 2] = 5.0
    fine = np.full((4, 6), 5.0)
    fine[3, 4] = 1.0  # the pixel that covers the centre of (1, 2) is (3, 5)
    assert audit_frame("x", reference, fine, radii=(0, 1)).recovered == (0, 1)


def test_audit_of_a_data_set(tmp_path):
    near, some = np.ones((10, 10)), np.ones((10, 10))
    some[0] = 3.0  # 10 %, which is not more than 10 %
    many = some.copy()
    many[1, :5] = 3.0
    found = audit(Made({"a": near, "b": some, "c": many, "d": "d.png: broken"}), radii=(1, 2))
    assert [frame.far for frame in found.frames] == [0, 10, 15]
    assert found.fraction_of_frames() == 1 / 3
    assert found.fraction_of_frames(0.05) == 2 / 3
    assert found.far_fraction == 25 / 300
    # b: a near row below all ten. c: radius 1 reaches it from row 1 and, past the five, from columns 4 to 9 of row 0.
    assert found.recovered == ((10 + 5 + 6) / 25, 1.0)
    assert found.failures == (("d", "d.png: broken"),)
    write_audit(found, tmp_path / "frames.csv")
    assert (tmp_path / "frames.csv").read_text().splitlines()[-1] == "c,100,15,11,15,,,"
    assert math.isnan(Audit((4,), (FrameAudit("a", 5, 0, (0,)),), ()).recovered[0])
    with pytest.raises(InputError, match="`radii`"):
        audit(Made({"a": near}), radii=(-1,))
    with pytest.raises(InputError, match="`far_ratio`"):
        audit(Made({"a": near}), far_ratio=1.0)
    with pytest.raises(FileError, match="none of its 1 images"):
        audit(Made({"d": "d.png: broken"}))


@pytest.fixture
def ibims(tmp_path) -> Path:
    """Two images in the layout of iBims-1; the second has a far corner."""
    for folder in ("rgb", "depth", "calib", "mask_invalid", "mask_transp"):
        (tmp_path / folder).mkdir()
    for index, far in enumerate((2.0, 8.0)):
        depth = np.full((12, 16), 2.0)
        depth[:6, :6] = far
        raw = np.round(depth / 50 * 65535).astype(np.uint16)
        Image.new("RGB", (16, 12)).save(tmp_path / "rgb" / f"{index}.png")
        Image.fromarray(raw).save(tmp_path / "depth" / f"{index}.png")
        for mask in ("mask_invalid", "mask_transp"):
            Image.new("L", (16, 12), 1).save(tmp_path / mask / f"{index}.png")
        (tmp_path / "calib" / f"{index}.txt").write_text("10,10,8,6")
    return tmp_path


def run(*arguments: object):
    return CliRunner().invoke(group, [str(argument) for argument in arguments], prog_name="leadline")


def test_geometry_command(ibims, tmp_path):
    done = run("datasets", "geometry", "ibims", ibims, "-o", tmp_path / "out" / "deep")
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader((tmp_path / "out" / "deep" / "reference_geometry.csv").read_text().splitlines()))
    assert len(rows) == len(PERCENTILES)
    assert rows[3]["subset"] == "iBims"
    assert rows[3]["images"] == "2"
    assert float(rows[3]["depth_m"]) == pytest.approx(2.0, abs=1e-3)


def test_audit_command(ibims, tmp_path):
    done = run("datasets", "audit", "ibims", ibims, "--radius", 1, "--radius", 8, "-o", tmp_path / "frames.csv")
    assert done.exit_code == 0, done.output
    assert "50.0% have more than 10% far pixels" in done.output
    # Of the 6 x 6 far pixels, the eleven of the last row and column have a near neighbour.
    assert f"radius 1        {11 / 36:.1%}" in done.output
    assert "radius 8        100.0%" in done.output
    assert (tmp_path / "frames.csv").read_text().splitlines()[2] == "1,192,36,11,36,,,"


@pytest.mark.parametrize("command", ["geometry", "audit"])
def test_commands_continue_after_an_unreadable_image(ibims, tmp_path, command):
    (ibims / "depth" / "0.png").write_bytes(b"junk")
    done = run("datasets", command, "ibims", ibims, "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert "0.png" in done.output
    assert "1 images could not be read" in done.output
    (ibims / "depth" / "1.png").write_bytes(b"junk")
    done = run("datasets", command, "ibims", ibims, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert "none of its 2 images can be used" in done.output
    assert "Traceback" not in done.output
