"""Every door of the pool's page, what goes through it, and that nothing of it is written anywhere."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fdt.errors import ProtocolError, UsageError
from fdt.pool import view
from fdt.pool.observations import JobCurves
from fdt.pool.page.app import PoolActions, application, end_of
from fdt.pool.page.auth import CODE_S, COOKIE_S, MAX_CODES, BrowserCodes, is_own_host
from fdt.pool.page.feed import MAX_STREAMS, Feed
from fdt.pool.page.gate import Gate
from fdt.pool.page.server import PageServer
from fdt.pool.snapshot import HostSnapshot, JobSnapshot, Snapshot

ORIGIN = "http://127.0.0.1:8080"
STATIC = Path(view.__file__).parent / "page" / "static"


def job(number: int, state: str = "running", steps: int = 0) -> JobSnapshot:
    return JobSnapshot(f"job-{number}", "sync", state, steps, (), script=f"train_{number}.py", num_workers=2)


class Browser:
    """Sends requests, keeps cookies, and follows nothing by itself."""

    def __init__(self, app: Gate) -> None:
        self._app, self._cookies = app, httpx.Cookies()

    def get(self, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._send("GET", path, **options))

    def post(self, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._send("POST", path, **options))

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, cookies=self._cookies) as client:
            answer = await client.request(method, path, **options)
            self._cookies = client.cookies
            return answer


class Page:
    """A page of a pool that is a list."""

    def __init__(self, logs: list[Path]) -> None:
        self.cancelled: list[str] = []
        self.now_s = 0.0
        self.jobs = [job(1), job(2, "queued")]
        self.codes = BrowserCodes(lambda: self.now_s)
        self.actions = PoolActions(self._cancel, lambda name: logs if self._known(name) else [])
        self.app = Gate(application(self.feed(), self.actions), self.codes, "fdt-8080")

    def feed(self) -> Feed:
        return Feed(lambda: Snapshot(list(self.jobs), [], [HostSnapshot("", 4, 2, 8)]), lambda _: JobCurves(), 0.0)

    def client(self, *, let_in: bool = False) -> Browser:
        client = Browser(self.app)
        if let_in:
            assert client.get(f"/?code={self.codes.code()}").status_code == 200
        return client

    def _known(self, name: str) -> bool:
        if name not in [job.name for job in self.jobs]:
            raise ProtocolError("no such job")
        return True

    def _cancel(self, name: str) -> str:
        self._known(name)
        self.cancelled.append(name)
        return "cancelled"


@pytest.fixture
def page(tmp_path: Path) -> Page:
    log = tmp_path / "w-1.log"
    log.write_bytes(b"begin\n" + b"\x1b[31mred\x1b[0m \x1b]0;title\x07 <script>\n")
    return Page([log])


# ---- doors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/events", "/jobs/job-1/report", "/jobs/job-1/log/0", "/static/page.js", "/none"]
)
def test_without_a_cookie_nothing_is_told(page: Page, path: str) -> None:
    for cookie in ("", "fdt-8080=", "fdt-8080=guessed", "fdt-8080", ";;=", 'fdt-8080="\\', "other=1"):
        answer = page.client().get(path, headers={"Cookie": cookie})
        assert answer.status_code == 403 and "job-1" not in answer.text and "FDT pool</h1>" not in answer.text


def test_a_code_lets_one_browser_in_and_serves_once(page: Page) -> None:
    code = page.codes.code()
    client = page.client()
    entered = client.get(f"/?code={code}")
    assert entered.status_code == 200 and code not in entered.text
    cookie = entered.headers["set-cookie"]
    assert cookie.startswith("fdt-8080=") and code not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert client.get("/").status_code == 200
    # Again, by the same and by another browser.
    for other in (client, page.client()):
        again = other.get(f"/?code={code}")
        assert again.status_code == 403 and "set-cookie" not in again.headers and "fdt page" in again.text
    assert page.client().get("/").status_code == 403


def test_codes_and_cookies_grow_old_and_are_bounded(page: Page) -> None:
    old = page.codes.code()
    page.now_s = CODE_S + 1
    assert page.client().get(f"/?code={old}").status_code == 403
    first = page.codes.code()
    codes = [page.codes.code() for _ in range(MAX_CODES)]
    assert page.client().get(f"/?code={first}").status_code == 403
    client = page.client()
    assert client.get(f"/?code={codes[-1]}").status_code == 200 and client.get("/").status_code == 200
    page.now_s += COOKIE_S + 1
    assert client.get("/").status_code == 403


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1:8080", True), ("localhost", True), ("LOCALHOST:1", True), ("[::1]:8080", True), ("[::1]", True),
        ("evil.example:8080", False), ("127.0.0.1.evil.example", False), ("localhost.evil.example:8080", False), ("", False),
        ("127.0.0.1:8080@evil.example", False), ("0.0.0.0:8080", False), ("127.0.0.1:80 evil", False), ("[::2]:80", False),
    ],
)  # fmt: skip
def test_names_that_are_not_loopbacks_are_refused(page: Page, host: str, is_own: bool) -> None:
    assert is_own_host(host) == is_own
    code = page.codes.code()
    answer = page.client().get(f"/?code={code}", headers={"Host": host})
    assert answer.status_code == (200 if is_own else 403)
    # A code that came under a wrong name was not looked at.
    assert page.client().get(f"/?code={code}").status_code == (403 if is_own else 200)


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "",
        "http://evil.example",
        "https://127.0.0.1:8080",
        "http://127.0.0.1:9090",
        "http://localhost:8080",
    ],
)
def test_only_the_page_itself_cancels(page: Page, origin: str | None) -> None:
    client = page.client(let_in=True)
    headers = {} if origin is None else {"Origin": origin}
    assert client.post("/jobs/job-1/cancel", headers=headers).status_code == 403
    assert page.cancelled == []
    # Without a cookie the right origin does not help.
    assert page.client().post("/jobs/job-1/cancel", headers={"Origin": ORIGIN}).status_code == 403
    assert page.cancelled == []


def test_cancel(page: Page) -> None:
    client = page.client(let_in=True)
    answer = client.post("/jobs/job-1/cancel", headers={"Origin": ORIGIN})
    assert (answer.status_code, answer.json(), page.cancelled) == (200, {"state": "cancelled"}, ["job-1"])
    assert client.post("/jobs/job-9/cancel", headers={"Origin": ORIGIN}).status_code == 404
    # Nothing that a link or an image could do changes anything.
    assert client.get("/jobs/job-1/cancel").status_code == 405
    assert page.cancelled == ["job-1"]


def test_headers_on_whatever_is_answered(page: Page) -> None:
    inside, outside = page.client(let_in=True), page.client()
    for client in (inside, outside):
        for path in ("/", "/static/page.js", "/jobs/job-1/report", "/jobs/x/log/0", "/none", "/static/../app.py"):
            headers = client.get(path).headers
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["referrer-policy"] == "no-referrer" and headers["x-content-type-options"] == "nosniff"
            assert "cache-control" in headers


def test_files_of_the_page_alone_are_served_and_they_keep_the_policy(page: Page) -> None:
    client = page.client(let_in=True)
    text = client.get("/").text
    for address in re.findall(r'(?:src|href)="([^"#]+)"', text):
        assert address.startswith("/static/") and client.get(address).status_code == 200, address
    # Nothing inline, which the policy would refuse, and nothing from elsewhere.
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=|https?:", text)
    for path in ("/static/../app.py", "/static/%2e%2e/auth.py", "/static//etc/passwd"):
        assert client.get(path).status_code == 404
    assert "MIT License" in (STATIC / "uPlot.LICENSE").read_text()
    assert not re.search(r"\beval\(|new Function", "".join(file.read_text() for file in STATIC.glob("*.js")))


# ---- what is told ---------------------------------------------------------------------------------------------------


def test_report_and_log(page: Page) -> None:
    client = page.client(let_in=True)
    report = client.get("/jobs/job-1/report")
    assert report.json()["name"] == "job-1" and "attachment" in report.headers["content-disposition"]
    log = client.get("/jobs/job-1/log/0")
    assert log.headers["content-type"].startswith("text/plain")
    assert log.text == "begin\nred \\x1b]0;title\\x07 <script>\n"
    for path in ("/jobs/job-1/log/1", "/jobs/job-9/log/0", "/jobs/job-9/report", "/jobs/job-1/log/x"):
        assert client.get(path).status_code == 404


def test_the_end_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x" * 100 + "the end")
    assert end_of(log, 7) == "(100 bytes before this are left out; `fdt logs` prints all)\nthe end"
    assert "not kept" in end_of(tmp_path / "none")


def read(piece: bytes) -> tuple[str, Any]:
    match = re.fullmatch(rb"event: (\w+)\ndata: ([^\n]*)\n\n", piece)
    assert match, piece
    return match[1].decode(), json.loads(match[2])


def test_a_stream_tells_everything_and_then_what_is_new(page: Page) -> None:
    async def listen() -> None:
        feed = page.feed()
        stream = feed.events("job-1")
        kind, first = read(await anext(stream))
        assert kind == "pool" and [row["name"] for row in first["jobs"]["rows"]] == ["job-1", "job-2"]
        kind, shown = read(await anext(stream))
        assert kind == "job" and shown["name"] == "job-1" and shown["bottleneck"].startswith("Not known yet")
        # A browser that was slow: two changes have come together.
        page.jobs[0] = job(1, steps=5)
        page.jobs[0] = job(1, steps=9)
        page.jobs[1:] = [job(3)]
        kind, then = read(await anext(stream))
        assert kind == "pool" and "hosts" not in then
        assert [(row["name"], row["steps"]) for row in then["jobs"]["rows"]] == [("job-1", 9), ("job-3", 0)]
        assert then["jobs"]["gone"] == ["job-2"]
        assert read(await anext(stream))[1]["steps"] == 9
        # A job that the pool has forgotten.
        del page.jobs[0]
        assert read(await anext(stream))[1]["jobs"]["gone"] == ["job-1"]
        assert read(await anext(stream)) == ("job", None)
        # Nothing is new: a line that is only for noticing a browser that has gone.
        assert (await anext(stream)).startswith(b":")
        assert feed.num_streams == 1
        await stream.aclose()
        assert feed.num_streams == 0

    asyncio.run(asyncio.wait_for(listen(), 60))


def test_many_streams_take_one_picture(page: Page) -> None:
    taken = []

    def snapshot() -> Snapshot:
        taken.append(1)
        return Snapshot([job(n) for n in range(1000)], [])

    async def listen() -> None:
        feed = Feed(snapshot, lambda _: JobCurves(), look_s=60.0)
        streams = [feed.events("") for _ in range(MAX_STREAMS)]
        pieces = await asyncio.gather(*(anext(stream) for stream in streams))
        assert len(set(pieces)) == 1 and len(read(pieces[0])[1]["jobs"]["rows"]) == 1000
        assert len(taken) == 1
        for stream in streams:
            await stream.aclose()

    asyncio.run(asyncio.wait_for(listen(), 60))


# ---- the port -------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(page: Page) -> Iterator[PageServer]:
    server = PageServer("127.0.0.1:0", page.feed(), page.actions)
    yield server
    server.close()


def test_no_code_is_written_anywhere(server: PageServer, capfd: pytest.CaptureFixture[str], caplog: Any) -> None:
    link = server.link()
    code = link.partition("code=")[2]
    assert len(code) >= 32 and code != server.link().partition("code=")[2]
    with httpx.Client() as client:
        assert client.get(link).status_code == 200 and client.get(link).status_code == 403
        assert client.get(f"http://{server.address}/").status_code == 200
        assert client.get(f"http://{server.address}/?code={code}", headers={"Host": "evil.example"}).status_code == 403
    server.close()
    written = capfd.readouterr()
    assert code not in written.out + written.err + caplog.text


def test_a_pool_that_ends_does_not_wait_for_its_pages(server: PageServer, capfd: pytest.CaptureFixture[str]) -> None:
    with httpx.Client() as client:
        client.get(server.link())
        with client.stream("GET", f"http://{server.address}/events?job=job-1") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            assert next(lines) == "event: pool"
            server.close()
            # The stream ends by itself, and not by a broken connection.
            assert "event: job" in list(lines)
        with pytest.raises(httpx.ConnectError):
            client.get(f"http://{server.address}/")
    assert capfd.readouterr().err == ""


def test_a_port_in_use(server: PageServer, page: Page) -> None:
    with pytest.raises(UsageError, match=r"cannot show the pool's page at 127\.0\.0\.1:\d+: Address already in use"):
        PageServer(server.address, page.feed(), page.actions)
