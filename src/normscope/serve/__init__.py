"""The local web app, `normscope serve`. It needs the extra `serve`.

The server offers a page with a form and an HTTP API. Analyses run one at a time in a separate
process, so the server always responds.

    settings   options and limits of the server
    questions  what can be asked of a model, by its head
    worker     the worker process, which holds the models (run as a program)
    process    start, ask and kill the worker process from the server
    jobs       the queue: time limit, cancellation and stored results
    errors     error responses
    guard      access checks (Host, Origin, token) and response headers
    requests   read and check request bodies, wait with a client
    app        the routes
    server     socket, signals, start and shutdown
"""
