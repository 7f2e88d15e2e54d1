"""The viewer as a widget for Jupyter, Colab, VS Code and marimo. Needs the extra `notebook`."""

from __future__ import annotations

import json
from typing import Any

from normscope.errors import MissingExtraError
from normscope.show.page.document import code, style
from normscope.show.page.encode import Viewable, payload


def widget(result: Viewable) -> Any:
    """Return a widget that shows a result, several of the same text, or an attribution.

    It needs no network.
    """
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise MissingExtraError("anywidget", "notebook") from error

    content = payload(result)

    class Viewer(anywidget.AnyWidget):
        """A widget that carries its code and style; the data is JSON and never executed."""

        _esm = code("widget", content["format"])
        _css = style(content["format"])
        data = traitlets.Unicode().tag(sync=True)

    return Viewer(data=json.dumps(content))
