"""Error responses: a status, and one sentence as {"error": "…"}."""

from __future__ import annotations

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

PAUSE = "2"  # seconds after which a client may try again


def busy(message: str, status: int = 503) -> HTTPException:
    """Return an error that asks the client to try again."""
    return HTTPException(status, f"{message}; try again in {PAUSE} seconds", {"Retry-After": PAUSE})


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
