"""Every protocol of the field on trees in the exact layout of its data, and its run beside published numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from leadline.base.errors import FileError, InputError
from leadline.bench.observations import parse_pattern
from leadline.bench.protocol import MethodEntry
from leadline.bench.protocol_files import packaged_protocols, read_protocol
from leadline.bench.published.field import beside_field, field_scores, field_sources, field_tables
from leadline.bench.records import RecordStatus, read_records
from leadline.bench.render import markdown
from leadline.bench.results import read_results
from leadline.bench.run import run_protocol
from leadline.bench.scoring import PAPER_SCORING
from leadline.bench.tables import DEPTH_METRICS
from support import completion_trees as made
from support import trees
from support.bench_runs import protocol, run
from support.cli_frames import leadline

LENS = (70.0, 70.5, 47.0, 36.5, 0.02, 0.01, 1e-4, -1e-4, 0.0, 0.0, 0.0, 0.0)


class Tree(NamedTuple):
    """How to write the data of a protocol, and options for data of that small size."""

    write: Callable[[Path], Any]
    options: Mapping[str, Any] = MappingProxyType({})
    images: int = 2
    needs: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()  # those of the protocol that such small images allow; default: its first three


def voids(root: Path) -> None:
    for density in (1500, 500, 150):
        made.void(root, density)


def diodes(root: Path) -> None:
    trees.diode(root)
    trees.diode(root, "outdoor")


def arkit(root: Path) -> None:
    trees.arkit(root, frames=1)
    depth = np.full((3, 4), 2000, np.uint16)
    for video in trees.ARKIT_VIDEOS:
        trees.save_png(root / "Validation" / video / "lowres_depth" / f"{video}_8.000.png", depth)
        trees.save_png(root / "Validation" / video / "confidence" / f"{video}_8.000.png", depth.astype(np.uint8))


def scenes(root: Path) -> None:
    """Scenes with more than 500 pixels, as the sweeps measure 500."""
    for index in range(2):
        frame = trees.make_frame(index, 48, 36)
        description = {"image": "i.png", "reference": {"file": "d.png", "metres_per_unit": 0.001, "invalid": [0]}}
        made.save_text(root / "own" / str(index) / "scene.json", json.dumps(description))
        trees.save_png(root / "own" / str(index) / "i.png", frame.image)
        trees.save_png(root / "own" / str(index) / "d.png", trees.counts(frame.depth, 0.001))


def five(root: Path) -> None:
    """The five data sets of PriorDA's protocol."""
    writers: dict[str, Callable[[Path], Any]] = {
        "nyu": made.nyu,
        "scannet": made.scannet,
        "eth3d": trees.eth3d,
        "diode": trees.diode,
        "kitti": made.kitti_selection,
    }
    for name, write in writers.items():
        (root / name).mkdir()
        write(root / name)


def prepared(root: Path) -> None:
    for entry in read_protocol("omni-dc").datasets:
        folder = root / Path(entry.root).name
        folder.mkdir()
        made.uniformat(folder)


TREES = {
    "nyu500": Tree(made.nyu, needs=("h5py",)),
    "nyu": Tree(made.nyu, needs=("h5py",)),
    "nyu-conti": Tree(made.nyu_conti, needs=("h5py",)),
    "kitti-dc": Tree(made.kitti_selection),
    "kitti-lines": Tree(made.kitti_selection, {"crop_top": 4}),
    "void": Tree(voids),
    "void-authors": Tree(voids),
    "ddad": Tree(made.ddad),
    "eth3d-sfm": Tree(lambda root: made.eth3d_sfm(root, 96, 72, LENS), {"size": [10, 8]}, 1, ("pycolmap",)),
    "ibims1000": Tree(trees.ibims_raw),
    "diode1000": Tree(diodes),
    "scannet500": Tree(made.scannet),
    "arkit-lowres": Tree(arkit, {"size": None}),
    "robustness": Tree(scenes),
    "omni-dc": Tree(prepared),
    "kitti-dc-val": Tree(made.kitti_validation, {"crop": None}),
    "nyu-labelled500": Tree(made.nyu_labelled, needs=("h5py",)),
    "priorda": Tree(five, {"ETH3D:size": None}, 9, ("h5py", "pycolmap"), ("omni-lidar:8", "lowres:8")),
}


def field_protocols() -> list[str]:
    names = [name for name in packaged_protocols() if name not in ("scenes", "beyond", "systems", "robustness")]
    return [*(name for name in names if read_protocol(name).scoring != PAPER_SCORING), "robustness"]


def test_every_protocol_of_the_field_is_tested() -> None:
    assert sorted(field_protocols()) == sorted(TREES)


