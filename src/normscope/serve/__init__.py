"""The local web app: `normscope serve`. Needs the extra `serve`.

A page with a form, and an API beside it; analyses run one after another in a process of their own.

    settings   what the server was told at its start
    frames     what server and worker say to each other
    worker     the process that holds the models (run as a program)
    process    that process, seen from the server: start, ask, kill
    jobs       the queue, the time limit, cancellation, and what is kept of finished jobs
    limits     how often and how much a client may ask
    guard      who may ask at all: Host, Origin, token; and the headers of every answer
    app        the routes
    server     sockets, signals and the start of it all
"""
