"""The studio's page in a real browser, from the first screen to the download."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import leadline
from leadline.apps.studio.server import Limits, Studio
from leadline.core.pipeline import warm_up
from leadline.io.depth import read_depth, read_values
from support.browser import DESKTOP, PHONE, chromium
from support.studio_client import studio

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["chromium"]

PATIENCE = 60_000  # milliseconds until a step counts as failed; no test depends on a shorter time
DRIVER = "GL Driver Message"  # a warning about drawing in 3D without a graphics card, which the page cannot avoid


@pytest.fixture(scope="module")
def server() -> Iterator[Studio]:
    warm_up()  # compiling takes longer than a step of a test may
    with studio(limits=Limits(upload=2**20)) as running:
        yield running


@contextmanager
def open_tab(chromium: Browser, server: Studio, **settings: Any) -> Iterator[Page]:
    """The page, loaded. At the end it must have logged no error, and must have contacted nobody but the server."""
    context = chromium.new_context(**{"viewport": DESKTOP, **settings})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    complaints: list[str] = []
    page.on("console", lambda entry: complaints.append(entry.text) if entry.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if foreign(request.url, server) else None)
    page.goto(server.url)
    page.wait_for_selector("body[data-ready]")
    yield page
    context.close()
    assert not [text for text in complaints if DRIVER not in text]


@pytest.fixture
def tab(chromium: Browser, server: Studio) -> Iterator[Page]:
    with open_tab(chromium, server) as page:
        yield page


def foreign(url: str, server: Studio) -> bool:
    return not url.startswith((server.url, "blob:", "data:"))


def finished(page: Page) -> None:
    """Wait until a result is shown with its curves, and no job is running."""
    page.wait_for_selector("#chart-gain svg", state="visible")
    page.wait_for_selector("#progress", state="hidden")
    page.wait_for_load_state("networkidle")


def download(page: Page, text: str) -> tuple[str, Path]:
    with page.expect_download() as waiting:
        page.click(f"#downloads a:has-text('{text}')")
    return waiting.value.suggested_filename, waiting.value.path()


def give(page: Page, scene: dict[str, Path], *roles: str) -> None:
    for role in roles or ("image", "sparse", "prior"):
        page.set_input_files(f"#file-{role}", scene[role])
        page.wait_for_selector(f'.slot.filled[data-role="{role}"]')


def shown(page: Page, selector: str) -> bytes:
    return page.locator(selector).screenshot()


def picture(page: Page) -> str:
    """Address of the picture that is shown, which must have been loaded."""
    assert page.locator("#frame img").first.evaluate("image => image.complete && image.naturalWidth > 0")
    return page.get_attribute("#frame img", "src") or ""


def test_first_screen(tab: Page) -> None:
    assert tab.locator(".example").count() == 3
    assert tab.locator("#go").is_disabled()
    assert "an image, measurements, a prior" in tab.inner_text("#needs")
    assert tab.locator("#result").is_hidden()
    loaded = "image => image.complete && image.naturalWidth > 0"
    tab.wait_for_load_state("networkidle")
    assert tab.locator(".example img").evaluate_all(f"images => images.every({loaded})")


def test_example_views_exponent_and_slider(tab: Page) -> None:
    tab.click('[data-example="hole"]')
    finished(tab)
    views = ["image", "measurements", "prior", "depth", "error", "normals", "points", "compare"]
    assert tab.locator("#tabs button").evaluate_all("tabs => tabs.map((t) => t.dataset.view)") == views
    fitted = tab.inner_text("#exponent-value")
    before = picture(tab)

    tab.focus("#exponent")
    for _ in range(12):
        tab.keyboard.press("ArrowRight")
    tab.wait_for_selector('[data-view="change"]')
    tab.wait_for_selector("#progress", state="hidden")
    assert tab.inner_text("#exponent-value") != fitted
    assert "RMSE of the fit" in tab.inner_text("#exponent-text")
    tab.click('[data-view="change"]')
    tab.wait_for_selector("#viewer:not(.loading)")
    assert "/change?" in picture(tab)
    tab.click("#refit")
    tab.wait_for_selector('[data-view="change"]', state="detached")
    tab.wait_for_selector("#viewer:not(.loading)")
    assert tab.inner_text("#exponent-value") == fitted
    assert picture(tab) == before

    tab.click('[data-view="compare"]')
    tab.wait_for_selector(".slide")
    tab.wait_for_load_state("networkidle")
    labels = tab.locator(".frame .tag").all_inner_texts()
    errors = [float(re.search(r"([\d.]+) %", label)[1]) for label in labels]  # type: ignore[index]
    assert labels[0].startswith("gdisp: AbsRel")
    assert labels[1].startswith("leadline (best): AbsRel")
    assert errors[1] < errors[0]
    box = tab.locator(".slide").bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] / 4, box["y"] + 60, steps=4)
    tab.mouse.up()
    assert abs(int(tab.get_attribute(".slide", "aria-valuenow") or 0) - 25) <= 1
    tab.select_option("#pair-left", "knn")
    tab.wait_for_selector(".frame .tag:has-text('knn')")


def test_points_are_drawn_and_turn(tab: Page) -> None:
    tab.click('[data-example="lidar"]')
    finished(tab)
    tab.click('[data-view="points"]')
    tab.wait_for_selector("#cloud-colour")
    tab.wait_for_load_state("networkidle")
    share = """canvas => { const copy = document.createElement('canvas'); copy.width = 64; copy.height = 48;
      const pen = copy.getContext('2d'); pen.drawImage(canvas, 0, 0, 64, 48);
      const data = pen.getImageData(0, 0, 64, 48).data; let bright = 0;
      for (let i = 0; i < data.length; i += 4) bright += data[i] + data[i + 1] + data[i + 2] > 120;
      return bright / (64 * 48); }"""
    assert tab.locator("#points").evaluate(share) > 0.5  # more than half of the canvas is room, not background
    first = shown(tab, "#points")
    box = tab.locator("#points").bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + 300, box["y"] + 200)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 420, box["y"] + 230, steps=3)
    tab.mouse.up()
    turned = shown(tab, "#points")
    assert turned != first
    tab.select_option("#cloud-colour", label="depth")
    assert shown(tab, "#points") != turned
    tab.click("text=Reset view")
    tab.select_option("#cloud-colour", label="image")
    assert shown(tab, "#points") == first


def test_own_files_to_the_same_bytes(tab: Page, scene: dict[str, Path]) -> None:
    give(tab, scene)
    assert tab.inner_text("#unit-status").startswith("The unit was guessed: mm")
    assert "warning" in (tab.get_attribute("#unit-status", "class") or "")
    tab.select_option("#unit", "mm")
    tab.wait_for_selector("#unit-status:not(.warning)")
    tab.select_option("#prior-kind", "disparity")
    tab.click("#go")
    finished(tab)
    result = leadline.complete(
        leadline.Prior(read_values(scene["prior"]), kind="disparity"),
        read_depth(scene["sparse"], "mm").values,
        options=leadline.CompletionOptions.best(),
    )
    name, path = download(tab, "Depth in metres")
    assert name == "photo_depth.npy"
    assert np.load(path).tobytes() == result.depth.tobytes()
    assert "--prior-kind disparity" in tab.inner_text("#recipe-command")
    assert tab.locator('[data-view="error"]').count() == 0  # there is no reference
    assert "60°" in tab.inner_text("#notes")


def test_paint_over_measurements(tab: Page, scene: dict[str, Path]) -> None:
    give(tab, scene)
    tab.select_option("#prior-kind", "disparity")
    tab.click("#go")
    finished(tab)
    all_of_them = int(tab.inner_text("#facts .fact:first-child b").replace(",", ""))
    tab.click('[data-view="measurements"]')
    tab.click("#apply-mask")
    assert "Nothing is painted" in tab.inner_text("#error")
    box = tab.locator(".paint").bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.5)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5, steps=5)
    tab.mouse.up()
    tab.click("#apply-mask")
    tab.wait_for_selector("#notes li:has-text('under the drawn mask')")
    finished(tab)
    left = int(tab.inner_text("#facts .fact:first-child b").replace(",", ""))
    removed = int(re.search(r"(\d+) measurements under", tab.inner_text("#notes"))[1])  # type: ignore[index]
    assert left + removed == all_of_them
    assert 0 < removed < all_of_them
    _, path = download(tab, "Measurements as used")
    used = np.load(path)
    assert np.count_nonzero(used > 0) == left
    assert not (used[55:65, 50:90] > 0).any()  # the middle of the stroke
    tab.click('[data-view="measurements"]')
    tab.click("#clear-mask")
    tab.wait_for_selector(f"#facts .fact:first-child b:text-is('{all_of_them}')")
    finished(tab)


def test_wrong_files_show_the_reason(tab: Page, scene: dict[str, Path], tmp_path: Path) -> None:
    evil = tmp_path / "<img src=x onerror=document.title=1>.png"
    evil.write_text("no picture", encoding="utf-8")
    tab.set_input_files("#file-image", evil)
    tab.wait_for_selector('.slot.wrong[data-role="image"]')
    assert "cannot be read" in tab.inner_text('.slot[data-role="image"]')
    assert tab.title() == "leadline studio"
    large = tmp_path / "large.npy"
    np.save(large, np.ones((600, 600), np.float32))
    tab.set_input_files("#file-sparse", large)
    tab.wait_for_selector('.slot.wrong[data-role="sparse"]')
    assert "--upload-limit" in tab.inner_text('.slot[data-role="sparse"]')
    assert tab.locator("#go").is_disabled()
    give(tab, scene)
    tab.set_input_files("#file-reference", scene["prior"])
    tab.click("summary:has-text('Options')")
    tab.fill("#option-weight_data", "-1")
    tab.click("#go")
    tab.wait_for_selector("#error:not([hidden])")
    assert "“Reconstruction: weight data” needs “Reconstruction: system: fixed”" in tab.inner_text("#error")
    tab.fill("#option-weight_data", "")
    tab.select_option("#prior-kind", "disparity")
    tab.click("#go")
    finished(tab)
    assert tab.locator("#error").is_hidden()


def test_dropped_files_find_their_places(tab: Page, scene: dict[str, Path]) -> None:
    names = {"image": "photo.png", "sparse": "lidar_depth.png", "prior": "moge_prior.npy", "reference": "scene_gt.npy"}
    content = {name: list(scene[role].read_bytes()) for role, name in names.items()}
    tab.evaluate(
        """content => { const data = new DataTransfer();
          for (const [name, bytes] of Object.entries(content)) data.items.add(new File([new Uint8Array(bytes)], name));
          const how = { dataTransfer: data, bubbles: true, cancelable: true };
          document.body.dispatchEvent(new DragEvent('drop', how)); }""",
        content,
    )
    for role, name in names.items():
        tab.wait_for_selector(f'.slot.filled[data-role="{role}"]', state="attached")
        assert tab.text_content(f'.slot[data-role="{role}"] .name') == name
    assert tab.locator("#go").is_enabled()


def test_files_are_still_there_after_a_reload(tab: Page, scene: dict[str, Path]) -> None:
    give(tab, scene)
    tab.reload()
    tab.wait_for_selector("body[data-ready]")
    assert tab.locator(".slot.filled").count() == 3
    tab.click("#forget")
    tab.wait_for_selector("#forget", state="hidden")
    tab.wait_for_selector("body[data-ready]")
    assert tab.locator(".slot.filled").count() == 0


def test_the_position_in_the_queue_is_shown(tab: Page, server: Studio) -> None:
    gate = threading.Event()

    server.worker.submit("somebody else", "wait", lambda job: gate.wait(PATIENCE / 1000))
    tab.click('[data-example="grid"]')
    tab.wait_for_selector("#progress-text:has-text('Waiting for 1 other job')")
    gate.set()
    finished(tab)


def test_waiting_work_can_be_cancelled(tab: Page, server: Studio) -> None:
    gate = threading.Event()
    server.worker.submit("somebody else", "wait", lambda job: gate.wait(PATIENCE / 1000))
    tab.click('[data-example="grid"]')
    tab.wait_for_selector("#progress-text:has-text('Waiting for 1 other job')")
    tab.click("#cancel")
    tab.wait_for_selector("#progress", state="hidden")
    gate.set()
    assert tab.locator("#result").is_hidden()
    assert tab.locator("#error").is_hidden()


def test_quick_changes_of_a_comparison_show_the_last_one(tab: Page, server: Studio) -> None:
    tab.click('[data-example="grid"]')
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


def test_the_way_back_to_the_examples(tab: Page) -> None:
    tab.click('[data-example="grid"]')
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
    tab.click('[data-example="grid"]')
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


def test_wording_on_a_touch_screen(chromium: Browser, server: Studio) -> None:
    with open_tab(chromium, server, viewport=PHONE, has_touch=True, is_mobile=True) as tab:
        assert "Drop" not in tab.inner_text("#scene .lead")
        tab.tap('[data-example="grid"]')
        finished(tab)
        assert "Tap to set" in tab.inner_text("#chart-profile figcaption")
        tab.tap('[data-view="points"]')
        tab.wait_for_selector("#cloud-colour")
        assert "shift" not in tab.inner_text("#tools")
        assert "two fingers" in tab.inner_text("#tools")


def test_a_mouse_is_told_about_shift(tab: Page) -> None:
    tab.click('[data-example="grid"]')
    finished(tab)
    tab.click('[data-view="points"]')
    tab.wait_for_selector("#cloud-colour")
    assert "shift-drag" in tab.inner_text("#tools")


def test_a_phone_needs_no_sideways_scrolling(tab: Page) -> None:
    tab.set_viewport_size(PHONE)  # type: ignore[arg-type]
    wide = "document.documentElement.scrollWidth"
    assert tab.evaluate(wide) <= PHONE["width"]
    tab.click('[data-example="grid"]')
    finished(tab)
    for view in ("measurements", "points", "compare"):
        tab.click(f'[data-view="{view}"]')
        tab.wait_for_load_state("networkidle")
        assert tab.evaluate(wide) <= PHONE["width"], view
    tab.wait_for_selector(".slide")
