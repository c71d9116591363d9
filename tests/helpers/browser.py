"""A real browser: the system's Chromium, which is installed if it has to be, driven by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

from tests.helpers import packages

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def _chromium() -> str:
    """Returns the path of one; skips the test where there can be none."""
    if not any(map(shutil.which, _NAMES)):
        packages.require(_NAMES[:1], _NAMES[:1])
    return next(path for path in map(shutil.which, _NAMES) if path is not None)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a window, for the length of a `with` block."""
    path = _chromium()
    with sync_playwright() as playwright:
        # Its sandbox needs rights that root in a container does not have; it opens nothing but our own page.
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
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
