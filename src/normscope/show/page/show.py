"""A result on the screen: in the browser, or inline where a notebook runs."""

from __future__ import annotations

import html
import sys
import tempfile
import webbrowser
from pathlib import Path

from normscope.show.page.document import page, write
from normscope.show.page.encode import Results

HEIGHT = 860  # pixels of the frame in a notebook


def show(result: Results) -> None:
    """Open the page in the browser, or show it below the cell of a notebook.

    Outside notebooks the page is a file in a folder of its own among the temporary files; its
    path is printed, so that it can be opened where no browser is found.
    """
    if in_notebook():
        from IPython.display import HTML, display

        display(HTML(frame(result)))
        return
    path = Path(tempfile.mkdtemp(prefix="normscope-")) / "page.html"
    write(result, path)
    print(path)
    webbrowser.open(path.as_uri())


def in_notebook() -> bool:
    """Whether this runs in a kernel that shows HTML, not in a terminal."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def frame(result: Results) -> str:
    """The page in a frame that keeps it apart from the notebook: own policy, own styles."""
    inner = html.escape(page(result), quote=True)
    return (
        f'<iframe title="normscope" sandbox="allow-scripts allow-downloads" width="100%" '
        f'height="{HEIGHT}" style="border:0;border-radius:10px" srcdoc="{inner}"></iframe>'
    )
