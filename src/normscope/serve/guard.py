"""Access checks for every request, and headers for every response.

A web page from another site that is open in the same browser can send requests to this machine.
They are recognised by the Host header (DNS rebinding), the Origin header, and Sec-Fetch-Site.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from normscope.serve.errors import error_response
from normscope.serve.settings import ServeSettings

# An IPv6 address in brackets, or a name without its final dot; then perhaps a port.
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/@\[\]]+?)\.?)(?::\d{1,5})?")
OPEN = ("/", "/health", "/api/session")  # paths that need no token, beside those in /static/

APP_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
# The page of a result contains a script, and a policy of its own that allows only this script. The
# sandbox gives it a separate origin, so it can access neither the server nor the cookie.
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
    "Content-Security-Policy": APP_POLICY,
}


class Guard:
    """ASGI middleware that checks requests and adds headers to responses.

    It wraps the whole application instead of being in Starlette's list of middleware, because
    Starlette sends the response to an unexpected error from outside that list, without the headers.
    Starlette's TrustedHostMiddleware is not used: it cannot allow all IP addresses, and its error
    is not JSON.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings
        self._session = secrets.token_urlsafe(24)  # value of the cookie, instead of the token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check(Request(scope))
            scope["guard"] = self
            await self.app(scope, receive, send_with_headers)
        except HTTPException as error:
            await error_response(error)(scope, receive, send_with_headers)

    def _check(self, request: Request) -> None:
        host = request.headers.get("host", "").lower()
        match = HOST.fullmatch(host)
        if match is None or not self.settings.answers_to(match[1] or match[2]):
            raise HTTPException(
                421,
                f"this server is not {host[:100]!r}; use its address, or start it with "
                "--allow-host to allow this name",
            )
        self._check_origin(request, host)
        if request.url.path not in OPEN and not request.url.path.startswith("/static/"):
            self._check_access(request)

    def _check_origin(self, request: Request, host: str) -> None:
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise HTTPException(403, f"requests from the page {origin[:100]!r} are not allowed")
        site = request.headers.get("sec-fetch-site", "none")
        # Another site may link to the page, but do nothing else.
        if site not in ("none", "same-origin") and request.url.path != "/":
            raise HTTPException(403, f"requests from other sites ({site[:20]}) are not allowed")

    def _check_access(self, request: Request) -> None:
        if self.settings.token is None:
            return
        cookie = request.cookies.get(self.cookie)
        if cookie is not None and _equal_secrets(cookie, self._session):
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            self.check_token(token.strip())
            return
        raise HTTPException(
            401,
            "this server needs its token: send it as Authorization: Bearer, or enter it on the "
            "page",
            {"WWW-Authenticate": "Bearer"},
        )

    def check_token(self, token: str) -> None:
        """Raise error 401 for a wrong token.

        Wrong tokens are not counted: whoever can send many of them would lock out the right one.
        """
        if self.settings.token is None or _equal_secrets(token, self.settings.token):
            return
        headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
        raise HTTPException(401, "the token is wrong", headers)

    @property
    def cookie(self) -> str:
        """The name of the cookie. All ports of a machine share cookies, so it has the port."""
        return f"normscope-{self.settings.port}"

    def open_session(self, response: Response) -> None:
        """Set a cookie that the browser sends instead of the token."""
        response.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")


def _equal_secrets(first: str, second: str) -> bool:
    """Compare two secrets in a time that does not depend on their content."""
    digests = (hashlib.sha256(text.encode(errors="replace")).digest() for text in (first, second))
    return hmac.compare_digest(*digests)
