"""A real Chromium for the tests of pages: import the fixture `chromium`, and `quiet_page` for the fixture `page`.

Without Chromium these tests are skipped with a reason. On a build server (``CI`` is set) they fail instead, because a
skip would hide that nothing was tested.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARGUMENTS = (
    "--headless",
    "--no-sandbox",  # containers run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # The browser itself must send no requests: the tests count those of the page.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def executable() -> str | None:
    """Path of the browser: ``LEADLINE_CHROMIUM``, or the first of the usual names on the path."""
    named = os.environ.get("LEADLINE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _absent(what: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{what}; a build server must test the pages.")
    pytest.skip(f"{what}; the page is not tested.")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for the tests of a file."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _absent("playwright is not installed")
    path = executable()
    if path is None:
        _absent("there is no chromium on the path and LEADLINE_CHROMIUM is not set")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(name="page")
def quiet_page(chromium: Browser) -> Iterator[Page]:
    """A new tab of desktop size, without cookies or cache.

    A warning or error in its console, or an uncaught error of its script, fails the test.
    """
    context = chromium.new_context(viewport=DESKTOP)
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda entry: complaints.append(entry.text) if entry.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        yield tab
    finally:
        context.close()
    assert not complaints, complaints
