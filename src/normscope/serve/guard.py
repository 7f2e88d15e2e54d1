"""Who may ask at all, and the headers of every answer.

A web page from elsewhere, open in the same browser, can send requests to this machine. What tells
it apart: its Host header (DNS rebinding), its Origin, and what the browser says in Sec-Fetch-Site.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from normscope.serve.limits import Rate
from normscope.serve.settings import Settings

HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/@\[\]]+?)\.?)(?::\d{1,5})?")
OPEN = ("/", "/health", "/api/session")  # with /static/, what needs no token
WRONG_TOKEN = 10.0  # requests that a wrong token counts for

APP_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
# A result's page carries its own script, and a policy that names it by its hash. Here it is also
# put into an origin of its own, so that it can reach neither this server nor its cookie.
RESULT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class Refusal(Exception):
    """An answer other than what was asked for: a status and one sentence."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}

    def response(self) -> JSONResponse:
        """As JSON."""
        # It may quote the request, and JSON can hold half a surrogate pair, which UTF-8 cannot.
        message = self.message.encode("utf-8", "backslashreplace").decode()
        return JSONResponse({"error": message}, self.status, self.headers)


def too_often(seconds: float) -> Refusal:
    """429, and when to come again."""
    wait = max(1, math.ceil(seconds))
    return Refusal(
        429,
        f"too many requests; ask again in {wait} second{'s' if wait > 1 else ''}",
        {"Retry-After": str(wait)},
    )


def busy(message: str, seconds: int = 2) -> Refusal:
    """503, and when to come again."""
    return Refusal(503, message, {"Retry-After": str(seconds)})


class Guard:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self.in_flight = 0
        self._rate = Rate(settings.requests, 2 * settings.requests)
        self._session = secrets.token_urlsafe(24)  # the cookie's value; the token stays out of it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Content-Security-Policy", APP_POLICY)
            await send(message)

        request = Request(scope)
        self.in_flight += 1
        try:
            self._check(request)
            scope["guard"] = self
            await self.app(scope, receive, send_with_headers)
        except Refusal as refusal:
            await refusal.response()(scope, receive, send_with_headers)
        finally:
            self.in_flight -= 1

    def _check(self, request: Request) -> None:
        host = request.headers.get("host", "").lower()
        found = HOST.fullmatch(host)
        if found is None or not self.settings.answers_to(found[1] or found[2]):
            raise Refusal(
                421,
                f"this server is not {host[:100]!r}; call it by its address, or start it with "
                "--allow-host for this name",
            )
        if wait := self._rate.wait(client(request)):
            raise too_often(wait)
        if self.in_flight > self.settings.in_flight:
            raise busy("too many requests at once; ask again in 2 seconds")
        self._check_origin(request, host)
        if request.url.path not in OPEN and not request.url.path.startswith("/static/"):
            self._check_token(request)

    def _check_origin(self, request: Request, host: str) -> None:
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise Refusal(403, f"requests from the page {origin[:100]!r} are not answered")
        site = request.headers.get("sec-fetch-site", "none")
        # Following a link to the page itself is all that other sites may do.
        if site not in ("none", "same-origin") and request.url.path != "/":
            raise Refusal(403, f"requests from other sites ({site[:20]}) are not answered")

    def _check_token(self, request: Request) -> None:
        if self.settings.token is None:
            return
        cookie = request.cookies.get(self.cookie)
        if cookie is not None and _same(cookie, self._session):
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            self.check(request, given.strip())
            return
        raise Refusal(
            401,
            "this server needs its token: send it as Authorization: Bearer, or enter it on the "
            "page",
            {"WWW-Authenticate": "Bearer"},
        )

    def check(self, request: Request, token: str) -> None:
        """Refuse a wrong token, and make guessing slow."""
        if self.settings.token is None or _same(token, self.settings.token):
            return
        if wait := self._rate.wait(client(request), WRONG_TOKEN):
            raise too_often(wait)
        raise Refusal(401, "the token is wrong", {"WWW-Authenticate": "Bearer"})

    @property
    def cookie(self) -> str:
        """The cookie's name: cookies are shared by all ports of a machine, so it has the port."""
        return f"normscope-{self.settings.port}"

    def open_session(self, response: Any) -> None:
        """Give the browser a cookie that stands for the token."""
        response.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")


def client(request: Request) -> str:
    """Whom to count a request for: the address it came from, whatever its headers say."""
    return request.client.host if request.client is not None else ""


def _same(one: str, other: str) -> bool:
    """Whether two secrets are equal, in a time that tells nothing of either."""
    digests = (hashlib.sha256(text.encode(errors="replace")).digest() for text in (one, other))
    return hmac.compare_digest(*digests)
