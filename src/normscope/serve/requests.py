"""Read the JSON body of a request, check the fields of an analysis, and wait with its client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from normscope.decomposition.scopes import HEAD_MAPS, PER_HEAD, SCOPES
from normscope.engine.options import CHOICES
from normscope.foundation.texts import to_json

BODY_SECONDS = 10.0  # time for a request body to arrive
MAPS = "maps"  # the question that is asked unless a request names another
TEXTS = (
    *("text", "text_pair", "target", "answer", "foil"),
    *("continuation", "similar_to", "baseline"),
)


async def read_json(request: Request, limit: int) -> dict[str, Any]:
    """Return the body, a JSON object of at most `limit` bytes."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, f"the content type must be application/json, not {kind[:60]!r}")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _read_body(request, limit)
        fields = json.loads(body)
        to_json(fields).encode()
    except TimeoutError:
        raise HTTPException(400, f"the request took longer than {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the request is incomplete") from None
    except UnicodeEncodeError:  # valid in JSON, but no text, and no response could repeat it
        raise HTTPException(400, "the JSON contains an unpaired surrogate") from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "the request is not valid JSON") from None
    if not isinstance(fields, dict):
        raise HTTPException(400, "the request must be a JSON object")
    return fields


async def _read_body(request: Request, limit: int) -> bytes:
    # Starlette limits bodies itself only in newer versions than the oldest supported one.
    too_large = HTTPException(
        413, f"the request must have at most {limit} bytes", {"Connection": "close"}
    )
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > limit:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():  # a chunked body does not announce its length
        body += chunk
        if len(body) > limit:
            raise too_large
    return bytes(body)


async def until_disconnected(receive: Receive) -> None:
    """Wait until the client of a request without a body, or with one that was read, has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Wait for work; cancel it if the client disconnects."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(until_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        leaving.cancel()


def check_analysis(
    fields: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the analysis that a request asks for, with defaults filled in.

    Args:
        fields: The body of the request.
        models: Descriptions of the models by name, as `ServedModel.describe` returns them.
    """
    name = fields.get("model", next(iter(models)))
    if not isinstance(name, str) or name not in models:
        raise HTTPException(400, f"model must be one of these models: {', '.join(models)}")
    model = models[name]
    question = fields.get("question", MAPS)
    if not isinstance(question, str) or question not in model["questions"]:
        valid = ", ".join(model["questions"])
        raise HTTPException(400, f"the question to {name} must be one of: {valid}")
    valid_fields = {"model", "question", "text", *model["questions"][question]["fields"]}
    if unknown := sorted(set(fields) - valid_fields):
        names = ", ".join(unknown)[:100]
        raise HTTPException(
            400,
            f"unknown: {names}; valid for the question {question!r}: "
            f"{', '.join(sorted(valid_fields))}",
        )
    texts = _texts(fields)
    if question != MAPS:
        required = model["questions"][question]["required"]
        checked = {**texts, **_numbers(fields, model["max_length"])}
        _check_question(checked, required, model["mask"])
        return {"task": "explain", "model": name, "question": question, **checked}
    _check_target(texts["target"], name, needed=model["target"])
    return {"task": "analyse", "model": name, **texts, **_maps(fields, model["maps"])}


def _texts(fields: Mapping[str, Any]) -> dict[str, str | None]:
    """Return every text, or None where it is missing or blank."""
    texts = {key: fields.get(key) for key in TEXTS}
    for key, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise HTTPException(400, f"{key} must be a string")
        texts[key] = text if text is not None and text.strip() else None
    if texts["text"] is None:
        raise HTTPException(400, "text is empty; give at least one word")
    return texts


def _check_target(target: str | None, model: str, *, needed: bool) -> None:
    if needed and target is None:
        raise HTTPException(400, f"{model} needs a target, the text that its decoder reads")
    if not needed and target is not None:
        raise HTTPException(
            400, f"{model} does not accept a target; only encoder–decoder models need one"
        )


def _numbers(fields: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Return the fields of an attribution that are no texts."""
    for key in ("generate", "position"):
        number = fields.get(key)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise HTTPException(400, f"{key} must be a whole number")
    generate, trace = fields.get("generate"), fields.get("trace", False)
    if generate is not None and not 1 <= generate <= longest:
        raise HTTPException(400, f"generate must be a number of tokens from 1 to {longest}")
    if not isinstance(trace, bool):
        raise HTTPException(400, "trace must be true or false")
    return {"generate": generate, "position": fields.get("position"), "trace": trace}


def _check_question(asked: Mapping[str, Any], required: list[str], mask: str | None) -> None:
    """Raise an error for an attribution whose fields do not go together."""
    for key in required:
        if asked[key] is None:
            raise HTTPException(400, f"{key} is empty; this question needs it")
    if asked["foil"] is not None and asked["answer"] is None:
        raise HTTPException(400, "there is a foil, but no answer that it is compared with")
    if mask is not None and asked["position"] is None:
        count = asked["text"].count(mask) + (asked["text_pair"] or "").count(mask)
        if count != 1:
            raise HTTPException(
                400,
                f"the text has {count or 'no'} mask token{'s' if count > 1 else ''}; put {mask} "
                "once where the word is missing, or give the position of a token",
            )


def _maps(fields: Mapping[str, Any], available: list[str]) -> dict[str, Any]:
    maps, heads = fields.get("maps", list(HEAD_MAPS)), fields.get("heads", "sum")
    if not isinstance(maps, list) or not maps or not all(name in available for name in maps):
        raise HTTPException(400, f"maps must be a list of: {', '.join(available)}")
    if heads not in CHOICES["heads"]:
        raise HTTPException(400, f"heads must be one of: {', '.join(CHOICES['heads'])}")
    if heads == "each" and not all(SCOPES[name].per_head for name in maps):
        raise HTTPException(400, f"single heads have only these maps: {', '.join(PER_HEAD)}")
    return {"maps": list(dict.fromkeys(maps)), "heads": heads}
