"""Error responses of the web app."""

from __future__ import annotations

import json

import pytest
from starlette.exceptions import HTTPException

from normscope.serve.errors import error_response, too_many_requests, unavailable


@pytest.mark.parametrize(
    ("seconds", "header", "message"),
    [
        (0.1, "1", "try again in 1 second"),
        (1.0, "1", "try again in 1 second"),
        (1.2, "2", "try again in 2 seconds"),
    ],
)
def test_seconds_are_rounded_up(seconds: float, header: str, message: str) -> None:
    error = too_many_requests(seconds)
    assert error.status_code == 429
    assert error.headers == {"Retry-After": header}
    assert error.detail.endswith(message)
    assert unavailable("busy").headers == {"Retry-After": "2"}


def test_responses() -> None:
    response = error_response(HTTPException(401, "The Token \ud800", {"A": "b"}))
    assert response.status_code == 401
    assert response.headers["a"] == "b"
    assert json.loads(bytes(response.body)) == {"error": "The Token \\ud800"}
    assert json.loads(bytes(error_response(HTTPException(404)).body)) == {"error": "not found"}
