"""Protocol files: what they say, what they may not say, and those that come with leadline."""

from __future__ import annotations

from pathlib import Path

import pytest

from leadline.base.errors import FileError, InputError
from leadline.bench.plan import plan_work_items
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.protocol_files import packaged_protocols, read_protocol
from leadline.bench.scoring import PAPER_SCORING
from leadline.bench.sources import open_method
from leadline.datasets import DATASETS
from support import trees

TEXT = """
cases = ["distributed", "random:50+noise:0.02"]
stride = 5.0
methods = ["ours", {name = "ours", label = "stiff", options = {weight_data = 1e-2}}]

[[datasets]]
name = "ibims"
label = "iBims"
root = "ibims1"
normals = false
options = {max_depth = 20.0}

[[priors]]
source = "files:priors"
label = "MoGe-3"
"""
PAPER = ("DIODE-in", "ETH3D", "iBims", "ARKit", "Barn", "Caterpillar", "Ignatius", "Meetingroom", "Truck")


def write(folder: Path, text: str = TEXT) -> str:
    (folder / "p.toml").write_text(text, encoding="utf-8")
    return str(folder / "p.toml")


def test_everything_in_the_file_arrives(tmp_path: Path) -> None:
    (tmp_path / "priors").mkdir()
    chosen = read_protocol(write(tmp_path), limit=7)
    assert chosen == Protocol(
        (DatasetEntry("ibims", "iBims", str(tmp_path / "ibims1"), False, {"max_depth": 20.0}),),
        (PriorEntry(f"files:{tmp_path / 'priors'}", "MoGe-3"),),
        (MethodEntry("ours", "Ours"), MethodEntry("ours", "stiff", {"weight_data": 1e-2})),
        ("distributed", "random:50+noise:0.02"),
        5.0,
        7,
    )


