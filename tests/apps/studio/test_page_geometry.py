"""The studio's page in a real browser: regions of outliers, the 3D view, values under the pointer, comparisons."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from leadline.apps.studio.server import Studio
from support.browser import PHONE, chromium
from support.studio_page import PATIENCE, download, finished, open_tab, server, shown, tab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["chromium", "server", "tab"]


def open_example(page: Page, name: str, view: str) -> None:
    page.click(f'[data-example="{name}"]')
    finished(page)
    page.click(f'[data-view="{view}"]')
    page.wait_for_selector("#viewer:not(.loading)")


def point(page: Page, column: float, row: float, *, click: bool = False) -> None:
    """Move the pointer to a place of the picture, in shares of its sides."""
    box = page.locator("#frame .stack").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + column * box["width"], box["y"] + row * box["height"])
    if click:
        page.mouse.down()
        page.mouse.up()


def test_a_region_is_taken_back_by_a_click(tab: Page) -> None:
    open_example(tab, "glass", "regions")
    boxes = tab.locator("[data-region]")
    assert boxes.count() == 2
    assert tab.locator("#keep-regions").is_disabled()
    before = shown(tab, "#frame")
    point(tab, 0.6, 0.5, click=True)  # the jar
    assert [boxes.nth(k).is_checked() for k in range(2)] == [False, True]
    assert shown(tab, "#frame") != before
    point(tab, 0.95, 0.1, click=True)  # the wall
    tab.click("#keep-regions")
    tab.wait_for_selector("#notes li:has-text('Region kept by hand')")
    finished(tab)
    assert boxes.nth(1).is_checked()
    assert tab.locator("#keep-regions").is_disabled()
    boxes.nth(1).uncheck()
    tab.click("#keep-regions")
    tab.wait_for_selector("#notes li:has-text('Region kept by hand')", state="detached")
    finished(tab)
    tab.click('[data-view="depth"]')
    tab.wait_for_selector("#viewer:not(.loading)")
    tab.click("#to-examples")
    tab.click('[data-example="hole"]')  # the option of the other example is set back
    finished(tab)
    assert tab.locator('[data-view="regions"]').count() == 0
    assert tab.input_value("#option-outliers") == ""


def test_the_depth_under_the_pointer(tab: Page) -> None:
    tab.check("#uncertainty")
    open_example(tab, "hole", "depth")
    point(tab, 0.5, 0.5)
    tab.wait_for_selector("#readout:has-text('column 240, row 180')")
    text = tab.inner_text("#readout")
    found = re.search(r": ([\d.]+) m ± ([\d.]+) m, ground truth ([\d.]+) m", text)
    assert found is not None, text
    depth, sigma, truth = map(float, found.groups())
    assert abs(depth / truth - 1) < 0.1
    assert 0 < sigma < depth
    tab.mouse.move(5, 5)
    assert tab.inner_text("#readout") == ""
    tab.click('[data-view="compare"]')
    tab.wait_for_selector(".slide")
    tab.wait_for_selector("#viewer:not(.loading)")
    point(tab, 0.5, 0.4)
    tab.wait_for_selector("#readout:has-text('gdisp:')")
    assert "leadline (best):" in tab.inner_text("#readout")


def test_the_parts_of_the_3d_view(tab: Page) -> None:
    open_example(tab, "glass", "points")
    assert tab.is_checked("#cloud-camera")
    assert not tab.is_checked("#cloud-edges")  # flying pixels are hidden
    assert tab.inner_text("#legend") == ""  # the colours are those of the image
    views = [shown(tab, "#points")]
    for change in ("measurements", "edges", "camera"):
        tab.click(f"#cloud-{change}")
        views.append(shown(tab, "#points"))
    assert "measured, left out" in tab.inner_text("#legend")
    tab.focus("#cloud-size")
    for _ in range(8):
        tab.keyboard.press("ArrowRight")
    views.append(shown(tab, "#points"))
    tab.select_option("#cloud-colour", label="depth")
    assert tab.locator("#legend .scale span").count() >= 3
    assert tab.inner_text("#legend .scale span:last-child").endswith(" m")
    views.append(shown(tab, "#points"))
    assert len(set(views)) == len(views)
    name, path = download(tab, "Mesh")
    assert name == "glass_mesh.glb"
    assert path.read_bytes()[:4] == b"glTF"


def test_a_cancelled_comparison_returns_to_the_one_that_is_shown(tab: Page, server: Studio) -> None:
    open_example(tab, "hole", "compare")
    tab.wait_for_selector(".slide")
    gate = threading.Event()
    server.worker.submit("somebody else", "wait", lambda job: gate.wait(PATIENCE / 1000))
    tab.select_option("#pair-left", "knn")
    tab.wait_for_selector("#progress-text:has-text('Waiting for 1 other job')")
    assert tab.locator(".frame .tag").first.inner_text().startswith("gdisp")
    tab.click("#cancel")
    tab.wait_for_selector("#viewer:not(.loading)")
    gate.set()
    assert tab.input_value("#pair-left") == "gdisp"
    assert tab.locator(".frame .tag").first.inner_text().startswith("gdisp")


def test_regions_on_a_touch_screen(chromium: Browser, server: Studio) -> None:
    with open_tab(chromium, server, viewport=PHONE, has_touch=True, is_mobile=True) as tab:
        tab.tap('[data-example="glass"]')
        finished(tab)
        tab.tap('[data-view="regions"]')
        tab.wait_for_selector("#keep-regions")
        assert "Tap one" in tab.inner_text("#tools")
        box = tab.locator("#frame .stack").bounding_box()
        assert box is not None
        tab.touchscreen.tap(box["x"] + 0.6 * box["width"], box["y"] + 0.5 * box["height"])
        tab.wait_for_selector("#keep-regions:enabled")
        tab.wait_for_selector("#readout:has-text('column')")
        assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
