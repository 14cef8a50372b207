"""The studio's page in a real browser, from the first screen to the download."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import leadline
from leadline.io.depth import read_depth, read_values
from support.browser import chromium
from support.studio_page import download, finished, give, picture, server, shown, tab

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["chromium", "server", "tab"]


def test_first_screen(tab: Page) -> None:
    assert tab.locator(".example").count() == 3
    assert tab.locator("#go").is_disabled()
    assert "an image, a prior" in tab.inner_text("#needs")
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
    tab.click('[data-example="hole"]')
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
    assert "is not a picture" in tab.inner_text('.slot[data-role="image"]')
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