@pytest.mark.parametrize("name", TREES)
def test_a_protocol_runs_on_its_data(name: str, tmp_path: Path) -> None:
    tree = TREES[name]
    for package in tree.needs:
        pytest.importorskip(package)
    (tmp_path / "data").mkdir()
    tree.write(tmp_path / "data")
    if name == "eth3d-sfm":  # the generated scene is one of the indoor part
        chosen = read_protocol(
            name, data=tmp_path / "data", priors=["none"], only=["ETH3D-SfM indoor"], data_options=tree.options
        )
    else:
        chosen = read_protocol(name, data=tmp_path / "data", priors=["none"], data_options=tree.options)
    assert set(tree.cases) <= set(chosen.cases)
    chosen = replace(chosen, methods=(MethodEntry("knn"),), cases=tree.cases or chosen.cases[:3])
    end = run_protocol(chosen, tmp_path / "RUN")
    records = read_records(tmp_path / "RUN")
    failed = {record.reason for record in records if record.status is RecordStatus.FAILED}
    assert not failed
    assert end.done >= tree.images * len(chosen.cases)
    for item in records:
        assert item.measured > 0
        assert math.isfinite(item.rmse)
        assert item.missing == 0 or item.support > item.missing
    shown = leadline(f"bench report {tmp_path / 'RUN'} --format markdown").output
    assert chosen.scoring.describe() in shown
    assert all(f"{entry.label}, {chosen.cases[0]}" in shown for entry in chosen.datasets)


def test_every_method_of_the_field_protocols_runs(tmp_path: Path) -> None:
    chosen = read_protocol("kitti-dc")
    records = run(replace(protocol("knn", count=1), methods=chosen.methods, cases=("random:200",)), tmp_path)
    assert [item.method for item in records] == [entry.label for entry in chosen.methods]
    assert {item.reason for item in records if item.status is RecordStatus.FAILED} == set()
    others = [read_protocol(name) for name in field_protocols() if name != "robustness"]
    assert all(other.methods == chosen.methods for other in others)


def test_valid_pixels_are_those_of_the_ground_truth(tmp_path: Path) -> None:
    frames = made.kitti_selection(tmp_path)
    chosen = read_protocol("kitti-dc", data=tmp_path, priors=["none"])
    records = run(replace(chosen, methods=(MethodEntry("knn"),)), tmp_path / "RUN")
    for item in records:
        assert item.support == np.isfinite(frames[item.image].depth).sum()
    raw, filtered = (item.measured for item in records[:2])
    assert raw == np.isfinite(frames[records[0].image].sparse).sum() > filtered


def test_the_authors_range_of_void(tmp_path: Path) -> None:
    frames = made.void(tmp_path, 150)
    chosen = read_protocol("void-authors", data=tmp_path, priors=["none"], only=["VOID 150"])
    for item in run(replace(chosen, methods=(MethodEntry("knn"),)), tmp_path / "RUN"):
        depth = np.rint(np.nan_to_num(frames[item.image].depth) * 256) / 256  # as stored
        assert item.support == ((depth > 0.2) & (depth < 5.0)).sum() > 0


def test_priorda_patterns_on_rooms(tmp_path: Path) -> None:
    chosen = read_protocol("priorda")
    assert {entry.name for entry in chosen.datasets} == {"nyu", "scannet", "eth3d", "diode-indoor", "kitti-dc"}
    rooms = replace(protocol("knn", count=1), scoring=chosen.scoring)
    cases = tuple(case for case in chosen.cases if parse_pattern(case)[0].name not in ("keypoints", "square"))
    records = run(replace(rooms, cases=(*cases, "square:20")), tmp_path)  # rooms of the tests are smaller than 160
    assert {item.status for item in records} == {RecordStatus.OK}
    assert len(records) == len(chosen.cases) - 1


def test_half_a_download_says_what_is_missing(tmp_path: Path) -> None:
    result = leadline(f"bench run void --data {tmp_path} --prior none -o {tmp_path / 'RUN'}")
    assert result.exit_code == 2
    assert "void_1500" in result.output
    (tmp_path / "NYU_test_500").mkdir()
    made.uniformat(tmp_path / "NYU_test_500")
    result = leadline(f"bench run omni-dc --data {tmp_path} --prior none -o {tmp_path / 'RUN'}")
    assert result.exit_code == 2
    shown = " ".join(result.output.split())
    assert "ETH3D_SfM_Indoor_test: there is no such folder" in shown
    assert "NYU 200 points, NYU 100 points, NYU 50 points, NYU 5 points. --only chooses" in shown
    assert shown.endswith("those that are: NYU 500 points.")
    with pytest.raises(FileError, match="val_selection_cropped"):
        run_protocol(read_protocol("kitti-dc", data=tmp_path, priors=["none"]), tmp_path / "RUN")


