"""Valid files of every format that normscope reads, small, for damage.py."""

from __future__ import annotations

import io
import json
import pickle
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

from normscope import attribute_inputs
from normscope.corpus.checkpoint import Checkpoint
from normscope.corpus.output import CorpusResult
from normscope.corpus.records import Position, Problem
from normscope.corpus.work import Outcome, Progress
from normscope.measures.analysis import analyze_inputs
from normscope.measures.statistics.base import Table
from normscope.models import load
from normscope.models.architectures import tiny_inputs, tiny_model
from tests.helpers.gguf_models import write_gguf
from tests.helpers.saved_models import SMALL, save

INDEX = "model.safetensors.index.json"
PART = "model-00001-of-00002.safetensors"
SIDES = [b'{"source": {"normalization": "moses"}, "target": null}', b'{"languages": ["de", "en"]}']
LINKS = {
    "pharaoh": b"0-0 1-2 2-1\n\n3-3 4-4\n",
    "talp": b"1-1 2p3 3-2\n4-4\n",
    "jsonl": b'{"links": [[0, 0, 0.5], [1, 2, 0.25]]}\n{"links": [[0, 0]], "possible": [[1, 2]]}\n',
    "giza": (
        b"# Sentence pair (1) source length 2 target length 2 alignment score : 0.1\nein Haus\n"
        b"NULL ({ }) a ({ 1 }) house ({ 2 })\n"
    ),
}


def results() -> list[bytes]:
    """Return result files: of one stack, of two, and of an attribution."""
    made = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "it.safetensors"
        for name in ("bert", "marian"):
            model, inputs = tiny_model(name), tiny_inputs(name, batch=1, length=3)
            analyze_inputs(model, inputs)[0].save(path)
            made.append(path.read_bytes())
        model, inputs = tiny_model("gpt2"), tiny_inputs("gpt2", batch=1, length=3)
        attribute_inputs(model, inputs, answer=5, trace=True)[0].save(path)
        made.append(path.read_bytes())
    return made


def corpora() -> dict[str, bytes]:
    """Return corpora, and questions for an attribution of each row, by format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"text": "a cat", "text_pair": "b"}, {"text": "ein Haus é"}, {"text": "x" * 40}]
    asked = [{"text": "The cat", "answer": " sat", "foil": " is"}, {"text": "a", "target": "b"}]
    file = io.BytesIO()
    table = pa.table({"text": ["a cat", None, "a dog"] * 2, "text_pair": ["b", "c", None] * 2})
    pq.write_table(table, file, row_group_size=2)
    return {
        "text": "a cat\nein Haus é\n\nthe end\n".encode(),
        "jsonl": "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode(),
        "tsv": "text\ttext_pair\na cat\tb\nein Haus\té\n".encode(),
        "parquet": file.getvalue(),
        "asked": "\n".join(map(json.dumps, asked)).encode(),
        "csv": b'text,answer\n"The, cat", sat\nno," ""is"""\n',
    }


def pickles() -> list[bytes]:
    """Return pickles of the layout that is read, in several protocols."""
    rows = [{"tokens": ["[CLS]", "a", "[SEP]"], "attns": np.ones((1, 2, 3, 3), np.float16)}]
    return [pickle.dumps(rows, protocol) for protocol in (0, 2, 4)]


def _outcome() -> Outcome:
    states = {"norms": {"count": np.arange(4), "mean": np.float64(0.5), "names": ("a", "b")}}
    return Outcome(states, 4, 3, 40, 1, {"empty": 1}, (Problem("it, line 2", "empty", "no text"),))


def checkpoint() -> bytes:
    """Return the checkpoint of a run."""
    identity = {"model": "m", "data": {"files": ["it"], "rows": 4}}
    progress = Progress(_outcome(), Outcome(), 16)
    return Checkpoint(identity, progress, Position(0, 12, 2), {"starts": 1}).to_bytes()


def finished() -> bytes:
    """Return the statistics.json of a finished run."""
    table = Table({"layer": [0, 1], "mean": [0.5, float("nan")]}, "A table", notes="sums")
    outcome = _outcome()
    result = CorpusResult(
        {"norms": table}, "signature", outcome.counts(), outcome.problems, {"model": "m"}, {}, None
    )
    return json.dumps(result.to_dict()).encode()


def gguf() -> bytes:
    """Return a model in the GGUF format."""
    with tempfile.TemporaryDirectory() as folder:
        write_gguf(Path(folder) / "it.gguf")
        return (Path(folder) / "it.gguf").read_bytes()[:4096]


@cache
def model_folder() -> Path:
    """Save a model in two parts, with its tokenizer; the folder stays while the process runs."""
    folder = Path(_place().name)
    config = BertConfig(**SMALL, hidden_size=8, intermediate_size=8, max_position_embeddings=16)
    with torch.random.fork_rng(devices=[]):
        save(BertForMaskedLM(config), folder)
    model = BertForMaskedLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="4KB")
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    assert names == [PART, PART.replace("00001-of", "00002-of")], names
    return folder


@cache
def _place() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="normscope-damage-")


def load_model(folder: Path) -> None:
    """Load the model of a folder, with its tokenizer."""
    load(folder)
