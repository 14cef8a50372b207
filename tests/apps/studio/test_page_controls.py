"""The studio's page in a real browser: the queue, quick changes, units, the way back, and other screens."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from leadline.apps.studio.command import find_predictors
from leadline.apps.studio.server import Studio
from leadline.io.depth import read_depth
from leadline.priors import RECOMMENDED
from support.browser import PHONE, chromium
from support.studio_client import studio
from support.studio_page import PATIENCE, download, finished, give, open_tab, picture, server, tab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["chromium", "server", "tab"]


def test_the_position_in_the_queue_is_shown(tab: Page, server: Studio) -> None:
    gate = threading.Event()

    server.worker.submit("somebody else", "wait", lambda job: gate.wait(PATIENCE / 1000))
    tab.click('[data-example="hole"]')
    tab.wait_for_selector("#progress-text:has-text('Waiting for 1 other job')")
    gate.set()
    finished(tab)


def test_waiting_work_can_be_cancelled(tab: Page, server: Studio) -> None:
    gate = threading.Event()
    server.worker.submit("somebody else", "wait", lambda job: gate.wait(PATIENCE / 1000))
    tab.click('[data-example="hole"]')
    tab.wait_for_selector("#progress-text:has-text('Waiting for 1 other job')")
    tab.click("#cancel")
    tab.wait_for_selector("#progress", state="hidden")
    gate.set()
    assert tab.locator("#result").is_hidden()
    assert tab.locator("#error").is_hidden()


def test_quick_changes_of_a_comparison_show_the_last_one(tab: Page, server: Studio) -> None:
    tab.click('[data-example="hole"]')
    finished(tab)
    tab.click('[data-view="compare"]')
    tab.wait_for_selector(".slide")
    gate = threading.Event()
    server.worker.submit("somebody else", "wait", lambda job: gate.wait(PATIENCE / 1000))
    for key, value in (("left", "knn"), ("right", "glog"), ("what", "error"), ("left", "gmetric"), ("what", "normals")):
        tab.select_option(f"#pair-{key}", value)
    gate.set()
    tab.wait_for_selector(".frame .tag:has-text('gmetric')")
    tab.wait_for_selector("#progress", state="hidden")
    tab.wait_for_selector("#viewer:not(.loading)")
    labels = tab.locator(".frame .tag").all_inner_texts()
    assert [label.split(":")[0] for label in labels] == ["gmetric", "glog"]
    sources = tab.locator("#frame img").evaluate_all("images => images.map((image) => image.getAttribute('src'))")
    assert [source.rsplit("/", 1)[1] for source in sources] == ["normals-gmetric", "normals-glog"]
    assert [tab.input_value(f"#pair-{key}") for key in ("left", "right", "what")] == ["gmetric", "glog", "normals"]


def test_changes_of_a_comparison_in_one_instant_arrive_in_their_order(tab: Page) -> None:
    tab.click('[data-example="hole"]')
    finished(tab)
    tab.click('[data-view="compare"]')
    tab.wait_for_selector(".slide")
    tab.evaluate(
        """() => {
          const [send, late] = [window.fetch, new Set(['/api/method'])];
          window.fetch = async (path, ...more) => {
            if (late.delete(path)) await new Promise((resolve) => setTimeout(resolve, 500)); // the first request
            return send(path, ...more);
          };
          for (const [key, value] of [['left', 'knn'], ['left', 'raw'], ['left', 'glog']]) {
            const select = document.getElementById(`pair-${key}`);
            select.value = value;
            select.dispatchEvent(new Event('change', { bubbles: true }));
          }
        }"""
    )
    tab.wait_for_selector(".frame .tag:has-text('glog')")
    assert tab.input_value("#pair-left") == "glog"


def test_the_page_says_what_a_network_downloads(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    with studio(find_predictors((), None, offer=True)) as running, open_tab(chromium, running) as page:
        assert page.locator("#prior-note").is_hidden()
        page.select_option("#prior-from", RECOMMENDED)
        note = "Complete downloads this network first: 25 M parameters, licence Apache-2.0."
        assert page.inner_text("#prior-note") == note
        page.select_option("#prior-from", "none")
        assert page.locator("#prior-note").is_hidden()


def test_a_view_stays_until_the_next_one_is_loaded(tab: Page, scene: dict[str, Path]) -> None:
    give(tab, scene)
    tab.select_option("#prior-kind", "disparity")
    tab.click("#go")
    finished(tab)
    tab.click('[data-view="measurements"]')
    tab.wait_for_selector(".paint")
    held_back: list[Any] = []
    tab.route("**/api/view/**", lambda route: held_back.append(route))
    box = tab.locator(".paint").bounding_box()
    assert box is not None
    tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    before = picture(tab)
    tab.click("#apply-mask")
    tab.wait_for_selector("#notes li:has-text('under the drawn mask')")
    tab.wait_for_selector("#viewer.loading")
    assert picture(tab) == before  # loaded, and not black
    for route in held_back:
        route.continue_()
    tab.unroute("**/api/view/**")
    tab.wait_for_selector("#viewer:not(.loading)")
    assert picture(tab) != before
    finished(tab)


def test_units_can_be_entered_as_metres_per_count(tab: Page, scene: dict[str, Path]) -> None:
    give(tab, scene)
    tab.select_option("#unit", "other")
    assert "the metres per count" in tab.inner_text("#needs")
    assert tab.locator("#go").is_disabled()
    tab.fill("#unit-number", "0.002")
    tab.keyboard.press("Tab")
    tab.wait_for_selector("#unit-status:has-text('0.002 m')")
    assert tab.locator("#go").is_enabled()
    tab.select_option("#prior-kind", "disparity")
    tab.click("#go")
    finished(tab)
    assert "--unit '0.002 m'" in tab.inner_text("#recipe-command")
    _, path = download(tab, "Measurements as used")
    expected = read_depth(scene["sparse"], 0.002).values
    assert np.array_equal(np.load(path), expected, equal_nan=True)


def test_the_button_stays_in_view_above_a_long_form(tab: Page, scene: dict[str, Path]) -> None:
    give(tab, scene)
    tab.click("#options summary")
    tab.evaluate("window.scrollTo(0, 0)")
    box = tab.locator("#go").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= tab.evaluate("window.innerHeight")


def test_the_way_back_to_the_examples(tab: Page) -> None:
    tab.click('[data-example="hole"]')
    finished(tab)
    tab.click("#to-examples")
    assert tab.locator("#result").is_hidden()
    assert tab.locator(".example").first.is_visible()
    assert tab.locator(".slot.filled").count() == 5  # nothing was removed
    tab.click("#to-result")
    assert tab.locator("#result").is_visible()
    tab.click("#to-examples")
    tab.click('[data-example="lidar"]')
    finished(tab)
    assert "lidar_points.ply" in tab.inner_text("#recipe-command")


def test_a_prior_of_the_command_is_selected(chromium: Browser, scene: dict[str, Path]) -> None:
    with studio(default_prior="none") as server, open_tab(chromium, server) as tab:
        assert tab.input_value("#prior-from") == "none"
        give(tab, scene, "image", "sparse")
        assert tab.locator("#go").is_enabled()
        give(tab, scene, "prior")
        assert tab.input_value("#prior-from") == "file"  # a file was given


def test_downloads_follow_the_exponent(tab: Page) -> None:
    tab.click('[data-example="hole"]')
    finished(tab)
    _, fitted = download(tab, "Depth in metres")
    tab.focus("#exponent")
    for _ in range(12):
        tab.keyboard.press("ArrowRight")
    tab.wait_for_selector("#downloads a:has-text('at λ =')")
    tab.wait_for_selector("#progress", state="hidden")
    name, by_hand = download(tab, "Depth in metres")
    assert "lambda" in name
    assert not np.array_equal(np.load(by_hand), np.load(fitted))
    assert "fitted exponent" in tab.inner_text("#held-note")
    said = re.search(
        r"RMSE of the fit: \S+ (c?m) \(at the fitted exponent \S+ (c?m)\)", tab.inner_text("#exponent-text")
    )
    assert said is not None
    assert said[1] == said[2]  # one unit, or the two cannot be compared


def test_wording_on_a_touch_screen(chromium: Browser, server: Studio) -> None:
    with open_tab(chromium, server, viewport=PHONE, has_touch=True, is_mobile=True) as tab:
        assert "Drop" not in tab.inner_text("#scene .lead")
        tab.tap('[data-example="hole"]')
        finished(tab)
        assert "Tap to set" in tab.inner_text("#chart-profile figcaption")
        tab.tap('[data-view="points"]')
        tab.wait_for_selector("#cloud-colour")
        assert "shift" not in tab.inner_text("#tools")
        assert "two fingers" in tab.inner_text("#tools")


def test_a_mouse_is_told_about_shift(tab: Page) -> None:
    tab.click('[data-example="hole"]')
    finished(tab)
    tab.click('[data-view="points"]')
    tab.wait_for_selector("#cloud-colour")
    assert "shift-drag" in tab.inner_text("#tools")


def test_a_phone_needs_no_sideways_scrolling(tab: Page) -> None:
    tab.set_viewport_size(PHONE)  # type: ignore[arg-type]
    wide = "document.documentElement.scrollWidth"
    assert tab.evaluate(wide) <= PHONE["width"]
    tab.click('[data-example="hole"]')
    finished(tab)
    for view in ("measurements", "points", "compare"):
        tab.click(f'[data-view="{view}"]')
        tab.wait_for_load_state("networkidle")
        assert tab.evaluate(wide) <= PHONE["width"], view
    tab.wait_for_selector(".slide")
