"""The studio without measurements: the relative depth of the prior, the same as from the command line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from leadline.apps.studio.command import find_predictors
from leadline.apps.studio.server import Studio
from leadline.batch.relative_depth import read_relative_depth, save_relative_depth
from leadline.priors import PRIORS, RECOMMENDED
from leadline.priors.model_files import needs_download
from leadline.priors.predictor import Predictor
from support.browser import PHONE, chromium
from support.hub import Hub, only_hub
from support.studio_client import KIND, SIZE, Visitor, studio
from support.studio_page import finished, give, open_tab, picture, server, tab, wait_until_relative
from support.tiny_networks import depth_anything, save

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["chromium", "server", "tab"]
NO_UNIT = "There are no measurements, so the depth is relative and has no unit; add “Measurements”"


@pytest.fixture
def recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Studio]:
    """A server that offers the recommended network, whose weights a stand-in for the hub has."""
    network = save(depth_anything, tmp_path / "network")
    hub = Hub(str(PRIORS[RECOMMENDED].model), {file.name: file.read_bytes() for file in network.iterdir()})
    with only_hub(hub, tmp_path, monkeypatch), studio(find_predictors((), None, offer=True)) as running:
        yield running


def test_a_photo_alone_has_the_depth_of_the_command(
    scene: dict[str, Path], tmp_path: Path, recommended: Studio
) -> None:
    visitor = Visitor(recommended.port)
    visitor.give(scene, "image")
    assert needs_download(RECOMMENDED)
    summary = visitor.complete({"prior": RECOMMENDED})
    assert not needs_download(RECOMMENDED)  # choosing it was the consent
    assert summary["relative"] is True
    assert (summary["near"], summary["far"], summary["holds"]) == (None, None, "disparity")
    assert summary["notes"][0]["warning"] is True
    assert "relative and has no unit" in summary["notes"][0]["text"]
    assert summary["recipe"]["command"] == f"leadline complete photo.png --prior {RECOMMENDED} -o out/"

    (tmp_path / "out").mkdir()
    save_relative_depth(scene["image"], Predictor(RECOMMENDED), tmp_path / "out")
    assert set(summary["downloads"]) == {"npy", "prior.json", "preview.png"}
    assert visitor.download(summary, "npy") == (tmp_path / "out" / "photo.npy").read_bytes()
    with (
        Image.open(io.BytesIO(visitor.download(summary, "preview.png"))) as own,
        Image.open(tmp_path / "out" / "photo_preview.png") as other,
    ):
        assert np.array_equal(np.asarray(own), np.asarray(other))
    own_facts = json.loads(visitor.download(summary, "prior.json"))
    facts = json.loads((tmp_path / "out" / "photo.prior.json").read_text(encoding="utf-8"))
    assert own_facts["image"].pop("path") == "photo.png"
    facts["image"].pop("path")
    assert own_facts == facts


def test_measurements_make_it_metric_and_back(visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene, "image", "prior")
    relative = visitor.complete({"prior_kind": "disparity"})
    expected = read_relative_depth(scene["image"], scene["prior"], kind="disparity")
    downloaded = np.load(io.BytesIO(visitor.download(relative, "npy")))
    assert np.array_equal(downloaded, np.load(scene["prior"]))
    facts = json.loads(visitor.download(relative, "prior.json"))
    assert (facts["quantity"], facts["file"]) == ("disparity", "photo.npy")
    namespace: dict[str, object] = {}
    program = relative["recipe"]["python"].replace("photo.png", str(scene["image"]))
    exec(program.replace("disparity.npy", str(scene["prior"])), namespace)
    assert np.array_equal(namespace["found"].depth, expected.depth)  # type: ignore[attr-defined]
    assert relative["recipe"]["command"] == ""  # the command line has nothing to do for a prior in a file

    with Image.open(io.BytesIO(visitor.get(f"/api/view/{relative['revision']}/relative"))) as view:
        assert view.size == SIZE
    for path in ("points", "regions"):
        assert visitor.request("GET", f"/api/{path}/{relative['revision']}")[0] == 404
    assert "complete a scene with measurements" in visitor.run("/api/exponent", {"exponent": 1.0})["error"]

    visitor.give(scene, "sparse")
    metric = visitor.complete(KIND)
    assert metric["relative"] is False
    assert "depth.npy" in metric["downloads"]


def test_what_has_no_effect_is_named_and_what_cannot_work_is_refused(visitor: Visitor, scene: dict[str, Path]) -> None:
    visitor.give(scene, "image", "prior", "reference")
    found = visitor.complete({"uncertainty": True, "options": {"outliers": "regions"}})
    unused = "Ground truth, Estimate the uncertainty, Options of the method"
    assert found["notes"][-1] == {"text": f"without measurements there is no use for: {unused}.", "warning": True}
    auto = visitor.run("/api/complete", {"prior_kind": "auto"})["error"]
    assert "“The prior holds: auto” needs measurements" in auto
    constant = visitor.run("/api/complete", {"prior": "none"})["error"]
    assert "has the same value everywhere" in constant
    assert "“Measurements”" in constant


def test_networks_that_predict_metres_are_marked(recommended: Studio) -> None:
    recommended.predictors["moge-2"] = Predictor("none")  # only its name counts here
    priors = json.loads(Visitor(recommended.port).get("/api/start"))["priors"]
    assert [each["name"] for each in priors if each["metric"]] == ["moge-2"]


def test_the_page_shows_relative_depth_until_there_are_measurements(tab: Page, scene: dict[str, Path]) -> None:
    give(tab, scene, "image")
    assert tab.locator("#go").is_disabled()
    assert "Still needed: a prior." in tab.inner_text("#needs")
    tab.select_option("#prior-from", "none")
    assert tab.inner_text("#needs") == "Still needed: measurements."
    give(tab, scene, "prior")
    assert tab.inner_text("#needs") == "Without measurements the depth is relative and has no unit."
    tab.select_option("#prior-kind", "disparity")
    tab.click("#go")
    wait_until_relative(tab)
    assert tab.locator("#tabs button").evaluate_all("tabs => tabs.map((t) => t.dataset.view)") == ["image", "relative"]
    assert "/relative" in picture(tab)
    assert "relative depth, without a unit" in tab.inner_text("#legend")
    assert tab.inner_text("#notes li.warning").startswith(NO_UNIT)
    for hidden in ("#exponent-card", "#diagnostics-card", "#recipe-command"):
        assert tab.locator(hidden).is_hidden()
    assert tab.locator("#downloads a").count() == 3
    tab.hover("#frame")
    assert tab.inner_text("#readout") == ""  # a number without a unit would be read as metres

    give(tab, scene, "sparse")
    tab.select_option("#unit", "mm")
    tab.click("#go")
    finished(tab)
    assert "/depth" in picture(tab)
    assert tab.locator("#exponent-card").is_visible()
    assert tab.locator("#recipe-command").is_visible()


def test_a_phone_shows_all_of_it(chromium: Browser, server: Studio, scene: dict[str, Path]) -> None:
    with open_tab(chromium, server, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        give(page, scene, "image", "prior")
        page.click("#go")
        wait_until_relative(page)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        cut = "boxes => boxes.some((box) => box.scrollWidth > box.clientWidth)"
        assert not page.locator("#facts .fact").evaluate_all(cut)