def test_a_run_on_fewer_images_than_published_says_so(tmp_path: Path) -> None:
    made.ddad(tmp_path)
    protocol_file = tmp_path / "own.toml"
    text = 'cases = ["stored"]\nmethods = ["knn"]\npriors = ["none"]\n[[datasets]]\nname = "ddad"\n'
    protocol_file.write_text(text, encoding="utf-8")
    line = f"bench run {protocol_file} --data {tmp_path} -o {tmp_path / 'RUN'}"
    result = leadline(line)
    assert result.exit_code == 0
    note = "ddad has 2 of the 3950 published images; 'leadline datasets check ddad"
    assert note in " ".join(result.output.split())
    assert "3950" not in leadline(f"{line} --limit 1").output
    protocol_file.write_text(f"{text}limit = 2\n", encoding="utf-8")  # all that the protocol needs
    assert "3950" not in leadline(line).output


def test_published_numbers_have_sources_and_belong_to_protocols() -> None:
    sources, scores = field_sources(), field_scores()
    assert {score.source for score in scores} == set(sources)
    assert len({score[:3] + score[4:5] + score[6:] for score in scores}) == len(scores)  # none is there twice
    rows = {}
    for name in field_protocols():
        if name != "robustness":
            chosen = read_protocol(name)
            for entry in chosen.datasets:
                for case in entry.cases or chosen.cases:
                    rows.setdefault(f"{entry.label}, {case}", set()).add(chosen.scoring)
    for score in scores:
        assert score.metric in DEPTH_METRICS
        assert 0 < float(score.printed) < 150
        scoring = sources[score.source].scoring
        assert scoring is None or scoring in rows[score.subset]
    # Some of them, as their sources print them.
    found = {(score.subset, score.method, score.metric): score.printed for score in scores}
    assert found["VOID 150, stored", "OMNI-DC v1.1", "rmse"] == "0.581"
    assert found["KITTI 8 lines, stored", "OMNI-DC v1.0", "mae"] == "0.597"
    assert found["DDAD, stored+behind:7:1.5", "Marigold-DC, median of 10 runs", "rmse"] == "6.449"
    assert found["iBims, marigold:1000", "CompletionFormer", "mae"] == "0.058"
    assert found["ETH3D, randperm:100", "PriorDA 1.1, DAv2-B and ViT-B", "absrel"] == "0.0140"


def test_a_run_is_shown_beside_published_numbers_of_its_convention_only(tmp_path: Path) -> None:
    voids(tmp_path)
    tables = {}
    for name in ("void", "void-authors"):
        chosen = read_protocol(name, data=tmp_path, priors=["none"], only=["VOID 500"])
        run_protocol(replace(chosen, methods=(MethodEntry("knn"),)), tmp_path / name)
        tables[name] = beside_field(read_results(tmp_path / name))
        assert tables[name].convention == chosen.scoring.describe()
    labels = {name: [row.label for block in table.blocks for row in block.rows] for name, table in tables.items()}
    assert labels == {
        "void": [
            "OMNI-DC v1.0 [1]",
            "OMNI-DC v1.1 [1]",
            "Marigold-DC, one run [2]",
            "Marigold-DC, median of 10 runs [2]",
            "Marigold, scale and shift by optimisation [2]",
            "Marigold, scale and shift by least squares [2]",
            "DepthLab [2]",
            "PromptDA [2]",
            "KNN with none",
        ],
        "void-authors": ["KBNet [1]", "KNN with none"],
    }
    text = markdown(tables["void"])
    assert "| OMNI-DC v1.0 [1] | 0.164 | 0.551 | 800 |" in text
    assert "[1] Zuo, Yang, Ma, Deng: OMNI-DC (ICCV 2025); README" in text
    assert "other numbers of images than were published for VOID 500, stored" in text
    shown = leadline(f"bench paper {tmp_path / 'void-authors'} --field --format markdown").output
    assert "| KBNet [1] | 0.07770 | 0.17249 |" in shown
    refused = leadline(f"bench paper {tmp_path / 'void'}")
    assert refused.exit_code == 2
    assert "not scored as the paper's tables are" in " ".join(refused.output.split())


def test_runs_without_published_numbers_say_why(tmp_path: Path) -> None:
    paper = protocol("knn", count=1, cases=["random:20"])
    run(paper, tmp_path / "paper")
    with pytest.raises(InputError, match="leaves pixels without a prediction out"):
        beside_field(read_results(tmp_path / "paper"))
    run(replace(paper, scoring=replace(read_protocol("void").scoring, pixels="held-out")), tmp_path / "held-out")
    with pytest.raises(InputError, match="no numbers of this convention"):
        beside_field(read_results(tmp_path / "held-out"))
    run(replace(paper, scoring=read_protocol("void").scoring), tmp_path / "rooms")
    with pytest.raises(InputError, match=r"\(Rooms, random:20\).* there are numbers for NYU, randperm:500;"):
        beside_field(read_results(tmp_path / "rooms"))


def test_published_conventions_have_tables_of_their_own() -> None:
    tables = field_tables()
    assert len({table.convention for table in tables}) == len(tables) == 3
    shown = leadline("bench paper --field --format markdown").output
    assert all(table.convention in shown for table in tables)
    assert "leave it or --field out" in leadline("bench paper --field --table main").output
