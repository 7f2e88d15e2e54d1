"""Read the JSON body of a request, and check the fields of an analysis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from normscope.decomposition.scopes import HEAD_MAPS, SCOPES
from normscope.engine.options import CHOICES

BODY_SECONDS = 10.0  # time for a request body to arrive
TEXTS = ("text", "text_pair", "target")
FIELDS = {"model", *TEXTS, "maps", "heads"}


async def read_json(request: Request, limit: int) -> dict[str, Any]:
    """Return the body, a JSON object of at most `limit` bytes."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, f"the content type must be application/json, not {kind[:60]!r}")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _read_body(request, limit)
        fields = json.loads(body)
        json.dumps(fields, ensure_ascii=False).encode()
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


def check_analysis(
    fields: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the analysis that a request asks for, with defaults filled in.

    Args:
        fields: The body of the request.
        models: Descriptions of the models by name, as `ServedModel.describe` returns them.
    """
    if unknown := sorted(set(fields) - FIELDS):
        names = ", ".join(unknown)[:100]
        raise HTTPException(400, f"unknown: {names}; valid: {', '.join(sorted(FIELDS))}")
    name = fields.get("model", next(iter(models)))
    if not isinstance(name, str) or name not in models:
        raise HTTPException(400, f"model must be one of these models: {', '.join(models)}")
    return {
        "model": name,
        **_texts(fields, name, needs_target=models[name]["target"]),
        **_maps(fields, models[name]["maps"]),
    }


def _texts(fields: Mapping[str, Any], model: str, *, needs_target: bool) -> dict[str, Any]:
    texts = {key: fields.get(key) for key in TEXTS}
    for key, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise HTTPException(400, f"{key} must be a string")
        texts[key] = text if text is not None and text.strip() else None
    if texts["text"] is None:
        raise HTTPException(400, "text is empty; give at least one word")
    if needs_target and texts["target"] is None:
        raise HTTPException(400, f"{model} needs a target, the text that its decoder reads")
    if not needs_target and texts["target"] is not None:
        raise HTTPException(400, f"{model} takes no target; only encoder–decoder models need one")
    return texts


def _maps(fields: Mapping[str, Any], available: list[str]) -> dict[str, Any]:
    maps, heads = fields.get("maps", list(HEAD_MAPS)), fields.get("heads", "sum")
    if not isinstance(maps, list) or not maps or not all(name in available for name in maps):
        raise HTTPException(400, f"maps must be a list of: {', '.join(available)}")
    if heads not in CHOICES["heads"]:
        raise HTTPException(400, f"heads must be one of: {', '.join(CHOICES['heads'])}")
    if heads == "each" and not all(SCOPES[name].per_head for name in maps):
        raise HTTPException(400, f"single heads have only these maps: {', '.join(HEAD_MAPS)}")
    return {"maps": list(dict.fromkeys(maps)), "heads": heads}
