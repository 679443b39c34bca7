"""A browser, and pages in it whose every mistake fails the test that made them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.demo_images.checkpoint import written
from tests.support.real_server import RealServer
from tests.support.stand_in import StandIn

if TYPE_CHECKING:  # this file is read where the browser's driver is not installed, too
    from playwright.sync_api import Browser, Page

# Pages that are opened by root, as in containers, get no sandbox of the browser's own.
ARGUMENTS = ["--no-sandbox"] if os.geteuid() == 0 else []
NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
"""
Open = Callable[..., "Page"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "install Chromium (on Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


@pytest.fixture(scope="session")
def real() -> Iterator[RealServer]:
    with RealServer("--tp", "2", "--threads-per-worker", "1", "--kv-cache-gib", "0.25") as server:
        yield server


@pytest.fixture(scope="session")
def seeing() -> Iterator[RealServer]:
    """A server that takes three images of at most 0.01 MiB each, and reads squares of colours."""
    options = ("--tp", "1", "--kv-cache-gib", "0.25", "--max-images", "3", "--max-image-file-mib", "0.01")
    with RealServer(*options, model=str(written())) as server:
        yield server


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens the page of a server. What breaks its policy, fails in it, or is asked of anybody else is told at the end,
    unless the test clears `page.mistakes` of it; so is a value of the program's that was shown in place of a figure."""
    pages: list[Page] = []

    def open_page(url: str, **more: Any) -> Page:
        page = browser.new_context(**{"viewport": {"width": 1280, "height": 860}} | more).new_page()
        page.add_init_script(NOTE_VIOLATIONS)
        page.mistakes = []  # type: ignore[attr-defined]
        page.on("pageerror", lambda error: page.mistakes.append(str(error)))  # type: ignore[attr-defined]
        page.on("request", lambda request: _note_foreign(page, request.url, url))
        page.goto(f"{url}/ui")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        assert page.evaluate("violations") == []
        assert page.mistakes == []  # type: ignore[attr-defined]
        assert not {"NaN", "undefined", "null", "[object"} & set(page.inner_text("body").split())
        page.context.close()


def _note_foreign(page: Page, asked: str, own: str) -> None:
    if not asked.removeprefix("blob:").startswith(own):  # such a URL names what the page itself holds
        page.mistakes.append(f"asked for {asked}")  # type: ignore[attr-defined]
