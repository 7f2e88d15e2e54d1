"""Sentiment: which tokens a fine-tuned encoder needs, by every method (SST-2).

Three papers at once: DecompX's Table 1 (tokens masked), ALTI's table (tokens deleted) and GlobEnc's
correlations of rollouts with gradients.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.attribution.options import Question
from normscope.errors import InputError
from normscope.faithfulness.conventions import Figure, conventions_for
from normscope.faithfulness.evaluation import FaithfulnessMeter, TextRecord
from normscope.faithfulness.methods import calls_of
from normscope.faithfulness.result import MethodFigures
from normscope.foundation.files import make_folder, write_file
from normscope.foundation.progress import stage
from normscope.foundation.texts import json_line
from normscope.models.loading import load
from normscope.models.sources import find_source
from normscope.reproduce.comparisons import (
    MeasuredTables,
    MethodExperiment,
    described,
    long_table,
    measured_rows,
)
from normscope.reproduce.exhibits import table_of
from normscope.reproduce.finetune import (
    FineTuning,
    accuracy,
    new_classifier,
    read_split,
    token_ids,
    train,
)
from normscope.reproduce.options import SST2, ReproduceOptions
from normscope.reproduce.rollouts import correlations
from normscope.reproduce.sst2_exhibits import EXHIBITS, PAPER, findings
from normscope.reproduce.yardsticks import SIZES

FOLDER = "model"  # of the classifier, in the folder of the report
WHERE = (
    "give --data train.tsv and --valid dev.tsv, with lines `sentence<TAB>label`, such as SST-2 of "
    "GLUE (gluebenchmark.com) or of the Stanford Sentiment Treebank (nlp.stanford.edu/sentiment)"
)
METHODS = (
    "decompx",
    "frozen",
    "secant@[MASK]",
    "integrated_gradients:steps=20@[MASK]",
    "integrated_gradients:steps=10@zero",
    "attn_lrp",
    "rollout:alti",
    "rollout:alti_l2",
    "rollout:globenc,normalize=no",
    "rollout:globenc_ff,normalize=no",
    "rollout:attn_res_ln_n",
    "rollout:attn_w",
    "rollout:value_zeroing",
    "input_x_gradient",
    *SIZES,
    "gradient_norm",
    "chefer",
    "blank_out",
    "erasure",
    "random",
)
FIGURES = (
    Figure("accuracy", "accuracy when the most important tokens are masked", False),
    Figure("aopc", "mean loss of probability, most important tokens masked", True),
    Figure("aopc_least", "mean loss of probability, least important tokens masked", False),
    Figure("comprehensiveness", "loss without the most important tokens", True),
    Figure("sufficiency", "loss with nothing but the most important tokens", False),
)


@dataclass(frozen=True, eq=False)
class Classifier:
    """A classifier and the sentences it is measured on."""

    model: Any
    tokenizer: Any
    sentences: list[str]
    labels: NDArray[np.int64]
    about: str  # how it was trained


# ---- the model


def classifier_of(options: ReproduceOptions) -> Classifier:
    """Return a classifier: the given one, or an encoder that is fine-tuned now or was before."""
    if len(options.valid) != 1:
        raise InputError(f"give one file to measure on; {WHERE}")
    sentences, labels = read_split(options.valid[0])
    sentences, labels = sentences[: options.sequences], labels[: options.sequences]
    location = find_source(options.model, options.revision).location
    if _is_classifier(location):
        model, tokenizer = load(location, device=options.device, dtype=options.dtype)
        if model.config.num_labels != 2:
            raise InputError(f"{SST2} needs two labels; the model has {model.config.num_labels}")
        return Classifier(model, tokenizer, sentences, labels, "used as it is")
    if len(options.data) != 1:
        raise InputError(f"give one file to fine-tune on; {WHERE}")
    tuning = FineTuning(steps=options.steps, seed=options.seed)
    train_sentences, train_labels = read_split(options.data[0])
    about = {
        "encoder": Path(location).name,
        "updates": tuning.updates(len(train_sentences)),
        "sentences": len(train_sentences),
        "data": described(options.data),
        "seed": options.seed,
    }
    folder = None if options.output is None else options.output / FOLDER
    model, tokenizer = _fine_tuned(location, folder, about, options, lambda m, t: train(
        m, t, train_sentences, train_labels, tuning
    ))  # fmt: skip
    if options.dtype is not None:
        model = model.to(getattr(torch, options.dtype))
    words = "{updates:,} updates on {sentences:,} sentences, {data}, seed {seed}".format(**about)
    return Classifier(model, tokenizer, sentences, labels, f"{about['encoder']}, {words}")


def _is_classifier(location: str) -> bool:
    config = Path(location) / "config.json"
    if not config.is_file():
        return False
    names = json.loads(config.read_text(encoding="utf-8")).get("architectures") or []
    return any(name.endswith("ForSequenceClassification") for name in names)


def _fine_tuned(
    location: str,
    folder: Path | None,
    about: Mapping[str, Any],
    options: ReproduceOptions,
    trained: Callable[[Any, Any], None],
) -> tuple[Any, Any]:
    """Train a classifier, or read the one that an earlier run left in the folder."""
    note = None if folder is None else folder / "about.json"
    if note is not None and note.is_file() and not options.restart:
        assert folder is not None
        if json.loads(note.read_text(encoding="utf-8")) != about:
            raise InputError(
                f"the classifier in {str(folder)!r} was trained in another way; give another "
                "--output, or --restart"
            )
        model, tokenizer = load(folder, device=options.device)
        return model, tokenizer
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        model, tokenizer = new_classifier(location, options.device or "cpu")
        trained(model, tokenizer)
    if folder is None or note is None:
        return model, tokenizer
    make_folder(folder)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_file(note, json_line(about))
    saved: tuple[Any, Any] = load(folder, device=options.device)  # as a later run reads it
    return saved


# ---- the measurement


def measure(options: ReproduceOptions) -> MeasuredTables:
    """Fine-tune the classifier and measure every method on every sentence."""
    given = classifier_of(options)
    meter = _meter(given, options)
    records = _records(given, meter, options)
    figures = figures_of(meter, records, given.labels)
    rho = correlations(given.model, given.tokenizer, given.sentences, given.labels, options)
    tables = {
        "figures": table_of(long_table(figures)),
        "correlations": table_of(long_table(rho)),
    }
    signature = meter.signature.with_settings(meter.settings()).text()
    return MeasuredTables(tables, _facts(given, options), _warnings(given), signature)


def _meter(given: Classifier, options: ReproduceOptions) -> FaithfulnessMeter:
    names = options.method or METHODS
    mask = f"@{given.tokenizer.mask_token}"
    methods = {name: SIZES.get(name, name.replace("@[MASK]", mask)) for name in names}
    by_metric = {
        "aopc": {"average": "each", "replacement": "mask", "orders": ("most", "least")},
        "comprehensiveness": "alti-released",
        "sufficiency": "alti-released",
    }
    calls = calls_of(methods, given.tokenizer, options.seed)
    conventions = conventions_for(tuple(by_metric), by_metric)
    return FaithfulnessMeter(given.model, given.tokenizer, calls, conventions, truncate=True)


def _records(
    given: Classifier, meter: FaithfulnessMeter, options: ReproduceOptions
) -> list[TextRecord]:
    question = Question().checked()

    def work(chunk: list[int], count: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        texts = [given.sentences[at] for at in chunk]
        found = meter.records(texts, [question] * len(texts))
        count(len(chunk))
        for at, record in zip(chunk, found, strict=True):
            yield at, record.to_dict()

    header = {
        "signature": meter.signature.with_settings(meter.settings()).text(),
        "data": described(options.valid),
    }
    stage("measuring the methods")
    rows = measured_rows(options, "methods", header, len(given.sentences), work)
    return [TextRecord.from_dict(row) for row in rows]


def figures_of(
    meter: FaithfulnessMeter, records: Sequence[TextRecord], labels: NDArray[np.int64]
) -> MethodFigures:
    """Return the papers' figures from the losses of every step.

    With two labels, the probability of the class that was predicted for the whole sentence says
    which class is predicted for a changed one.
    """
    names = [figure.name for figure in meter.figures]
    most = [at for at, name in enumerate(names) if name.startswith("aopc@")]
    least = [at for at, name in enumerate(names) if name.startswith("aopc_least@")]
    whole = np.array([record.value for record in records])[:, None]
    predicted = np.array([record.answer[0] for record in records])
    right_before = (predicted == labels)[:, None]
    values = {}
    for call in meter.calls:
        losses = np.array([record.figures[call.name] for record in records])
        unchanged = whole - losses[:, most] > 0.5
        columns = [
            100 * (unchanged == right_before).mean(-1),
            losses[:, most].mean(-1),
            losses[:, least].mean(-1),
            losses[:, names.index("comprehensiveness")],
            losses[:, names.index("sufficiency")],
        ]
        values[call.name] = np.stack(columns, axis=-1)
    return MethodFigures(FIGURES, values)


def _facts(given: Classifier, options: ReproduceOptions) -> dict[str, str]:
    rows = token_ids(given.tokenizer, given.sentences)
    pad = given.tokenizer.pad_token_id
    right = accuracy(given.model, rows, given.labels, pad)
    config = given.model.config
    size = (
        f"{config.num_hidden_layers} layers, {config.num_attention_heads} heads, hidden size "
        f"{config.hidden_size}"
    )
    return {
        "classifier": f"{type(given.model).__name__} ({size}); {given.about}",
        "data": described(options.valid),
        "sentences": f"{len(rows):,} with {sum(map(len, rows)):,} tokens; accuracy {right:.1%}",
    }


def _warnings(given: Classifier) -> tuple[str, ...]:
    config = given.model.config
    shape = config.model_type, config.num_hidden_layers, config.hidden_size
    if shape == ("bert", 12, 768):
        return ()
    return (
        "This is not the papers' model. DecompX and GlobEnc use BERT-base, ALTI RoBERTa-base and "
        f"DistilBERT, fine-tuned on SST-2; this report uses a {config.model_type} model of "
        f"{config.num_hidden_layers} layers with hidden size {config.hidden_size}. Its numbers "
        "show whether the order of the methods holds for another model, and do not replace the "
        "papers' numbers.",
    )


EXPERIMENT = MethodExperiment(
    SST2, PAPER, measure, EXHIBITS, findings, used=("data", "valid", "steps", "method")
)
