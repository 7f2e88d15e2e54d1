"""Error responses of the web app."""

from __future__ import annotations

import json

import pytest
from starlette.exceptions import HTTPException

from normscope.serve.errors import busy, error_response


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_says_when_to_try_again(status: int) -> None:
    error = busy("the queue is full", status)
    assert error.status_code == status
    assert error.headers == {"Retry-After": "2"}
    assert error.detail == "the queue is full; try again in 2 seconds"


def test_responses() -> None:
    response = error_response(HTTPException(401, "The Token \ud800", {"A": "b"}))
    assert response.status_code == 401
    assert response.headers["a"] == "b"
    assert json.loads(bytes(response.body)) == {"error": "The Token \\ud800"}
    assert json.loads(bytes(error_response(HTTPException(404)).body)) == {"error": "not found"}
