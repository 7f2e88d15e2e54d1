"""What identifies a run: model, tokenizer, data, settings and versions.

A run is continued only if all of these are equal. Files are compared by the SHA-256 of their whole
content, which takes seconds for a corpus that takes hours to measure; so the files may be moved.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from normscope.corpus.job import CorpusJob
from normscope.corpus.options import CorpusOptions
from normscope.corpus.readers import RowFields
from normscope.corpus.snapshot import summarise
from normscope.errors import InputError
from normscope.foundation.files import check_name
from normscope.foundation.texts import to_json
from normscope.measures.statistics.base import Statistic
from normscope.measures.statistics.settings import StatisticSettings
from normscope.models import identity as model_identity
from normscope.results.descriptions import config_hash, modules_hash, tokenizer_name
from normscope.results.signature import CONVENTIONS, signature_line, versions, weights_hash


def identify(job: CorpusJob) -> dict[str, Any]:
    """Return everything that the numbers of a run depend on, as plain data."""
    model, source = job.model, model_identity(job.model)
    return {
        "model": {
            "name": source["name"],
            "revision": source["revision"],
            "weights": weights_hash(model),
            "config": config_hash(model),
            "modules": modules_hash(model),
            "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
            "device": job.device.partition(":")[0],
        },
        "tokenizer": {
            "vocabulary": tokenizer_name(job.tokenizer),
            "rules": _rules(job.tokenizer),
        },
        "statistics": [_describe_statistic(statistic) for statistic in job.statistics],
        "settings": describe_settings(job.options.statistic_settings),
        "data": [dict(source.identity()) for source in job.stream.sources],
        "options": _describe_options(job.options),
        "versions": versions(),
    }


def signature(identity: Mapping[str, Any]) -> str:
    """Return the identity in one line, in the form that results of `analyze` have."""
    model, data = identity["model"], identity["data"]
    settings = {**identity["settings"], **identity["options"]}
    contents = [part.get("sha256") or part.get("fingerprint") or "stream" for part in data]
    digest = hashlib.sha256(json.dumps(contents).encode()).hexdigest()
    entries = {
        "model": model["name"],
        "revision": model["revision"] or "none",
        "weights": "sha256=" + model["weights"],
        "modules": model["modules"],
        "tokenizer": identity["tokenizer"]["vocabulary"],
        "statistics": ",".join(identity["statistics"]),
        "data": f"{len(data)}-part(s)/sha256={digest}",
        **{
            name: value if isinstance(value, str) else to_json(value)
            for name, value in settings.items()
            if value is not None
        },
        "dtype": model["dtype"],
        "device": model["device"],
        "conventions": CONVENTIONS,
        **identity["versions"],
    }
    return signature_line(entries)


def _rules(tokenizer: Any) -> str:
    """Return a hash of how the tokenizer splits and frames text."""
    if not tokenizer.is_fast:
        return type(tokenizer).__name__
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    for name in ("truncation", "padding"):  # these are set anew for each call
        rules.pop(name, None)
    return _hash(json.dumps(rules, sort_keys=True))


def _describe_options(options: CorpusOptions) -> dict[str, Any]:
    """Return the options that the numbers depend on; names of fields only if they are not usual."""
    names = ("limit", "sample", "max_length", "batch_tokens", "block_rows", "bad_rows")
    return {
        **{name: getattr(options, name) for name in names},
        "text_field": None if options.text_field == RowFields.text else options.text_field,
        "pair_field": None if options.pair_field == RowFields.pair else options.pair_field,
        "dump": options.dump,
    }


def _describe_statistic(statistic: Statistic) -> str:
    """Return the name of a statistic; for a user's, also a hash of its code and attributes."""
    kind = type(statistic)
    if kind.__module__.startswith("normscope."):
        return statistic.name
    plain = (str, int, float, tuple, type(None))
    attributes = getattr(statistic, "__dict__", {})
    chosen = sorted(
        (name, repr(value)) for name, value in attributes.items() if isinstance(value, plain)
    )
    code = _hash(f"{_source(kind)}{chosen}")[:12]
    return f"{statistic.name} ({kind.__module__}.{kind.__qualname__}/{code})"


def describe_settings(settings: StatisticSettings) -> dict[str, Any]:
    """Return the settings of the statistics as plain data that differ if the settings do."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    if settings.categories is not None:
        # A list, since the order counts: a token belongs to the first category that names it.
        values["categories"] = [
            [name, _describe_category(category)] for name, category in settings.categories.items()
        ]
    if settings.ranks not in ("ids", "corpus"):
        path = check_name(settings.ranks)
        if not path.is_file():
            raise InputError(
                f'ranks must be "ids", "corpus" or a file, but there is no {str(path)!r}'
            )
        try:
            values["ranks"] = f"{path.name}/sha256={summarise(path).sha256}"
        except OSError as problem:
            raise InputError(f"cannot read {str(path)!r}: {problem.strerror}") from problem
    return values


def _describe_category(category: Any) -> Any:
    if isinstance(category, re.Pattern):
        return f"re:{category.pattern}"
    if isinstance(category, Callable):  # type: ignore[arg-type]
        return f"function/sha256={_hash(_source(category))}"
    return category if isinstance(category, str) else list(category)


def _source(code: Any) -> str:
    """Return the source of a function or a class, or its bytecode if there is no source."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        bytecode = getattr(getattr(code, "__code__", None), "co_code", None)
        return repr(bytecode) if bytecode is not None else repr(code)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
