"""The pool's page in a real browser: of a real pool, and of one that seems to have a thousand jobs."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from fdt.v1 import job_pb2
from tests.helpers.browser import browser, opened
from tests.helpers.shown_pool import ShownPool, serve
from tests.helpers.thorough import some_of
from tests.helpers.toy_engine import ROOT
from tests.integration.test_pool import Pool

LIMIT_MS = 30_000
NUM_JOBS = 1000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=LIMIT_MS)
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        pool = Pool(page="127.0.0.1:0")
        yield pool
        pool.close()


def test_a_job_is_watched_and_cancelled(chromium: Browser, pool: Pool) -> None:
    stream = pool.train()
    pool.prepare(stream, "MatMul")
    with opened(chromium, pool.server.link) as page:
        page.get_by_role("link", name="job-1").click()
        expect(page.locator("#detail-heading")).to_have_text("job-1")
        expect(page.locator("#about")).to_contain_text("toy.py")
        for number in range(3):
            stream.run([[number]])
            stream.drain(job_pb2.Drain.WHAT_ALL)
            stream.show(loss=1.0 / (1 + number))
            # A point is kept of each half second.
            page.wait_for_timeout(500)
        expect(page.locator("#plot-shown canvas")).to_be_visible()
        expect(page.locator("#plot-shown")).to_have_attribute("aria-label", "loss from 1 to 0.3333")
        expect(page.locator("#plot-time canvas")).to_be_visible()
        expect(page.locator("#accounts tbody tr")).to_have_count(2)
        expect(page.locator("#bottleneck")).to_contain_text("Computation: 75 % of the workers' time.")
        row = page.locator("#jobs tbody tr").filter(has_text="job-1")
        expect(row).to_contain_text("running")
        expect(row.locator("td").nth(4)).to_have_text("3")
        page.locator("#log summary").click()
        expect(page.locator("#log-text")).to_contain_text("fdt worker: rank 0 of job job-1")
        page.get_by_role("button", name="Cancel job").click()
        page.get_by_role("button", name="Let it run").click()
        expect(row).to_contain_text("running")
        page.get_by_role("button", name="Cancel job").click()
        page.get_by_role("button", name="Cancel the job").click()
        expect(row).to_contain_text("cancelled")
        expect(page.locator("#detail-state")).to_have_text("cancelled")
        expect(page.get_by_role("button", name="Cancel job")).to_be_hidden()
    stream.wait_end()
    assert stream.wait("failed").failed.error == "JobCancelledError"


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[tuple[ShownPool, str]]:
    log = tmp_path / "log"
    log.write_text("<b>not bold</b>\n")
    pool = ShownPool(NUM_JOBS)
    server = serve(pool, log)
    yield pool, server.link()
    server.close()


@pytest.mark.parametrize("dark", some_of([False, True], [True]))
def test_a_thousand_jobs(chromium: Browser, shown: tuple[ShownPool, str], dark: bool) -> None:
    pool, link = shown
    with opened(chromium, link, dark=dark) as page:
        rows = page.locator("#jobs tbody tr")
        expect(rows).to_have_count(NUM_JOBS)
        # Those that run come first, then the queue in its order, then the newest that have ended.
        names = page.locator("#jobs tbody a")
        first = [names.nth(number).inner_text() for number in range(7)]
        assert first == ["job-1000", "job-999", "job-998", "job-996", "job-997", "job-995", "job-994"]
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (np.mean([int(part) for part in ground[4:-1].split(",")]) < 64) == dark
        # With the keyboard alone: to the jobs, into one, and back to where one was.
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="To the jobs")).to_be_focused()
        names.nth(1).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#detail-heading")).to_be_focused()
        expect(page.locator("#plot-shown")).to_have_attribute("role", "img")
        expect(page.locator("#faults li")).to_have_count(1)
        page.keyboard.press("Escape")
        expect(page.locator("#detail")).to_be_hidden()
        expect(names.nth(1)).to_be_focused()
        page.get_by_role("button", name="Queued").click()
        expect(rows).to_have_count(2)
        page.get_by_role("button", name="All").click()
        page.get_by_role("searchbox").fill("job-77")
        expect(rows).to_have_count(11)
        page.get_by_role("searchbox").fill("anna")
        expect(rows).to_have_count(NUM_JOBS // 100)
        expect(rows.first.locator("td").nth(7)).to_have_text("anna")
        # The pool has another one, and this page hears of it alone.
        page.get_by_role("searchbox").fill("")
        pool.num_jobs += 1
        expect(rows).to_have_count(NUM_JOBS + 1)
        expect(names.nth(0)).to_have_text("job-1001")


def test_a_link_serves_once(chromium: Browser, shown: tuple[ShownPool, str]) -> None:
    _, link = shown
    with opened(chromium, link) as page:
        expect(page.locator("#connection")).to_have_text("live")
        other = chromium.new_context().new_page()
        other.goto(link)
        expect(other.locator("h1")).to_have_text("This browser is not let in")
        assert "job-" not in other.content()
