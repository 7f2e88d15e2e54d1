"""`normscope serve`: how its options are read. The server is tested in tests/serve."""

from __future__ import annotations

from normscope.cli.serve import ServeArguments
from normscope.serve.settings import Settings


def test_options_become_settings() -> None:
    assert Settings(**ServeArguments().for_python()) == Settings()
    arguments = ServeArguments(model=["a", "b"], allow_host=["lab.example.org"], port=0)
    settings = Settings(**arguments.for_python())
    assert settings.models == ("a", "b")
    assert settings.names == ("lab.example.org",)
    assert settings.port == 0
