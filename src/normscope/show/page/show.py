"""Open the page of a result in the browser, or show it in a notebook."""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from pathlib import Path

from normscope.foundation.texts import printable
from normscope.show import html
from normscope.show.page.document import WithPage, page, write
from normscope.show.page.encode import Viewable

HEIGHT = 860  # pixels of the frame in a notebook

_FRAME = """\
<iframe title="normscope" sandbox="allow-scripts allow-downloads" width="100%" height="{{ height }}"
 style="border:0;border-radius:10px" srcdoc="{{ page }}"></iframe>"""


def show(result: Viewable | WithPage) -> None:
    """Open the page in the browser; in a notebook, show it below the cell.

    Outside notebooks the page is written to a new temporary folder and its path is printed, so that
    it can be opened by hand where there is no browser.
    """
    if in_notebook():
        from IPython.display import HTML, display

        display(HTML(frame(result)))
        return
    path = Path(tempfile.mkdtemp(prefix="normscope-")) / "page.html"
    write(result, path)
    print(printable(str(path)))
    webbrowser.open(path.as_uri())


def in_notebook() -> bool:
    """Return whether this runs in a Jupyter kernel, which can show HTML."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def frame(result: Viewable | WithPage) -> str:
    """Return an iframe with the page, so that its policy and styles are apart from a notebook's."""
    return str(html.render(_FRAME, page=page(result), height=HEIGHT))
