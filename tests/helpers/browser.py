"""A real browser: the system's Chromium, driven by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)")


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a window, for the length of a `with` block."""
    with sync_playwright() as playwright:
        # Its sandbox needs rights that root in a container does not have; it opens nothing but our own page.
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield running
        finally:
            running.close()


@contextmanager
def opened(running: Browser, link: str, *, dark: bool = False, width: int = 1400) -> Iterator[Page]:
    """A page; whatever it complains of (scripts, the content security policy) fails the test."""
    scheme = "dark" if dark else "light"
    context = running.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page, complaints = context.new_page(), list[str]()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
    page.goto(link)
    page.wait_for_url(lambda url: "code=" not in url)
    try:
        yield page
        assert not complaints, complaints
    finally:
        context.close()
