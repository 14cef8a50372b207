"""The plan of a run: which method runs with which prior."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leadline.base.errors import InputError
from leadline.bench.plan import plan_work_items
from leadline.bench.protocol import DatasetEntry, MethodEntry, PriorEntry, Protocol
from leadline.bench.sources import inspect_priors
from leadline.core.prior import Prior
from leadline.io.priors import write_prior
from support import trees
from support.bench_runs import protocol


def planned(chosen: Protocol) -> dict[str, list[str]]:
    """The methods that are planned with each prior."""
    return {item.prior: list(dict.fromkeys(task.method for task in item.tasks)) for item in plan_work_items(chosen)}


def with_priors(chosen: Protocol, *priors: PriorEntry) -> Protocol:
    return Protocol(chosen.datasets, priors, chosen.methods, chosen.cases)


def test_a_method_that_needs_no_prior_runs_once() -> None:
    chosen = with_priors(
        protocol("glog", MethodEntry("knn", priors="first"), count=1),
        PriorEntry("rendered", "first"),
        PriorEntry("rendered", "second"),
    )
    assert planned(chosen) == {"first": ["GLog", "KNN"], "second": ["GLog"]}


def test_the_raw_prior_is_scored_only_in_metres() -> None:
    chosen = with_priors(
        protocol("raw", "glog", count=1),
        PriorEntry("rendered", "metres", gauge="metric"),
        PriorEntry("rendered", "affine", gauge="affine"),
        PriorEntry("rendered", "not stated"),
    )
    assert planned(chosen) == {"metres": ["Raw", "GLog"], "affine": ["GLog"], "not stated": ["GLog"]}
    only = with_priors(protocol("raw", count=1), PriorEntry("rendered", "affine", gauge="affine"))
    with pytest.raises(InputError, match="'Raw' needs a prior in metres"):
        plan_work_items(only)


def test_the_gauge_of_saved_predictions_is_that_of_their_sidecars(tmp_path: Path) -> None:
    for name in ("metric", "affine"):
        (tmp_path / name).mkdir()
        write_prior(tmp_path / name / "a.npy", Prior(np.ones((2, 2))), {"gauge": name})
    (tmp_path / "bare").mkdir()
    np.save(tmp_path / "bare" / "a.npy", np.ones((2, 2)))
    entries = tuple(PriorEntry(f"files:{tmp_path / name}", name) for name in ("metric", "affine", "bare"))
    stated = PriorEntry(f"files:{tmp_path / 'bare'}", "stated", gauge="metric")
    found = {label: prior.gauge for label, prior in inspect_priors((*entries, stated)).items()}
    assert found == {"metric": "metric", "affine": "affine", "bare": "unknown", "stated": "metric"}
    # A network that is not installed states its gauge, too.
    absent = PriorEntry("depth-anything-v2-large:nowhere", "DAV2-L"), PriorEntry("moge-3:nowhere", "MoGe-3")
    found = {label: prior.gauge for label, prior in inspect_priors((*absent, stated)).items()}
    assert found == {"DAV2-L": "affine", "MoGe-3": "metric", "stated": "metric"}


def test_scenes_without_a_stored_prior_are_left_out_of_it(tmp_path: Path) -> None:
    trees.scenes(tmp_path)
    file = tmp_path / "set_a/two/scene.json"
    scene = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**scene, "priors": []}), encoding="utf-8")
    stored, none = PriorEntry("scene", "stored"), PriorEntry("none")
    data = DatasetEntry("scenes", root=str(tmp_path))
    chosen = Protocol((data,), (none, stored, PriorEntry("oracle:0.5:scene", "blend")), (MethodEntry("knn"),))
    items = [(item.image, item.prior) for item in plan_work_items(chosen)]
    with_prior = [("set_a/one", label) for label in ("none", "stored", "blend")]
    assert items == [*with_prior, ("set_a/two", "none")]
    only_two = replace(data, root=str(tmp_path / "set_a/two"))
    with pytest.raises(InputError, match="no image of the protocol has a stored prior"):
        plan_work_items(replace(chosen, datasets=(only_two,), priors=(stored,)))


def test_a_data_set_may_have_cases_of_its_own() -> None:
    chosen = protocol("glog", count=1)
    other = replace(chosen.datasets[0], label="Other", cases=("share:0.5",))
    items = plan_work_items(replace(chosen, datasets=(*chosen.datasets, other)))
    assert [tuple(task.case for task in item.tasks) for item in items] == [chosen.cases, ("share:0.5",)]
    with pytest.raises(InputError, match="'share:2' must be written like"):
        replace(other, cases=("share:2",))