def test_paths_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "priors").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    chosen = read_protocol(write(tmp_path), data=Path("data"))
    assert chosen.datasets[0].root == str(tmp_path / "data" / "ibims1")
    assert chosen.priors[0].source == f"files:{tmp_path / 'data' / 'priors'}"
    chosen = read_protocol(write(tmp_path), roots={"iBims": "elsewhere"}, priors=["net=onnx:m.onnx", "none"])
    assert chosen.datasets[0].root == str(tmp_path / "elsewhere")
    assert chosen.priors == (PriorEntry(f"onnx:{tmp_path / 'm.onnx'}", "net"), PriorEntry("none", "none"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("stride = 5.0", "strides = 5.0", "did you mean 'stride'"),
        ("stride = 5.0", "stride = 0.5", "stride"),
        ("stride = 5.0", 'stride = "7"', "stride"),
        ("root =", "rot =", "did you mean 'root'"),
        ('name = "ibims"', 'title = "ibims"', "no key 'title'"),
        ('name = "ibims"\n', "", "needs the key 'name'"),
        ("normals = false", "normals = 0", "true or false"),
        ("options = {max_depth = 20.0}", "options = 3", "expected a table"),
        ('source = "files:priors"', "source = 3", "expected a string"),
        ('label = "stiff"', 'label = "Ours"', "used twice"),
        ("random:50+noise", "random:many+noise", "random:500"),
        ('cases = ["distributed", ', "cases = [3, ", r"`cases\[0\]`: expected a string"),
        ("methods = [", "methods = [3, ", "a name or a table"),
        ("stride = 5.0", "stride = = 5.0", "not valid TOML"),
        ("[[priors]]", "[[prior]]", "priors"),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in TEXT
    with pytest.raises(InputError, match=words) as caught:
        read_protocol(write(tmp_path, TEXT.replace(old, new)))
    assert str(tmp_path / "p.toml") in str(caught.value)


def test_unknown_files_and_labels(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be read"):
        read_protocol(str(tmp_path / "none.toml"))
    with pytest.raises(FileError, match="paper"):
        read_protocol("papr")
    with pytest.raises(InputError, match="did you mean 'iBims'"):
        read_protocol(write(tmp_path), only=["ibims"])


def test_options_are_added_to_all_entries_or_to_one(tmp_path: Path) -> None:
    chosen = read_protocol(
        write(tmp_path),
        data_options={"gap": 2},
        prior_options={"MoGe-3:kind": "disparity"},
        method_options={"stiff:weight_data": 0.5, "stiff:fit.tolerance": 1e-3},
    )
    assert chosen.datasets[0].options == {"max_depth": 20.0, "gap": 2}
    assert chosen.priors[0].options == {"kind": "disparity"}
    assert [entry.options for entry in chosen.methods] == [{}, {"weight_data": 0.5, "fit.tolerance": 1e-3}]
    with pytest.raises(InputError, match="no method labelled 'stif'; did you mean 'stiff'"):
        read_protocol(write(tmp_path), method_options={"stif:weight_data": 0.5})


@pytest.mark.parametrize("name", packaged_protocols())
def test_packaged_protocols_are_sound(name: str, tmp_path: Path) -> None:
    trees.scenes(tmp_path)  # only the protocol of scene folders looks at what is there
    chosen = read_protocol(name, data=tmp_path)
    for entry in chosen.methods:
        open_method(entry)
    assert {entry.name for entry in chosen.datasets} <= {*DATASETS, "rendered"}
    if chosen.scoring != PAPER_SCORING:  # one of the field's benchmarks
        assert chosen.scoring.cases == "separate"
        return
    if name == "rivals":
        assert "lidar:16" in chosen.cases  # sparse patterns, not the paper's cases
        return
    if name == "sensors":
        assert chosen.methods == read_protocol("rivals").methods
        images = {item.dataset: item.image for item in plan_work_items(chosen)}
        assert images == {"Sensors": "set_a/two", "Held out": "set_b/bare"}
        return
    papers = ("distributed", "central", "outer")
    assert chosen.cases[:3] == papers if name == "beyond" else chosen.cases == papers
    assert chosen.stride == 7.5
    if name not in ("scenes", "smoke", "systems", "beyond"):
        assert tuple(entry.label for entry in chosen.datasets) == PAPER


def test_the_weight_sweep_is_the_papers() -> None:
    weights = {tuple(entry.options.values()) for entry in read_protocol("weights").methods}
    assert weights == {(data, laplacian) for data in (1e-4, 1e-3, 1e-2) for laplacian in (1e-4, 1e-3, 1e-2)}


def test_methods_get_their_options() -> None:
    import numpy as np

    from leadline.core.prior import Prior

    ramp = np.linspace(1, 2, 600).reshape(20, 30)
    sparse = np.full_like(ramp, np.nan)
    sparse[::6, ::6] = np.sqrt(ramp[::6, ::6]) + 0.2 * (np.arange(30)[::6] > 12)
    weak, strong = (
        open_method(MethodEntry("ours", options={"weight_data": weight}))(Prior(ramp), sparse)
        for weight in (1e-4, 10.0)
    )
    assert np.nanmax(np.abs(weak.depth - strong.depth)) > 0.01
    with pytest.raises(InputError, match=r"fit\.tolerance or reconstruction\.tolerance"):
        open_method(MethodEntry("ours", options={"tolerance": 1e-3}))
    open_method(MethodEntry("ours", options={"fit.tolerance": 1e-3}))


SPLIT = """
methods = ["glog"]
priors = ["scene"]
[[datasets]]
name = "scenes"
root = "S"
split = true
"""


def test_scene_folders_are_split_into_subsets(tmp_path: Path) -> None:
    trees.scenes(tmp_path / "S")
    trees.scenes(tmp_path / "S" / "deep")
    chosen = read_protocol(write(tmp_path, SPLIT))
    # set_b has no reference to be scored against.
    assert [(entry.label, Path(entry.root).name) for entry in chosen.datasets] == [("deep", "deep"), ("set_a", "set_a")]
    assert not any(entry.split for entry in chosen.datasets)
    assert [entry.label for entry in read_protocol(write(tmp_path, SPLIT), only=["set_a"]).datasets] == ["set_a"]


def test_scene_folders_at_the_top_stay_one_subset(tmp_path: Path) -> None:
    trees.scenes(tmp_path / "T")
    (tmp_path / "T" / "set_a").rename(tmp_path / "S")
    assert [entry.label for entry in read_protocol(write(tmp_path, SPLIT)).datasets] == ["scenes"]


def test_scene_folders_at_two_depths_are_not_split_silently(tmp_path: Path) -> None:
    trees.scenes(tmp_path / "S")
    (tmp_path / "S" / "set_a" / "one").rename(tmp_path / "S" / "one")
    with pytest.raises(InputError, match="'one' is beside 'set_a', a folder of scenes"):
        read_protocol(write(tmp_path, SPLIT))
    with pytest.raises(InputError, match="'scenes' only, not of 'ibims'"):
        read_protocol(write(tmp_path, TEXT.replace("normals", "split = true\nnormals")))
