"""The pictures of studio.md and report.md: leadline studio and a report, in a headless Chromium.

    python docs/make_studio_pictures.py [FOLDER]

It needs playwright, and chromium on the path or in LEADLINE_CHROMIUM. FOLDER is docs/images by default.
``make pictures`` runs this script and the others beside it.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from picture_files import output_folder, run_command, working_folder
from PIL import Image

from leadline.apps.studio.server import Studio
from leadline.priors.predictor import Predictor

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
GAP = 20  # pixels between two screens in one picture
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}


def open_page(browser: Browser, url: str, example: str | None, **settings: object) -> Page:
    page = browser.new_context(**settings).new_page()  # type: ignore[arg-type]
    page.set_default_timeout(120_000)
    page.goto(url)
    page.wait_for_selector("body[data-ready]")
    page.wait_for_load_state("networkidle")
    if example is not None:
        page.click(f'[data-example="{example}"]')
        page.wait_for_selector("#chart-gain svg", state="visible")
        wait_until_idle(page)
    return page


def wait_until_idle(page: Page) -> None:
    page.wait_for_selector("#progress", state="hidden")
    page.wait_for_selector("#viewer:not(.loading)")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)  # the frame fades in


def open_view(page: Page, name: str) -> None:
    page.click(f'[data-view="{name}"]')
    wait_until_idle(page)


def save(folder: Path, name: str, page: Page, part: str | None = None) -> None:
    """Save the visible part of the page, or one element of it."""
    content = page.screenshot() if part is None else page.locator(part).screenshot()
    Image.open(BytesIO(content)).convert("RGB").save(folder / f"{name}.png", optimize=True)


def make_pictures(browser: Browser, url: str, folder: Path) -> None:
    save(folder, "studio-first", open_page(browser, url, None, viewport=DESKTOP))
    page = open_page(browser, url, "lidar", viewport=DESKTOP)
    open_view(page, "points")
    page.check("#cloud-measurements")
    save(folder, "studio-points-desktop", page)
    page = open_page(browser, url, "glass", viewport=DESKTOP)
    open_view(page, "regions")
    box = page.locator("#frame .stack").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 0.6 * box["width"], box["y"] + 0.5 * box["height"])  # the jar
    page.wait_for_selector("#readout:has-text('column')")
    save(folder, "studio-regions", page)
    page = open_page(browser, url, "hole", viewport=DESKTOP)
    open_view(page, "compare")
    page.select_option("#pair-what", "error")
    page.wait_for_selector('#frame img[src*="error-"]')
    wait_until_idle(page)
    save(folder, "studio-compare", page)
    page.focus("#exponent")
    for _ in range(60):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector('[data-view="change"]')
    wait_until_idle(page)
    save(folder, "studio-exponent", page, "#exponent-card")
    phone = open_page(browser, url, "lidar", viewport=PHONE, has_touch=True, is_mobile=True)
    open_view(phone, "points")
    save(folder, "studio-points-phone", phone)


def make_report_pictures(browser: Browser, folder: Path) -> None:
    """The report of a small run: its upper part, the pictures of one image, and three screens of a phone."""
    with working_folder():
        report = Path("report.html").resolve()
        run_command("bench run smoke -o RUN")
        run_command("bench report RUN --html report.html")
        page = browser.new_context(viewport={"width": 1280, "height": 1330}).new_page()
        page.goto(report.as_uri())
        page.wait_for_selector("#scores table")
        save(folder, "report-desktop", page)
        page.set_viewport_size(DESKTOP)
        show_images(page)
        save(folder, "report-images", page)
        context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True, color_scheme="dark")
        phone = context.new_page()
        phone.goto(report.as_uri())
        phone.wait_for_selector("#scores table")
        screens = [phone.screenshot()]
        show_images(phone)
        screens.append(phone.screenshot())
        phone.locator("#gallery .card").first.locator(".tiles > *").nth(5).click()  # its relative error
        phone.wait_for_selector("#zoom-image")
        phone.wait_for_timeout(500)
        screens.append(phone.screenshot())
        context.close()
    pictures = [Image.open(BytesIO(content)).convert("RGB") for content in screens]
    width, height = pictures[0].size
    strip = Image.new("RGB", (len(pictures) * (width + GAP) - GAP, height), "white")
    for place, picture in enumerate(pictures):
        strip.paste(picture, (place * (width + GAP), 0))
    strip.save(folder / "report-phone.png", optimize=True)


def show_images(page: Page) -> None:
    """Scroll to the best and worst images, and wait until their pictures are there."""
    page.evaluate("document.getElementById('images').scrollIntoView()")
    page.wait_for_selector("#gallery .card img")
    page.wait_for_timeout(500)


def main() -> None:
    from playwright.sync_api import sync_playwright

    folder = output_folder(sys.argv[1:])
    chromium = os.environ.get("LEADLINE_CHROMIUM") or shutil.which("chromium")
    studio = Studio("127.0.0.1", 0, {"none": Predictor("none")})
    thread = threading.Thread(target=studio.serve)
    thread.start()
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
            make_pictures(browser, studio.url, folder)
            make_report_pictures(browser, folder)
            browser.close()
    finally:
        studio.stop()
        thread.join()
        studio.close()


if __name__ == "__main__":
    main()
