"""What makes two runs the same: model, tokenizer, data, settings, versions.

A run is continued only where all of these are equal. Files count by the SHA-256 of their whole
content, which takes seconds for a corpus that takes hours to measure, and lets the files be moved.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from normscope.corpus.readers import summarise
from normscope.errors import InputError
from normscope.measures.statistics import Settings, Statistic
from normscope.models import identity as name_of
from normscope.results.signature import CONVENTIONS, tokenizer_name, versions, weights_hash

# Parts of a config that say how a model was made or is run, not what it computes.
_ASIDE = {"transformers_version", "torch_dtype", "dtype", "attn_implementation"}


def identify(
    model: Any,
    tokenizer: Any,
    device: str,
    statistics: Sequence[Statistic],
    settings: Settings,
    data: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that the numbers depend on, as plain data."""
    known = name_of(model)
    return {
        "model": {
            "name": known["name"],
            "revision": known["revision"],
            "weights": weights_hash(model),
            "config": config_hash(model),
            "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
            "device": device.partition(":")[0],
        },
        "tokenizer": {"vocabulary": tokenizer_name(tokenizer), "rules": _rules(tokenizer)},
        "statistics": [_named(one) for one in statistics],
        "settings": described(settings),
        "data": [dict(one) for one in data],
        "options": dict(options),
        "versions": versions(),
    }


def signature(identity: Mapping[str, Any]) -> str:
    """The identity in one line, in the form that results of `analyze` have."""
    model, data = identity["model"], identity["data"]
    settings = {**identity["settings"], **identity["options"]}
    contents = [one.get("sha256") or one.get("fingerprint") or "stream" for one in data]
    digest = hashlib.sha256(json.dumps(contents).encode()).hexdigest()
    fields = {
        "model": model["name"],
        "revision": model["revision"] or "none",
        "weights": "sha256=" + model["weights"],
        "tokenizer": identity["tokenizer"]["vocabulary"],
        "statistics": ",".join(identity["statistics"]),
        "data": f"{len(data)}-part(s)/sha256={digest}",
        **{
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in settings.items()
            if value is not None
        },
        "dtype": model["dtype"],
        "device": model["device"],
        "conventions": CONVENTIONS,
        **identity["versions"],
    }
    return "|".join(f"{key}:{value}" for key, value in fields.items())


def config_hash(model: Any) -> str:
    """A hash of the config: two models may share weights and differ in what they do with them."""
    config = {
        name: value
        for name, value in model.config.to_dict().items()
        if not name.startswith("_") and name not in _ASIDE
    }
    return _hash(json.dumps(config, sort_keys=True, default=str))


def _rules(tokenizer: Any) -> str:
    """A hash of how text is cut and framed, beside the vocabulary."""
    if not tokenizer.is_fast:
        return type(tokenizer).__name__
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    for name in ("truncation", "padding"):  # set anew for each call
        rules.pop(name, None)
    return _hash(json.dumps(rules, sort_keys=True))


def _named(statistic: Statistic) -> str:
    """A name; of a user's statistic also what tells it from one that was written differently."""
    kind = type(statistic)
    if kind.__module__.startswith("normscope."):
        return statistic.name
    plain = (str, int, float, tuple, type(None))
    held = getattr(statistic, "__dict__", {})
    chosen = sorted((name, repr(one)) for name, one in held.items() if isinstance(one, plain))
    code = _hash(f"{_source(kind)}{chosen}")[:12]
    return f"{statistic.name} ({kind.__module__}.{kind.__qualname__}/{code})"


def described(settings: Settings) -> dict[str, Any]:
    """The settings of the statistics as plain data that differ when they do."""
    told = {one.name: getattr(settings, one.name) for one in fields(settings)}
    if settings.categories is not None:
        # In their order: a token belongs to the first that names it.
        told["categories"] = [[k, _category(one)] for k, one in settings.categories.items()]
    if settings.ranks not in ("ids", "corpus"):
        path = Path(settings.ranks)
        if not path.is_file():
            raise InputError(f'ranks is "ids", "corpus" or a file, and there is no {str(path)!r}')
        try:
            told["ranks"] = f"{path.name}/sha256={summarise(path).sha256}"
        except OSError as problem:
            raise InputError(f"cannot read {str(path)!r}: {problem.strerror}") from problem
    return told


def _category(category: Any) -> Any:
    if isinstance(category, re.Pattern):
        return f"re:{category.pattern}"
    if isinstance(category, Callable):  # type: ignore[arg-type]
        return f"function/sha256={_hash(_source(category))}"
    return category if isinstance(category, str) else list(category)


def _source(made: Any) -> str:
    """The text of a function or a class; where there is none, something that stands for it."""
    try:
        return inspect.getsource(made)
    except (OSError, TypeError):
        code = getattr(getattr(made, "__code__", None), "co_code", None)
        return repr(code) if code is not None else repr(made)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
