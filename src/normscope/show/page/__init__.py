"""One self-contained page that shows a result: `result.to_html("x.html")`, `result.show()`.

    page(result)      the whole HTML, a string: no network, works from disk
    payload(result)   the data in it, ready for JSON
    write(result, path)
    gather(model, …)  the results that make a rich page of one text

Each takes one result or several of the same text, such as one with heads="each" and one with
more maps: they are shown as one.
"""

from normscope.show.page.document import page, write
from normscope.show.page.encode import payload
from normscope.show.page.story import gather

__all__ = ["gather", "page", "payload", "write"]
