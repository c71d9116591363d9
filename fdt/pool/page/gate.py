"""Checks every request to the page (host, origin, cookie) before the page's application answers it."""

from http.cookies import CookieError, SimpleCookie
from importlib import resources
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdt.pool.page.auth import COOKIE_S, BrowserCodes, is_own_host, is_own_origin

_READS = ("GET", "HEAD")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The first request's URL contains the code.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_WRONG_HOST = (
    "This page answers to 127.0.0.1, localhost and [::1] alone. Received: another name in the Host header. From elsewhere, "
    "forward a port of your machine: ssh -L 8080:127.0.0.1:8080 MACHINE.\n"
)
_WRONG_ORIGIN = "Only the page itself may do this: expected an Origin header that names it.\n"


class Gate:
    """An ASGI application that passes only the requests of authorised browsers to another one."""

    def __init__(self, app: ASGIApp, codes: BrowserCodes, cookie: str) -> None:
        """Wraps an application.

        Args:
            app: Gets the requests of authorised browsers.
            codes: Issues and checks codes and cookies.
            cookie: The name of the page's cookie, with the port in it, since browsers share cookies between ports.
        """
        self._app, self._codes, self._cookie = app, codes, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or passes it on."""
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._answer(scope)
        await (self._app if answer is None else answer)(scope, receive, guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """Returns the answer to a browser that is refused or redeems its code; None to pass the request on."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not is_own_host(host):
            return PlainTextResponse(_WRONG_HOST, 403)
        if scope["method"] not in _READS and not is_own_origin(headers.get("origin"), host):
            return PlainTextResponse(_WRONG_ORIGIN, 403)
        code = parse_qs(scope["query_string"].decode("latin-1")).get("code")
        if scope["path"] == "/" and code:
            return self._enter(code[0])
        if not self._codes.knows(self._given(headers)):
            return _page("closed.html", 403) if scope["path"] == "/" else PlainTextResponse("Not authorised.\n", 403)
        return None

    def _enter(self, code: str) -> Response:
        """Gives a browser its cookie, and a page that makes the next request, so that the `Strict` cookie is sent with it."""
        cookie = self._codes.enter(code)
        if cookie is None:
            return _page("closed.html", 403)
        answer = _page("entered.html", 200)
        answer.set_cookie(self._cookie, cookie, max_age=int(COOKIE_S), path="/", httponly=True, samesite="strict")
        return answer

    def _given(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found is not None else ""


def _page(name: str, status: int) -> Response:
    return HTMLResponse((resources.files("fdt.pool.page") / name).read_text("utf-8"), status)
