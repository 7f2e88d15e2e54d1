"""The worker process, which holds the models and runs one analysis at a time.

The server runs this module as a program. The first line on standard input is the configuration; its
answer describes the loaded models. Every further line is a question. It is answered by two lines:
the first when the question has been read, the second when its files have been written. When the
server ends, so does standard input, and this process removes the files and ends at once, even
during a computation.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from normscope.decomposition.scopes import HEAD_MAPS, NAMES, PER_HEAD, SCOPES, Scope
from normscope.errors import InputError, NormscopeError
from normscope.foundation.files import make_folder

if TYPE_CHECKING:
    from normscope.results.attribution import Attribution
    from normscope.results.contributions import Contributions

MEMORY = "512MB"  # for the largest arrays of a feed-forward map
NAMED = {"similar_to": "text to be similar to"}
# The fields of a request that `attribute` takes under the same names.
ASKED = (
    *("answer", "foil", "text_pair", "target", "continuation", "generate", "similar_to"),
    *("position", "baseline"),
)


@dataclass(frozen=True)
class ServedModel:
    """A model that clients can select."""

    name: str
    model: Any
    tokenizer: Any
    maps: tuple[str, ...]
    max_length: int
    target: bool  # whether it is an encoder–decoder model, which reads a target too
    questions: Mapping[str, Any]  # what can be asked of it, as `describe_questions` returns it

    def describe(self) -> dict[str, Any]:
        """Return what the page needs to know about the model."""
        scopes = [SCOPES[name] for name in self.maps]
        return {
            "name": self.name,
            "maps": list(self.maps),
            "titles": {scope.name: scope.title for scope in scopes},
            "per_head": [scope.name for scope in scopes if scope.per_head],
            "suggested": [scope.name for scope in scopes if _is_suggested(scope)],
            "max_length": self.max_length,
            "target": self.target,
            **self.questions,
        }


def _is_suggested(scope: Scope) -> bool:
    """Return whether the page selects a map at first.

    These are the weights, the norms, the attention block and the whole layer.
    """
    whole_layer = scope.end == "ff_norm" or (
        scope.end == "ff_residual" and scope.ff_norm_before is True
    )
    return scope.name in HEAD_MAPS or scope.end == "norm" or whole_layer


def load_models(
    names: list[str | None], device: str | None, dtype: str | None, max_length: int
) -> dict[str, ServedModel]:
    """Load models and return them by the names that requests use."""
    from normscope.decomposition.available import available
    from normscope.models import identity, load
    from normscope.serve.questions import describe_questions
    from normscope.text.limits import max_length_of

    models: dict[str, ServedModel] = {}
    for source in names:
        model, tokenizer = load(source, device=device, dtype=dtype)
        name = str(identity(model)["name"])
        if name in models:
            raise InputError(f"two of the models are named {name!r}; serve only one of them")
        layer_maps = {scope for part in available(model).values() for scope in part}
        limit = max_length_of(model.config, tokenizer)
        models[name] = ServedModel(
            name,
            model,
            tokenizer,
            tuple(scope for scope in NAMES if scope in PER_HEAD or scope in layer_maps),
            min(max_length, limit or max_length),
            bool(getattr(model.config, "is_encoder_decoder", False)),
            describe_questions(model, tokenizer),
        )
    return models


def analyse(
    request: Mapping[str, Any], models: Mapping[str, ServedModel], max_cells: int
) -> dict[str, Any]:
    """Run an analysis, write its result into the folder of the request, and describe it."""
    import normscope

    served = models[request["model"]]
    _check_size(request, served, max_cells)
    result = normscope.analyze(
        served.model,
        served.tokenizer,
        request["text"],
        text_pair=request["text_pair"],
        target=request["target"],
        maps=request["maps"],
        heads=request["heads"],
        memory=MEMORY,
    )
    return _write(result, max(result.error.values(), default=0.0), request["folder"])


def explain(
    request: Mapping[str, Any], models: Mapping[str, ServedModel], max_cells: int
) -> dict[str, Any]:
    """Attribute an output of a model to its input, otherwise like `analyse`."""
    import normscope

    served = models[request["model"]]
    _check_shares(request, served, max_cells)
    asked = {name: request.get(name) for name in ASKED}
    trace = bool(request.get("trace"))
    result = normscope.attribute(
        served.model, served.tokenizer, request["text"], trace=trace, **asked
    )
    return _write(result, result.error, request["folder"])


def _write(result: Contributions | Attribution, error: float, folder: str) -> dict[str, Any]:
    """Write a result as an HTML page and a safetensors file, and describe it."""
    from normscope.results.files import write

    make_folder(folder)
    for kind in ("html", "safetensors"):
        write(result, str(Path(folder) / f"normscope.{kind}"))
    return {"signature": result.signature, "reconstruction_error": error}


def _check_size(request: Mapping[str, Any], served: ServedModel, max_cells: int) -> None:
    """Raise InputError if a text or the result is too long, before the model runs."""
    source = _count_tokens(request, "text", served, pair=request["text_pair"])
    target = 0
    if request["target"] is not None:
        target = _count_tokens(request, "target", served)
    config = served.model.config.get_text_config()
    layers = getattr(config, "num_hidden_layers", 1) or 1
    heads = (getattr(config, "num_attention_heads", 1) or 1) if request["heads"] == "each" else 1
    cells = source**2 + target**2 + source * target
    cells *= layers * heads * len(request["maps"])
    _check_cells(cells, max_cells, "select fewer maps, sum the heads")


def _check_shares(request: Mapping[str, Any], served: ServedModel, max_cells: int) -> None:
    """Raise InputError if texts are too long or shares too many, before the model runs."""
    tokens = _count_tokens(request, "text", served, pair=request.get("text_pair"))
    counts = {
        name: _count_tokens(request, name, served)
        for name in ("answer", "foil", "continuation", "target", "similar_to", "baseline")
        if request.get(name) is not None
    }
    written = (counts.get(name, 0) for name in ("continuation", "target"))
    steps = max(1, request.get("generate") or 0, *written)
    added = max(steps, counts.get("answer", 0), counts.get("foil", 0))
    follows = served.questions["questions"][request["question"]]["follows"]
    if follows and tokens + added > served.max_length:
        raise InputError(
            f"the prompt has {tokens} tokens and {added} may follow, and this server accepts at "
            f"most {served.max_length} in all; shorten the prompt or what follows"
        )
    config = served.model.config.get_text_config()
    layers = (getattr(config, "num_hidden_layers", 1) or 1) if request.get("trace") else 0
    _check_cells(steps * (tokens + steps) * (4 + 2 * layers), max_cells, "leave out the layers")


def _check_cells(cells: int, max_cells: int, advice: str) -> None:
    if cells > max_cells:
        raise InputError(
            f"the result would have {cells:,} numbers, and the limit of this server is "
            f"{max_cells:,}; {advice}, or shorten the text"
        )


def _count_tokens(
    request: Mapping[str, Any], name: str, served: ServedModel, pair: str | None = None
) -> int:
    from normscope.text.tokens import encode

    encoded = encode(
        served.tokenizer,
        request[name],
        pair,
        max_length=None,
        truncate=False,
        as_target=name == "target",
        framed=name not in ("answer", "foil", "continuation"),
    )
    count = len(encoded.ids)
    if count > served.max_length:
        raise InputError(
            f"the {NAMED.get(name, name)} has {count} tokens including special tokens, and this "
            f"server accepts at most {served.max_length}; shorten it"
        )
    return count


def convert(kind: str, folder: str) -> dict[str, Any]:
    """Write a saved result as JSON or CSV, beside it."""
    import normscope
    from normscope.results.files import write

    saved = Path(folder) / "normscope.safetensors"
    write(normscope.load(saved), str(saved.with_suffix(f".{kind}")))
    return {}


def main() -> None:
    """Answer the lines on standard input by lines on standard output."""
    # Ctrl-C in a terminal interrupts all processes; the server ends this one when it is ready.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries go to standard error and not between the answers
    questions: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    configuration = json.loads(sys.stdin.buffer.readline())
    listen = partial(_listen, sys.stdin.buffer, questions, configuration["folder"])
    threading.Thread(target=listen, daemon=True).start()
    models: dict[str, ServedModel] = {}

    def start() -> dict[str, Any]:
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        arguments = [configuration[name] for name in ("models", "device", "dtype", "max_length")]
        models.update(load_models(*arguments))
        return {"models": [served.describe() for served in models.values()]}

    _answer(answers, start)
    while True:
        question = questions.get()
        if question["task"] == "analyse":
            task = partial(analyse, question, models, configuration["max_cells"])
        elif question["task"] == "explain":
            task = partial(explain, question, models, configuration["max_cells"])
        else:
            task = partial(convert, question["to"], question["folder"])
        _answer(answers, task)


def _answer(answers: BinaryIO, task: Callable[[], dict[str, Any]]) -> None:
    """Send that a task begins, and then what it returns, or its error."""
    _send(answers, {"begun": True})
    try:
        answer = task()
    except NormscopeError as error:
        answer = {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        answer = {"error": f"unexpected {type(error).__name__}"}
    _send(answers, answer)


def _send(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode("ascii") + b"\n")
    answers.flush()


def _listen(file: BinaryIO, questions: queue.SimpleQueue[dict[str, Any]], folder: str) -> None:
    for line in file:
        questions.put(json.loads(line))
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # the server has ended; nothing here needs to be closed


if __name__ == "__main__":
    main()
