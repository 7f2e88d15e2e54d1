"""The routes: the page and its files, and the API that the page uses."""

from __future__ import annotations

import asyncio
import json
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from normscope import __version__
from normscope.decomposition.attention import HEADS
from normscope.decomposition.scopes import HEAD_MAPS as MAPS
from normscope.serve.guard import RESULT_POLICY, Guard, Refusal, busy, client, too_often
from normscope.serve.jobs import Job, Jobs, QueueFull, Unavailable
from normscope.serve.limits import Rate
from normscope.serve.settings import Settings

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
BODY_SECONDS = 10.0  # in which a request has to be complete
LONGEST_WAIT = 20.0  # seconds that a question for a job's state may be kept open


def create_app(settings: Settings, jobs: Jobs) -> ASGIApp:
    """The ASGI app; who made `jobs` starts and closes them."""
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
        exception_handlers={
            Refusal: _refused,
            HTTPException: _http_error,
            Exception: _unexpected,
        },
    )
    app.router.redirect_slashes = False  # a name with a slash too many is no name here
    return Guard(app, settings)


class _Routes:
    def __init__(self, settings: Settings, jobs: Jobs) -> None:
        self.settings, self.jobs = settings, jobs
        # A few at once, as a person may ask who compares two sentences; then the rate.
        self._rate = Rate(settings.rate / 60, max(5.0, settings.rate / 6))
        folder = resources.files("normscope.serve").joinpath("static")
        self._static = {name: folder.joinpath(name).read_bytes() for name in STATIC}

    async def index(self, request: Request) -> Response:
        return Response(self._static["index.html"], media_type=STATIC["index.html"])

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            raise Refusal(404, "there is no such file")
        return Response(self._static[name], media_type=STATIC[name])

    async def health(self, request: Request) -> Response:
        ready = self.jobs.ready
        told = {"status": "ok" if ready else "starting", "version": __version__}
        return JSONResponse(told, 200 if ready else 503, None if ready else {"Retry-After": "5"})

    async def session(self, request: Request) -> Response:
        guard: Guard = request.scope["guard"]
        token = (await self._json(request)).get("token")
        if not isinstance(token, str):
            raise Refusal(400, 'give {"token": "…"}')
        guard.check(request, token)
        response = JSONResponse({"status": "ok"})
        guard.open_session(response)
        return response

    async def models(self, request: Request) -> Response:
        limits = {"time_limit": self.settings.time_limit, "queue": self.settings.queue}
        return JSONResponse({"models": list(self.jobs.models.values()), "limits": limits})

    async def submit(self, request: Request) -> Response:
        if wait := self._rate.wait(client(request)):
            raise too_often(wait)
        asked = self._checked(await self._json(request))
        try:
            job = self.jobs.submit(asked)
        except QueueFull:
            raise busy(
                f"{self.settings.queue} analyses wait already; ask again in 2 seconds"
            ) from None
        except Unavailable as problem:
            raise busy(str(problem)) from None
        return JSONResponse(self.jobs.describe(job), 202)

    async def state(self, request: Request) -> Response:
        job = self._job(request)
        query = request.query_params
        if "wait" in query:
            try:
                seconds, seen = float(query["wait"]), int(query.get("position", "0"))
            except ValueError:
                raise Refusal(400, "wait and position are numbers") from None
            seconds = min(max(seconds, 0.0), LONGEST_WAIT) if seconds == seconds else 0.0
            await self.jobs.wait(job, (query.get("state", job.state), seen), seconds)
        return JSONResponse(self.jobs.describe(job))

    async def cancel(self, request: Request) -> Response:
        job = self._job(request)
        self.jobs.cancel(job)
        return JSONResponse(self.jobs.describe(job))

    async def page(self, request: Request) -> Response:
        return _file("html", self._finished(request).files["html"], attachment=False)

    async def download(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in FORMATS:
            raise Refusal(404, f"a result is had as {', '.join(FORMATS)}")
        job = self._finished(request)
        try:
            data = job.files.get(kind) or await self.jobs.convert(job, kind)
        except Unavailable as problem:
            raise busy(str(problem)) from None
        return _file(kind, data, attachment=True)

    # ---- what a request says

    def _job(self, request: Request) -> Job:
        job = self.jobs.get(request.path_params["id"])
        if job is None:
            raise Refusal(404, "there is no such job, or it is no longer kept; analyse again")
        return job

    def _finished(self, request: Request) -> Job:
        job = self._job(request)
        if job.state != "done":
            raise Refusal(404, f"this job has no result: it is {job.state}")
        job.read = True
        return job

    async def _json(self, request: Request) -> dict[str, Any]:
        """The body, which is a JSON object within the limits."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, f"send application/json, not {kind[:60] or 'nothing'!r}")
        limit = self.settings.body
        too_large = Refusal(413, f"a request may have {limit} bytes", {"Connection": "close"})
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():  # counted here too: it may come without length
                    body += chunk
                    if len(body) > limit:
                        raise too_large
            found = json.loads(body)
            json.dumps(found, ensure_ascii=False).encode()
        except TimeoutError:
            raise Refusal(400, "the request was not complete in time") from None
        except ClientDisconnect:
            raise Refusal(400, "the request was not complete") from None
        except UnicodeEncodeError:  # JSON may say it; no answer could repeat it
            raise Refusal(400, "the request has half of a surrogate pair in its JSON") from None
        except (ValueError, RecursionError):
            raise Refusal(400, "the request is not valid JSON") from None
        if not isinstance(found, dict):
            raise Refusal(400, "the request is not a JSON object")
        return found

    def _checked(self, given: dict[str, Any]) -> dict[str, Any]:
        """The analysis asked for; every field of it is one that the worker may see."""
        known = {"model", "text", "text_pair", "target", "maps", "heads"}
        if unknown := sorted(set(given) - known):
            raise Refusal(400, f"unknown: {', '.join(unknown)[:100]}; there is: {sorted(known)}")
        models = self.jobs.models
        name = given.get("model", next(iter(models)))
        if not isinstance(name, str) or name not in models:
            raise Refusal(400, f"this server has these models: {', '.join(models)}")
        model = models[name]
        texts = {key: given.get(key) for key in ("text", "text_pair", "target")}
        for key, text in texts.items():
            if text is not None and not isinstance(text, str):
                raise Refusal(400, f"{key} is a string")
            texts[key] = text if text is not None and text.strip() else None
        if texts["text"] is None:
            raise Refusal(400, "text is empty: give at least one word")
        if model["target"] != (texts["target"] is not None):
            needs = "needs a target, the text that its decoder reads"
            raise Refusal(400, f"{name} {needs if model['target'] else 'takes no target'}")
        maps, heads = given.get("maps", list(MAPS)), given.get("heads", "sum")
        if not isinstance(maps, list) or not maps or not all(m in model["maps"] for m in maps):
            raise Refusal(400, f"maps is a list of: {', '.join(model['maps'])}")
        if heads not in HEADS:
            raise Refusal(400, f"heads is one of: {', '.join(HEADS)}")
        if heads == "each" and any(one not in MAPS for one in maps):
            raise Refusal(400, f"single heads have these maps only: {', '.join(MAPS)}")
        return {"model": name, **texts, "maps": list(dict.fromkeys(maps)), "heads": heads}


def _file(kind: str, data: bytes, *, attachment: bool) -> Response:
    headers = {"Content-Security-Policy": RESULT_POLICY}
    if attachment:
        headers["Content-Disposition"] = f'attachment; filename="normscope.{kind}"'
    return Response(data, media_type=FORMATS[kind], headers=headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    return JSONResponse({"error": str(error.detail).lower()}, error.status_code, headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "an unexpected error; the server's log says more"}, 500)
