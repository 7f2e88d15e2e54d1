"""`normscope serve`: how its options are read. The server is tested in tests/serve."""

from __future__ import annotations

from normscope.cli.serve import ServeArguments
from normscope.serve.settings import ServeSettings


def test_options_become_settings() -> None:
    assert ServeSettings(**ServeArguments().for_python()) == ServeSettings()
    arguments = ServeArguments(models=["a", "b"], allow_host=["lab.example.org"], port=0)
    settings = ServeSettings(**arguments.for_python())
    assert settings.models == ("a", "b")
    assert settings.allow_host == ("lab.example.org",)
    assert settings.port == 0
