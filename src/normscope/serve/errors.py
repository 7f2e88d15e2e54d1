"""Error responses: a status, and one sentence as {"error": "…"}."""

from __future__ import annotations

import math
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


def too_many_requests(seconds: float) -> HTTPException:
    """Return error 429, which tells the client how long to wait."""
    wait = max(1, math.ceil(seconds))
    return HTTPException(
        429,
        f"too many requests; try again in {wait} second{'s' if wait > 1 else ''}",
        {"Retry-After": str(wait)},
    )


def unavailable(message: str, seconds: int = 2) -> HTTPException:
    """Return error 503, which tells the client how long to wait."""
    return HTTPException(503, message, {"Retry-After": str(seconds)})


def error_response(error: HTTPException) -> JSONResponse:
    """Return the response for an error."""
    message = error.detail
    if message == HTTPStatus(error.status_code).phrase:  # an error of Starlette itself
        message = message.lower()
    # The message may quote the request. JSON can contain an unpaired surrogate, UTF-8 cannot.
    message = message.encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"error": message}, error.status_code, error.headers)


async def handle_http_error(request: Request, error: Exception) -> Response:
    """Respond to an HTTPException of a route."""
    assert isinstance(error, HTTPException)
    return error_response(error)


async def handle_unexpected(request: Request, error: Exception) -> Response:
    """Respond to any other exception, without details: they are in the server's log."""
    return JSONResponse({"error": "unexpected error; see the server's log"}, 500)
