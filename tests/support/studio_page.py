"""The studio's page in a browser: a tab that must not complain, and the steps that its tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leadline.apps.studio.server import Limits, Studio
from leadline.core.compilation import warm_up
from support.browser import DESKTOP
from support.studio_client import studio

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

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


def wait_until_relative(page: Page) -> None:
    """Wait until a relative depth is shown, and no job is running."""
    page.wait_for_selector('[data-view="relative"]')
    page.wait_for_selector("#viewer:not(.loading)")
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
