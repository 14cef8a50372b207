"""The studio's page in a real browser: what a person does with it, from the first screen to the download."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import leadline
from leadline.apps.studio.jobs import Job
from leadline.apps.studio.server import Limits, Studio
from leadline.io.depth.files import read_depth, read_values
from support.browser import DESKTOP, PHONE, chromium
from support.studio_client import studio, write_scene

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["chromium"]

PATIENCE = 60_000  # milliseconds until a step counts as never done; no test is decided by less
DRIVER = "GL Driver Message"  # of drawing in 3D without a graphics card: about the machine, not the page


@pytest.fixture(scope="module")
def server() -> Iterator[Studio]:
    with studio(limits=Limits(upload=2**20)) as running:
        yield running


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture
def tab(chromium: Browser, server: Studio) -> Iterator[Page]:
    """The page, loaded; afterwards it must have been silent, and must have asked nobody but the server."""
    context = chromium.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: complaints.append(asked.url) if foreign(asked.url, server) else None)
    page.goto(server.url)
    page.wait_for_selector("body[data-ready]")
    yield page
    context.close()
    assert not [text for text in complaints if DRIVER not in text]


def foreign(url: str, server: Studio) -> bool:
    return not url.startswith((server.url, "blob:", "data:"))


def finished(page: Page) -> None:
    """Wait until a result is shown with its curves, and nothing is under way."""
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
    """Address of the picture that is shown, which must have arrived."""
    page.locator("#frame img").first.evaluate("image => image.decode()")
    return page.get_attribute("#frame img", "src") or ""


def test_first_screen(tab: Page) -> None:
    assert tab.locator(".example").count() == 3
    assert tab.locator("#go").is_disabled()
    assert "a picture, measurements, a prior" in tab.inner_text("#needs")
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
    assert "at the measurements (fit:" in tab.inner_text("#exponent-say")
    tab.click('[data-view="change"]')
    tab.wait_for_load_state("networkidle")
    assert "/change?" in picture(tab)
    tab.click("#refit")
    tab.wait_for_selector('[data-view="change"]', state="detached")
    tab.wait_for_load_state("networkidle")
    assert tab.inner_text("#exponent-value") == fitted
    assert picture(tab) == before

    tab.click('[data-view="compare"]')
    tab.wait_for_selector(".slide")
    tab.wait_for_load_state("networkidle")
    labels = tab.locator(".frame .tag").all_inner_texts()
    errors = [float(re.search(r"([\d.]+) %", label)[1]) for label in labels]  # type: ignore[index]
    assert labels[0].startswith("gdisp")
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
    tab.select_option("#cloud-colour", label="picture")
    assert shown(tab, "#points") == first


def test_own_files_to_the_same_bytes(tab: Page, scene: dict[str, Path]) -> None:
    give(tab, scene)
    guess = tab.inner_text("#unit-say")
    assert guess.startswith("Guessed: mm")
    assert "guess" in (tab.get_attribute("#unit-say", "class") or "")
    tab.select_option("#unit", "mm")
    tab.wait_for_selector("#unit-say:not(.guess)")
    tab.select_option("#prior-kind", "disparity")
    tab.click("#go")
    finished(tab)
    result = leadline.complete(
        leadline.Prior(read_values(scene["prior"]), kind="disparity"),
        read_depth(scene["sparse"], "mm").values,
        options=leadline.CompletionOptions.best(),
    )
    name, path = download(tab, "Depth, metres")
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
    assert "Nothing is painted" in tab.inner_text("#trouble")
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


def test_wrong_files_say_why(tab: Page, scene: dict[str, Path], tmp_path: Path) -> None:
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
    tab.wait_for_selector("#trouble:not([hidden])")
    assert "leave --weight-data out" in tab.inner_text("#trouble")
    tab.fill("#option-weight_data", "")
    tab.select_option("#prior-kind", "disparity")
    tab.click("#go")
    finished(tab)
    assert tab.locator("#trouble").is_hidden()


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


def test_waiting_is_told(tab: Page, server: Studio) -> None:
    gate = threading.Event()

    def wait(job: Job) -> dict[str, Any]:
        assert gate.wait(PATIENCE / 1000)
        return {}

    server.worker.submit("somebody else", "wait", wait)
    tab.click('[data-example="grid"]')
    tab.wait_for_selector("#progress-text:has-text('Waiting: 1 before you')")
    gate.set()
    finished(tab)


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
