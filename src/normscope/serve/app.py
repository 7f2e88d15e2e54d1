"""Routes of the web app: the page, its files, and the API."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from importlib import resources

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from normscope import __version__
from normscope.serve.errors import PAUSE, handle_http_error, handle_unexpected
from normscope.serve.guard import RESULT_POLICY, Guard
from normscope.serve.jobs import AnalysisJob, JobQueue
from normscope.serve.requests import (
    check_analysis,
    read_json,
    until_disconnected,
    while_connected,
)
from normscope.serve.settings import ServeSettings
from normscope.show.palette import css_variables

# Starlette's StaticFiles takes media types from the system's tables, which may be wrong; a browser
# that is told "nosniff" then refuses the script.
STATIC = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
FORMATS = {
    "html": "text/html; charset=utf-8",
    "safetensors": "application/octet-stream",
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
}
LONGEST_WAIT = 20.0  # seconds for which a request may wait for a job to change


def create_app(settings: ServeSettings, jobs: JobQueue) -> ASGIApp:
    """Return the ASGI application; the caller starts and closes `jobs`."""
    routes = _Routes(settings, jobs)

    app = Starlette(
        routes=[
            Route("/", routes.index),
            Route("/static/{name}", routes.static),
            Route("/health", routes.health),
            Route("/api/session", routes.session, methods=["POST"]),
            Route("/api/models", routes.models),
            Route("/api/jobs", routes.submit, methods=["POST"]),
            Route("/api/jobs/{id}", routes.state),
            Route("/api/jobs/{id}", routes.cancel, methods=["DELETE"]),
            Route("/api/jobs/{id}/page", routes.page),
            Route("/api/jobs/{id}/result.{kind}", routes.download),
        ],
        exception_handlers={HTTPException: handle_http_error, Exception: handle_unexpected},
    )
    app.router.redirect_slashes = False  # a path with an additional slash does not exist
    return Guard(app, settings)


class _Routes:
    def __init__(self, settings: ServeSettings, jobs: JobQueue) -> None:
        self.settings, self.jobs = settings, jobs
        folder = resources.files("normscope.serve").joinpath("static")
        self._static = {name: folder.joinpath(name).read_bytes() for name in STATIC}
        self._static["app.css"] = _palette().encode() + self._static["app.css"]

    async def index(self, request: Request) -> Response:
        return Response(self._static["index.html"], media_type=STATIC["index.html"])

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            raise HTTPException(404, "there is no such file")
        return Response(self._static[name], media_type=STATIC[name])

    async def health(self, request: Request) -> Response:
        if self.jobs.ready:
            return JSONResponse({"status": "ok", "version": __version__})
        status = {"status": "starting", "reason": self.jobs.reason, "version": __version__}
        return JSONResponse(status, 503, {"Retry-After": PAUSE})

    async def session(self, request: Request) -> Response:
        guard: Guard = request.scope["guard"]
        token = (await read_json(request, self.settings.body)).get("token")
        if not isinstance(token, str):
            raise HTTPException(400, 'the request must be {"token": "…"}')
        guard.check_token(token)
        response = JSONResponse({"status": "ok"})
        guard.open_session(response)
        return response

    async def models(self, request: Request) -> Response:
        limits = {"time_limit": self.settings.time_limit, "queue": self.settings.queue}
        return JSONResponse({"models": list(self.jobs.models.values()), "limits": limits})

    async def submit(self, request: Request) -> Response:
        fields = await read_json(request, self.settings.body)
        analysis = check_analysis(fields, self.jobs.models)
        # The address that the connection comes from; headers could name any other.
        client = request.client.host if request.client is not None else ""
        job = self.jobs.submit(analysis, client)
        return JSONResponse(self.jobs.describe(job), 202)

    async def state(self, request: Request) -> Response:
        job = self._job(request)
        query = request.query_params
        if "wait" in query:
            try:
                seconds, position = float(query["wait"]), int(query.get("position", "0"))
            except ValueError:
                raise HTTPException(400, "wait and position must be numbers") from None
            seconds = min(max(0.0, seconds), LONGEST_WAIT)  # 0.0 if it is NaN
            known = query.get("state", job.state), position
            await while_connected(request.receive, self.jobs.wait(job, known, seconds))
        return JSONResponse(self.jobs.describe(job))

    async def cancel(self, request: Request) -> Response:
        job = self._job(request)
        self.jobs.cancel(job)
        return JSONResponse(self.jobs.describe(job))

    async def page(self, request: Request) -> Response:
        return _ResultFile(self._finished_job(request), "html")

    async def download(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in FORMATS:
            raise HTTPException(404, f"the format must be one of: {', '.join(FORMATS)}")
        job = self._finished_job(request)
        if kind not in job.files:
            await while_connected(request.receive, self.jobs.convert(job, kind))
        return _ResultFile(job, kind, f"normscope.{kind}")

    def _job(self, request: Request) -> AnalysisJob:
        job = self.jobs.get(request.path_params["id"])
        if job is None:
            raise HTTPException(
                404, "there is no such job, or it is no longer stored; submit the analysis again"
            )
        return job

    def _finished_job(self, request: Request) -> AnalysisJob:
        job = self._job(request)
        if job.state != "done":
            raise HTTPException(404, f"this job has no result: it is {job.state}")
        return job


class _ResultFile(FileResponse):
    """A file of a result. It is not read on when its client has gone, as Starlette 0.50 would."""

    def __init__(self, job: AnalysisJob, kind: str, saved_as: str | None = None) -> None:
        if kind not in job.files:
            raise HTTPException(404, "the result is no longer stored; submit the analysis again")
        headers = {"Content-Security-Policy": RESULT_POLICY}
        super().__init__(job.files[kind], 200, headers, FORMATS[kind], filename=saved_as)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(until_disconnected(receive))

        async def send_if_connected(message: Message) -> None:
            if leaving.done():
                raise ClientDisconnect
            await send(message)

        with suppress(ClientDisconnect):
            await super().__call__(scope, receive, send_if_connected)
        leaving.cancel()


def _palette() -> str:
    """Return the colours of both themes, which are those of results, as declarations of CSS."""
    dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {css_variables('dark')} }} }}"
    return f":root {{ {css_variables('light')} }}\n{dark}\n\n"
