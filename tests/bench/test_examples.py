"""Every example in the help of `leadline bench` runs in a folder with the files that it names."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import numpy as np
import pytest

from leadline.apps.bench import SOME_FAILED, command
from leadline.datasets import dataset
from support import completion_trees as made
from support import trees
from support.bench_runs import protocol, toml
from support.cli_frames import leadline, run
from support.paths import MODELS

NETWORK = "tcmonodepth_small"
EXPECTED_FAILURES = (
    "fewer than two usable measurements",  # the middle of an image of 24 x 16 pixels has one
    "the fitted gain is not positive",  # the scenes are random, so that a network cannot know their depth
    "not set up",  # trained systems
    "weights",  # of PromptDA
    "there is no such folder of predictions",  # of priors other than MoGe-3
)
CLUSTER = "--executor ray"  # needs a running cluster; test_run.py starts one


def examples() -> list[str]:
    context = click.Context(command)
    groups = [command, *(command.get_command(context, name) for name in command.list_commands(context))]
    assert all(one is not None and one.epilog for one in groups)
    lines = (line.strip() for one in groups for line in str(one and one.epilog).splitlines())
    return sorted({line for line in lines if line.startswith("leadline ")})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with protocols, two runs, data sets with predictions, and scene folders."""
    here = tmp_path_factory.mktemp("examples")
    chosen = toml(protocol("knn", "ours", "best", count=2, cases=["distributed"]))
    # The labels of the paper, so that the run can be compared with it.
    chosen = chosen.replace('"Rooms"', '"iBims"').replace('"made"', '"MoGe-3"')
    (here / "my.toml").write_text(chosen, encoding="utf-8")
    for name in ("RUN", "OTHER"):
        result = leadline(f"bench run {here / 'my.toml'} -o {here / name}")
        assert result.exit_code == 0, result.output
    trees.ibims_raw(here / "data" / "ibims1")
    trees.arkit(here / "data" / "arkitscenes", frames=1, scale=256)  # as large as the paper's images
    for name, folder in (("ibims", "ibims1"), ("arkit", "arkitscenes")):
        tree = dataset(name, here / "data" / folder)
        for image in tree.names():
            height, width = tree.load(image).image.shape[:2]
            target = here / "data" / "priors" / "moge-3" / f"{image}.npy"
            target.parent.mkdir(parents=True, exist_ok=True)
            np.save(target, np.linspace(1, 2, height * width, dtype=np.float32).reshape(height, width))
    made.kitti_selection(here / "data" / "kitti")
    trees.scenes(here / "SCENES")
    return here


@pytest.mark.parametrize("line", [line for line in examples() if CLUSTER not in line])
def test_examples_in_the_help_run(line: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    shutil.copytree(prepared, here)  # so that examples do not see each other's output
    monkeypatch.chdir(here)
    if "MODEL.onnx" in line:
        pytest.importorskip("onnxruntime")
        if not (MODELS / f"{NETWORK}.onnx").is_file():
            pytest.skip("the real network is not here")
        for end in ("onnx", "json"):
            shutil.copy(MODELS / f"{NETWORK}.{end}", here / f"MODEL.{end}")
    words = line.removeprefix("leadline ").replace(" /data", " data")
    if "--executor processes" in words:  # worker processes need a main module that is the command itself
        done = run(words)
        code, output = done.returncode, done.stdout + done.stderr
    else:
        result = leadline(words)
        code, output = result.exit_code, result.output
    reasons = [text for text in output.splitlines() if " failed: " in text]
    assert code == (SOME_FAILED if reasons else 0), output
    assert all(any(part in reason for part in EXPECTED_FAILURES) for reason in reasons), output


def test_one_example_needs_a_cluster() -> None:
    assert sum(CLUSTER in line for line in examples()) == 1
