"""One self-contained page that shows a result: `result.to_html("x.html")`, `result.show()`.

    page(result)           the HTML as a string; it needs no network and works from disk
    payload(result)        the data in it, ready for JSON
    write(result, path)    the page as a file
    gather(model, …)       the results that the command line shows on a page

The first three take one result, or several of the same text, such as one with heads="each" and one
with more maps; several are shown together. They also take an attribution, for which the page has
another view.
"""

from normscope.show.page.document import page, write
from normscope.show.page.encode import payload
from normscope.show.page.story import gather

__all__ = ["gather", "page", "payload", "write"]
