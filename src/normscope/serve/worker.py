"""The process that holds the models and analyses, one text after the other.

The server runs it as a program. First comes a frame with the configuration, and the answer says
which models were loaded; then one answer for every question. When the server is gone the standard
input ends, and so does this process, in the middle of a computation if need be.
"""

from __future__ import annotations

import io
import os
import queue
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from normscope.errors import InputError, NormscopeError
from normscope.serve.frames import Frame, read_frame

MEMORY = "512MB"  # for the largest arrays of a feed-forward map


@dataclass(frozen=True)
class Loaded:
    """One model that may be asked for."""

    name: str
    model: Any
    tokenizer: Any
    maps: tuple[str, ...]
    max_length: int
    target: bool  # whether it is an encoder–decoder model

    def about(self) -> dict[str, Any]:
        """What the page shows of it."""
        from normscope.decomposition.scopes import SCOPES

        return {
            "name": self.name,
            "maps": list(self.maps),
            "titles": {name: SCOPES[name].title for name in self.maps},
            "max_length": self.max_length,
            "target": self.target,
        }


def load(
    names: list[str | None], device: str | None, dtype: str | None, max_length: int
) -> dict[str, Loaded]:
    """The models by the names that a request may use."""
    from normscope.decomposition.available import available
    from normscope.models import identity
    from normscope.models import load as load_model
    from normscope.text.limits import max_length_of

    models: dict[str, Loaded] = {}
    for given in names:
        model, tokenizer = load_model(given, device=device, dtype=dtype)
        name = str(identity(model)["name"])
        if name in models:
            raise InputError(f"two models are called {name!r}; serve one of them at a time")
        has = {one for names in available(model).values() for one in names}
        limit = max_length_of(model.config, tokenizer)
        models[name] = Loaded(
            name,
            model,
            tokenizer,
            ("attn_w", "attn_n", *(one for one in _order() if one in has)),
            min(max_length, limit or max_length),
            bool(getattr(model.config, "is_encoder_decoder", False)),
        )
    return models


def _order() -> tuple[str, ...]:
    from normscope.decomposition.scopes import NAMES

    return tuple(name for name in NAMES if name not in ("attn_w", "attn_n"))


def analyse(asked: Mapping[str, Any], models: Mapping[str, Loaded], max_cells: int) -> Frame:
    """One result as an HTML page and as a safetensors file."""
    import normscope
    from normscope.show.page import page

    chosen = models[asked["model"]]
    _check_size(asked, chosen, max_cells)
    result = normscope.analyze(
        chosen.model,
        chosen.tokenizer,
        asked["text"],
        text_pair=asked["text_pair"],
        target=asked["target"],
        maps=asked["maps"],
        heads=asked["heads"],
        memory=MEMORY,
    )
    with tempfile.TemporaryDirectory(prefix="normscope-") as folder:
        file = Path(folder) / "result.safetensors"
        result.save(file)
        saved = file.read_bytes()
    gap = max(result.error.values(), default=0.0)
    about = {"signature": result.signature, "reconstruction_error": gap}
    return Frame(about, {"html": page(result).encode(), "safetensors": saved})


def _check_size(asked: Mapping[str, Any], chosen: Loaded, max_cells: int) -> None:
    """Refuse what is too long, before the model sees it."""
    from normscope.text.tokens import encode

    def length(name: str, pair: str | None = None, *, as_target: bool = False) -> int:
        encoded = encode(
            chosen.tokenizer,
            asked[name],
            pair,
            max_length=None,
            truncate=False,
            as_target=as_target,
        )
        if (count := len(encoded.ids)) > chosen.max_length:
            raise InputError(
                f"the {name} has {count} tokens, special tokens included, and this server takes "
                f"at most {chosen.max_length}; shorten it"
            )
        return count

    source = length("text", asked["text_pair"])
    target = length("target", as_target=True) if asked["target"] is not None else 0
    config = chosen.model.config.get_text_config()
    layers = getattr(config, "num_hidden_layers", 1) or 1
    heads = (getattr(config, "num_attention_heads", 1) or 1) if asked["heads"] == "each" else 1
    cells = source**2 + target**2 + source * target
    cells *= layers * heads * len(asked["maps"])
    if cells > max_cells:
        raise InputError(
            f"the result would have {cells:,} numbers, and this server makes at most "
            f"{max_cells:,}; choose fewer maps, sum the heads, or shorten the text"
        )


def convert(kind: str, saved: bytes) -> Frame:
    """A saved result as JSON or CSV."""
    import normscope
    from normscope.results import files as export

    with tempfile.TemporaryDirectory(prefix="normscope-") as folder:
        file = Path(folder) / "result.safetensors"
        file.write_bytes(saved)
        result = normscope.load(file)
    if kind == "json":
        return Frame({}, {"json": export.to_json(result)})
    table = io.BytesIO()
    export.write_csv(result, table)
    return Frame({}, {"csv": table.getvalue()})


def main() -> None:
    """Answer frames on standard input with frames on standard output."""
    # Ctrl-C in a terminal reaches every process of the group; the server decides, not this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what any library prints must not get between the frames
    asked: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, asked), daemon=True).start()
    configuration = asked.get().header
    models: dict[str, Loaded] = {}

    def start() -> Frame:
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        wanted = ("models", "device", "dtype", "max_length")
        models.update(load(*(configuration[name] for name in wanted)))
        return Frame({"models": [model.about() for model in models.values()]})

    _answer(answers, start)
    while True:
        question = asked.get()
        if question.header["task"] == "analyse":
            work = partial(analyse, question.header, models, configuration["max_cells"])
        else:
            work = partial(convert, question.header["to"], question.blobs["safetensors"])
        _answer(answers, work)


def _answer(answers: BinaryIO, work: Callable[[], Frame]) -> None:
    """Send what `work` gives, or what it says went wrong."""
    try:
        frame = work()
    except NormscopeError as error:
        frame = Frame({"error": str(error), "mistake": True})
    except Exception as error:
        traceback.print_exc()
        frame = Frame({"error": f"unexpected {type(error).__name__}", "mistake": False})
    answers.write(frame.pack())
    answers.flush()


def _listen(file: BinaryIO, asked: queue.SimpleQueue[Frame]) -> None:
    while (frame := read_frame(file)) is not None:
        asked.put(frame)
    os._exit(0)  # the server is gone: no answer is awaited, and nothing here needs closing


if __name__ == "__main__":
    main()
