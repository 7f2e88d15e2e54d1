"""Options and limits of the web app."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import pytest

from normscope import InputError
from normscope.serve.settings import ServeSettings


def test_other_machines_need_allow_remote_and_a_token() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        assert ServeSettings(host=host).local
        assert ServeSettings(host=host).token is None
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"):
        with pytest.raises(InputError, match=r"reachable from other machines.*--allow-remote"):
            ServeSettings(host=host)
        tokens = [ServeSettings(host=host, allow_remote=True).token for _ in range(2)]
        assert all(token is not None and len(token) >= 24 for token in tokens)
        assert tokens[0] != tokens[1]
    # Behind a proxy the server listens on loopback, and other machines still reach it.
    assert ServeSettings(allow_remote=True).token is not None
    with pytest.raises(InputError, match="at least 16 characters"):
        ServeSettings(token="short")
    with pytest.raises(InputError, match="use printable ASCII"):
        ServeSettings(token="ä" * 20)


@pytest.mark.parametrize("name", ["max_length", "time_limit", "queue"])
def test_limits_must_be_above_zero(name: str) -> None:
    option = name.replace("_", "-")
    for wrong in (0, float("inf"), float("nan")) if name == "time_limit" else (0,):
        with pytest.raises(InputError, match=f"--{option} must be a number above 0, not {wrong}"):
            replace(ServeSettings(), **cast(Any, {name: wrong}))


def test_one_client_has_a_quarter_if_other_machines_are_let_in() -> None:
    assert ServeSettings().share(16) == 16
    assert ServeSettings(token="t" * 16).share(16) == 16
    remote = ServeSettings(allow_remote=True)
    assert [remote.share(limit) for limit in (256, 16, 5, 1)] == [64, 4, 1, 1]


def test_host_names() -> None:
    local = ServeSettings(allow_host=("Lab.example.org",))
    assert local.answers_to("localhost")
    assert local.answers_to("127.0.0.1")
    assert local.answers_to("::1")
    assert local.answers_to("lab.example.org")
    assert not local.answers_to("192.168.1.2")
    assert not local.answers_to("example.org")
    remote = ServeSettings(host="0.0.0.0", allow_remote=True)
    assert remote.answers_to("192.168.1.2")  # a foreign page cannot use this address
    assert not remote.answers_to("rebound.example.org")


def test_options_of_the_command() -> None:
    options = {
        field.metadata.get("option", f"--{field.name.replace('_', '-')}"): field
        for field in fields(ServeSettings)
        if "help" in field.metadata
    }
    assert list(options) == [
        *("--model", "--port", "--host", "--allow-remote", "--allow-host", "--token"),
        *("--max-length", "--time-limit", "--queue", "--device", "--dtype"),
    ]
    assert options["--token"].metadata["envvar"] == "NORMSCOPE_TOKEN"
    for name, option in options.items():
        assert option.metadata["help"].endswith("."), name
        assert ("metavar" in option.metadata) == (name != "--allow-remote"), name


def test_documented_defaults() -> None:
    text = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    settings = ServeSettings()
    documented = {
        "max-length": settings.max_length,
        "time-limit": f"{settings.time_limit:g}",
        "queue": settings.queue,
        "port": settings.port,
    }
    for option, value in documented.items():
        assert f"`--{option}` | {value} " in text, option
    assert f"{settings.connections} open connections" in text
