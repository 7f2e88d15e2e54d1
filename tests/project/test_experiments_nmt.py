"""The translation experiment, small: its model is Marian, it resumes, it reads what it wrote."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the experiments are no part of the package

from experiments.nmt import (
    clean,
    evaluate,
    export,
    gold,
    pack,
    prepare,
    report,
    reproduce,
    text,
    train,
)
from experiments.nmt.batches import IGNORED, Corpus
from experiments.nmt.model import Record, Shape, Translator, sinusoids, translation_loss
from experiments.nmt.recipes import RECIPES, Recipe
from experiments.nmt.subwords import EOS, MARK, PAD, UNK

GERMAN = [
    "der",
    "hund",
    "die",
    "katze",
    "das",
    "haus",
    "ein",
    "mann",
    "sieht",
    "liebt",
    "kauft",
    "rot",
    "alt",
    "klein",
    "heute",
    "nicht",
    "ß",
]
ENGLISH = [
    "the",
    "dog",
    "the",
    "cat",
    "the",
    "house",
    "a",
    "man",
    "sees",
    "loves",
    "buys",
    "red",
    "old",
    "small",
    "today",
    "not",
    "eszett",
]


def _sentences(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Word-for-word translations, turned round on the target side."""
    draw = np.random.default_rng(seed)
    lines: tuple[list[str], list[str]] = ([], [])
    for _ in range(count):
        chosen = draw.integers(0, len(GERMAN), draw.integers(2, 9))
        lines[0].append(" ".join(GERMAN[i] for i in chosen))
        lines[1].append(" ".join(ENGLISH[i] for i in chosen[::-1]))
    return lines


@pytest.fixture(scope="module")
def corpus() -> pack.Pack:
    made, _ = prepare.prepare(
        _sentences(600, 0), _sentences(20, 1), ("de", "en"), vocabulary=60, longest=30
    )
    return made


def _random_model(**options: Any) -> Translator:
    torch.manual_seed(0)
    shape = Shape(40, 50, hidden=16, heads=2, feedforward=24, encoder_layers=2, decoder_layers=3)
    model = Translator(Shape(**{**vars(shape), **options}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model.eval()


def _ids(high: int, *lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(3, high, (len(lengths), max(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.where(mask, ids, PAD), mask


@pytest.mark.parametrize("tied", [False, True])
def test_the_model_is_marian(tied: bool, tmp_path: Path, corpus: pack.Pack) -> None:
    """Logits, attention and f(x) are those of transformers' model with the exported weights."""
    from transformers import MarianMTModel

    model = _random_model(tied=tied)
    export.write_folder(
        model, corpus.tokenizers, tmp_path, languages=("de", "en"), dtype=torch.float32
    )
    marian = MarianMTModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    source, mask = _ids(40, 7, 4, 5)
    target, _ = _ids(50, 6, 6, 6)
    with torch.no_grad():
        theirs = marian(
            input_ids=source,
            attention_mask=mask.long(),
            decoder_input_ids=target,
            output_attentions=True,
        )
        ours = model(source, target, mask[:, None, None])
        record = Record()
        memory = model.encode(source, mask[:, None, None])
        model.decode(target, memory, mask[:, None, None], record)
    torch.testing.assert_close(ours, theirs.logits, atol=2e-5, rtol=1e-5)
    assert float(ours.std()) > 0.1
    for number, alpha in enumerate(record.alpha):
        torch.testing.assert_close(alpha, theirs.cross_attentions[number], atol=1e-5, rtol=1e-4)
        attention = marian.model.decoder.layers[number].encoder_attn
        value = attention.v_proj(theirs.encoder_last_hidden_state).view(3, 7, 2, 8)
        for head in range(2):
            part = attention.out_proj.weight[:, 8 * head : 8 * head + 8]
            expected = value[:, :, head] @ part.T
            torch.testing.assert_close(
                record.transformed[number][:, head], expected, atol=1e-5, rtol=1e-4
            )


def test_the_folder_loads_by_its_name(tmp_path: Path, corpus: pack.Pack) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    sizes = [tokenizer.get_vocab_size() for tokenizer in corpus.tokenizers]
    model = _random_model(source_vocabulary=sizes[0], target_vocabulary=sizes[1])
    export.write_folder(model, corpus.tokenizers, tmp_path, languages=("de", "en"))
    marian = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float32)
    source = AutoTokenizer.from_pretrained(tmp_path)
    target = AutoTokenizer.from_pretrained(tmp_path / "target")
    inputs = source("Der Hund ß", return_tensors="pt")
    assert source.convert_ids_to_tokens(inputs.input_ids[0].tolist())[-1] == "</s>"
    assert source.decode(inputs.input_ids[0], skip_special_tokens=True) == "der hund ss"
    words = target(["the", "dog"], is_split_into_words=True)
    assert words.word_ids()[-1] is None
    assert set(words.word_ids()[:-1]) == {0, 1}
    found = marian.generate(
        input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=4
    )
    assert found[0, 0] == EOS
    about = json.loads((tmp_path / "normscope.json").read_text(encoding="utf-8"))
    assert about["lowercase"] is True
    assert ["ß", "ss"] in about["replace"]


def test_positions_are_marians() -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(20, 12).create_weight()
    torch.testing.assert_close(sinusoids(20, 12), theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("precision", "bound"), [("float16", 1e-3), ("int8", 1 / 200)])
def test_parts_join_again(
    precision: str, bound: float, tmp_path: Path, corpus: pack.Pack, monkeypatch: Any
) -> None:
    model = _random_model()
    monkeypatch.setattr(export, "LARGEST", 8000)
    written = export.write_parts(
        model, corpus.tokenizers, tmp_path, precision=precision, about={"seed": 3}
    )
    assert len(written) > 4
    assert max(path.stat().st_size for path in written[:-1]) <= 8000
    joined, tokenizers, about = export.read_parts(tmp_path)
    assert about == {"seed": 3}
    assert tokenizers[0].to_str() == corpus.tokenizers[0].to_str()
    assert joined.shape == model.shape
    for name, value in model.state_dict().items():
        gap = (joined.state_dict()[name] - value).abs().max() / value.abs().max()
        assert 0 <= gap <= bound
        if value.ndim == 2 and precision == "int8":
            assert gap > 0


def test_loss_is_cross_entropy() -> None:
    hidden, weight = torch.randn(2, 5, 8), torch.randn(11, 8)
    labels = torch.randint(0, 11, (2, 5))
    labels[1, 3:] = IGNORED
    smooth, plain = translation_loss(hidden, weight, labels, 0.1)
    logits = (hidden @ weight.T).flatten(0, 1)
    for mine, smoothing in ((smooth, 0.1), (plain, 0.0)):
        theirs = torch.nn.functional.cross_entropy(
            logits, labels.flatten(), label_smoothing=smoothing, reduction="sum"
        )
        torch.testing.assert_close(mine, theirs)


def test_batches_hold_every_pair_once(corpus: pack.Pack) -> None:
    one, other = corpus.train
    data = Corpus(one, other, torch.device("cpu"))
    seen = []
    for chosen in data.plan(100, (1, 0), smallest=0.0):
        batch = data.batch(chosen)
        assert max(batch.source.numel(), batch.labels.numel()) <= 100
        for row, number in enumerate(chosen):
            start, length = one.starts()[number], one.lengths[number]
            assert batch.source[row].tolist() == [*one.ids[start : start + length], EOS]
            start, length = other.starts()[number], other.lengths[number]
            ids = other.ids[start : start + length].tolist()
            blank = batch.labels.shape[1] - length - 1
            assert batch.labels[row].tolist() == [*ids, EOS, *[IGNORED] * blank]
            assert batch.target[row].tolist()[: length + 1] == [EOS, *ids]
        seen += chosen.tolist()
    assert sorted(seen) == list(range(len(data)))
    again = data.plan(100, (1, 0), smallest=0.0)
    assert [i for batch in again for i in batch.tolist()] == seen
    assert [i for batch in data.plan(100, (1, 1)) for i in batch.tolist()] != seen


def test_target_padding_changes_nothing(corpus: pack.Pack) -> None:
    """Batches carry no mask: a pair's outputs must not depend on what it is batched with."""
    sizes = [tokenizer.get_vocab_size() for tokenizer in corpus.tokenizers]
    model = _random_model(source_vocabulary=sizes[0], target_vocabulary=sizes[1])
    data = Corpus(*corpus.train, torch.device("cpu"))
    chosen = max(data.plan(200, None), key=lambda batch: len(set(data.lengths[1][batch])))
    batch = data.batch(chosen)
    assert (batch.labels == IGNORED).any()
    with torch.no_grad():
        together = model(batch.source, batch.target)
        for row, number in enumerate(chosen):
            alone = data.batch(np.array([number]))
            length = alone.target.shape[1]
            torch.testing.assert_close(
                together[row, :length], model(alone.source, alone.target)[0], atol=1e-5, rtol=1e-4
            )


def _options(folder: Path, *more: str) -> Any:
    return train.parser().parse_args(
        ["--corpus", "x", "--output", str(folder), "--log-every", "5", *more]
    )


TINY = Recipe(
    hidden=32, heads=2, feedforward=48, encoder_layers=1, decoder_layers=2, rate=5e-3, warmup=20,
    tokens=400, average=0.9,
)  # fmt: skip


def _training(corpus: pack.Pack) -> train.Training:
    return train.Training(corpus, TINY, 1, torch.device("cpu"))


def test_training_learns_resumes_and_exports(
    corpus: pack.Pack, tmp_path: Path, capsys: Any
) -> None:
    """Broken off and resumed, a run ends with bit for bit the weights of a run in one go."""
    whole = _training(corpus)
    result = train.run_training(corpus, whole, _options(tmp_path / "whole", "--steps", "90"))
    part = tmp_path / "part"
    train.run_training(
        corpus, _training(corpus), _options(part, "--steps", "90", "--stop-at", "37")
    )
    resumed = _training(corpus)
    train.run_training(corpus, resumed, _options(part, "--steps", "90", "--resume"))
    assert resumed.step == whole.step == 90
    assert resumed.epoch == whole.epoch > 0
    for (name, one), (_, other) in zip(
        whole.model.state_dict().items(), resumed.model.state_dict().items(), strict=True
    ):
        assert torch.equal(one, other), name
    log = [json.loads(line) for line in (tmp_path / "whole/log.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in log if entry["kind"] == "train"]
    assert losses[-1] < 0.7 * losses[0]
    assert result["valid_loss"] == pytest.approx(whole.validate(), abs=1e-4)
    model, _, about = export.read_parts(tmp_path / "whole")
    assert about["step"] == 90
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=2e-3, rtol=1e-3)
    further = _training(corpus)
    further.begin_with(tmp_path / "whole")
    assert further.validate() == pytest.approx(result["valid_loss"], abs=0.02)
    assert len((tmp_path / "whole/hypotheses.txt").read_text().splitlines()) == 20
    assert not list(tmp_path.rglob("*.part"))
    assert "BLEU" in capsys.readouterr().out


def test_another_recipe_does_not_resume(corpus: pack.Pack, tmp_path: Path) -> None:
    _training(corpus).save(tmp_path / "checkpoint.pt")
    other = train.Training(corpus, TINY, 2, torch.device("cpu"))
    with pytest.raises(ValueError, match="another recipe or seed"):
        other.resume(tmp_path / "checkpoint.pt")


def test_learning_rate_rises_falls_and_ends_at_zero() -> None:
    recipe = RECIPES["released"]
    assert train.learning_rate(recipe, 1, 0.0) == pytest.approx(1e-3 / 4000)
    assert train.learning_rate(recipe, 4000, 0.5) == pytest.approx(1e-3)
    assert train.learning_rate(recipe, 16000, 0.5) == pytest.approx(5e-4)
    assert train.learning_rate(recipe, 16000, 1 - recipe.cooldown / 2) == pytest.approx(2.5e-4)
    assert train.learning_rate(recipe, 16000, 1.0) == 0.0


def test_error_rates_equal_the_definition(tmp_path: Path, corpus: pack.Pack) -> None:
    """The dense AER against loops over words, pieces and links, every layer, head and reading."""
    sizes = [tokenizer.get_vocab_size() for tokenizer in corpus.tokenizers]
    model = _random_model(source_vocabulary=sizes[0], target_vocabulary=sizes[1])
    source, target = _sentences(7, 5)
    source[2] += " katzenhaus"
    links, draw = [], np.random.default_rng(2)
    for one, other in zip(source, target, strict=True):
        counts = one.count(" ") + 1, other.count(" ") + 1
        pairs = {(int(draw.integers(counts[0])), int(draw.integers(counts[1]))) for _ in range(9)}
        links.append({pair: "-p"[int(draw.integers(2))] for pair in pairs})
    for name, lines in (
        ("s", source),
        ("t", target),
        ("links", [" ".join(f"{s + 1}{k}{t + 1}" for (s, t), k in row.items()) for row in links]),
        ("turned", [" ".join(f"{t + 1}{k}{s + 1}" for (s, t), k in row.items()) for row in links]),
    ):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    paths = tmp_path / "s", tmp_path / "t"
    made = gold.read_gold(*paths, tmp_path / "links", corpus.tokenizers, turned=False)
    table = gold.error_rates(model, made, size=3)
    turned = gold.read_gold(*paths, tmp_path / "turned", corpus.tokenizers, turned=True)
    assert gold.error_rates(model, turned) == table
    for key, layer, head, rate in _slow_rates(model, corpus, source, target, links):
        assert table[key][layer][head] == pytest.approx(rate, abs=0.006)  # type: ignore[index]


def _slow_rates(
    model: Translator, corpus: pack.Pack, source: list[str], target: list[str], links: list[Any]
) -> Iterator[tuple[str, int, int, float]]:
    maps: dict[tuple[str, int, int], list[np.ndarray[Any, Any]]] = {}
    words = []
    for one, other in zip(source, target, strict=True):
        sides = [
            tokenizer.encode(line.split(), is_pretokenized=True, add_special_tokens=False)
            for tokenizer, line in zip(corpus.tokenizers, (one, other), strict=True)
        ]
        record = Record()
        with torch.no_grad():
            memory = model.encode(torch.tensor([[*sides[0].ids, EOS]]))
            model.decode(torch.tensor([[EOS, *sides[1].ids]]), memory, None, record)
        words.append([[int(word or 0) for word in side.word_ids] for side in sides])
        for layer in range(3):
            alpha, f = record.alpha[layer][0], record.transformed[layer][0]
            parts = torch.einsum("hqk,hkd->hqkd", alpha, f)
            for head in range(3):
                weights = alpha[head] if head < 2 else alpha.mean(0)
                norms = (parts[head] if head < 2 else parts.sum(0)).norm(dim=-1)
                maps.setdefault(("weights", layer, head), []).append(weights.numpy())
                maps.setdefault(("norms", layer, head), []).append(norms.numpy())
    for (name, layer, head), sentences in maps.items():
        for reading, shift in (("awi", 1), ("awo", 0)):
            found = hits = sure = 0
            for soft, (source_of, target_of), gold_links in zip(
                sentences, words, links, strict=True
            ):
                sure += sum(kind == "-" for kind in gold_links.values())
                end = max(source_of) + 1
                for t in range(max(target_of) + 1):
                    rows = [soft[i + shift] for i, word in enumerate(target_of) if word == t]
                    row = np.mean(rows, axis=0)
                    by_word = [
                        sum(row[i] for i, word in enumerate([*source_of, end]) if word == s)
                        for s in range(end + 1)
                    ]
                    s = int(np.argmax(by_word))
                    if s < end:
                        found += 1
                        kind = gold_links.get((s, t))
                        hits += (kind is not None) + (kind == "-")
            yield f"{name}_{reading}", layer, head, 100 * (1 - hits / (found + sure))


def test_corpus_files_are_read_as_they_come(tmp_path: Path) -> None:
    rows = [("Ja, „daß“ geht.", "Yes, that’s it."), ("Nr. 5 – Straße", "No. 5")]
    (tmp_path / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    with lzma.open(tmp_path / "a.tsv.xz", "wt", encoding="utf-8") as file:
        file.writelines(f"{a}\t{b}\n" for a, b in rows)
    for number, name in ((0, "a.de.gz"), (1, "a.en.gz")):
        with gzip.open(tmp_path / name, "wt", encoding="utf-8") as file:
            file.writelines(f"{row[number]}\n" for row in rows)
    for names in (["a.tsv"], ["a.tsv.xz"]):
        assert list(text.read_pairs([tmp_path / n for n in names], two_files=False)) == rows
    both = [tmp_path / "a.de.gz", tmp_path / "a.en.gz"]
    assert list(text.read_pairs(both, two_files=True)) == rows
    assert text.tokenize([row[0] for row in rows], "de") == [
        'ja , " dass " geht .',
        "nr. 5 - strasse",
    ]
    assert text.tokenize([rows[0][1]], "en") == ["yes , that 's it ."]
    (tmp_path / "bad.tsv").write_text("one\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"bad.tsv, line 1: 1 columns"):
        list(text.read_pairs([tmp_path / "bad.tsv"], two_files=False))
    (tmp_path / "short").write_text("one\n", encoding="utf-8")
    with pytest.raises(ValueError, match="number of lines"):
        list(text.read_pairs([both[0], tmp_path / "short"], two_files=True))


def test_the_command_line_prepares_and_trains(tmp_path: Path, capsys: Any) -> None:
    german, english = _sentences(200, 3)
    for name, lines in (("t.de", german), ("t.en", english), ("v.de", german), ("v.en", english)):
        (tmp_path / name).write_text("\n".join(lines[:150]) + "\n", encoding="utf-8")
    names = [str(tmp_path / name) for name in ("t.de", "t.en", "v.de", "v.en")]
    packed = str(tmp_path / "c.pack")
    for _ in range(2):  # the second time from the cache
        prepare.main(
            ["--train", *names[:2], "--valid", *names[2:], "--vocabulary", "60", "--output", packed,
             "--cache", str(tmp_path / "cache")]
        )  # fmt: skip
        assert json.loads(capsys.readouterr().out)["kept"] == 150
    train.main(
        ["--corpus", packed, "--direction", "en-de", "--recipe", "tiny", "--tokens", "300",
         "--steps", "3", "--leave-out", "0.1", "--output", str(tmp_path / "run"), "--device", "cpu"]
    )  # fmt: skip
    export.main([str(tmp_path / "run"), str(tmp_path / "model")])
    assert (tmp_path / "model/model.safetensors").exists()
    train.main(
        ["--corpus", packed, "--recipe", "tiny", "--tokens", "300", "--smoke", "--output", "x",
         "--device", "cpu"]
    )  # fmt: skip
    assert "median" in capsys.readouterr().out
    with pytest.raises(ValueError, match="de-fr"):
        pack.load(Path(packed)).direction("de-fr")


def test_a_pack_comes_back(corpus: pack.Pack, tmp_path: Path) -> None:
    pack.save(corpus, tmp_path / "p")
    again = pack.load(tmp_path / "p")
    for one, other in zip(
        (*again.train, *again.valid), (*corpus.train, *corpus.valid), strict=True
    ):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.lengths, other.lengths)
    assert again.valid_text == corpus.valid_text
    assert again.direction("en-de").train[0].ids.tolist() == corpus.train[1].ids.tolist()
    pieces = again.tokenizers[0].encode("Der Hund").tokens
    assert [piece.startswith(MARK) for piece in pieces].count(True) == 2
    assert again.tokenizers[0].encode("日").ids[-2:] == [UNK, EOS]


def test_translations_score_above_other_pairs() -> None:
    """Model 1 against loops, and what it is for: wrong pairs score low."""
    german, english = _sentences(300, 7)
    english[:30] = english[30:60]
    made, _ = prepare.prepare((german, english), (german, english), ("de", "en"), vocabulary=60)
    one, other = made.train
    sizes = [tokenizer.get_vocab_size() for tokenizer in made.tokenizers]
    index = np.arange(len(one))
    table = clean.translation_table(one, other, (sizes[0], sizes[1]), rounds=2, cells=5000)
    slow = np.full((sizes[0] + 1, sizes[1]), 1 / sizes[1])
    for _ in range(2):
        counts = np.zeros_like(slow)
        for n in index:
            sources = [sizes[0], *one.ids[one.starts()[n] :][: one.lengths[n]].tolist()]
            for piece in other.ids[other.starts()[n] :][: other.lengths[n]].tolist():
                cells = slow[sources, piece]
                for place, cell in zip(sources, cells / cells.sum(), strict=True):
                    counts[place, piece] += cell
        slow = counts / np.maximum(counts.sum(1, keepdims=True), 1e-30)
    np.testing.assert_allclose(table.numpy(), slow, atol=1e-5)
    scores = clean.pair_scores(one, other, (sizes[0], sizes[1]))
    assert np.median(scores[:30]) < np.quantile(scores[30:], 0.1)


@pytest.mark.slow
def test_evaluation_and_report(corpus: pack.Pack, tmp_path: Path, capsys: Any) -> None:
    """The library's aligner and the dense AER of training agree on every candidate."""
    source, target = _sentences(12, 11)
    links = []
    for line in source:
        count = line.count(" ") + 1
        links.append(" ".join(f"{n + 1}{'-p'[n % 2]}{count - n}" for n in range(count)))
    for name, lines in (("s", source), ("t", target), ("links.talp", links)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = [str(tmp_path / name) for name in ("s", "t", "links.talp")]
    pack.save(corpus, tmp_path / "pack")
    tables = {}
    for name, more in (("de-en", files), ("en-de", [files[1], files[0], files[2]])):
        options = _options(
            tmp_path / name, "--steps", "12", "--no-checkpoint", "--gold", *more,
            *(["--gold-turned"] if name == "en-de" else []),
        )  # fmt: skip
        mine = corpus.direction(name)
        train.run_training(mine, _training(mine), options)
        model, tokenizers, _ = export.read_parts(tmp_path / name)
        one, other, third = (Path(path) for path in more)
        made = gold.read_gold(one, other, third, tokenizers, turned=name == "en-de")
        tables[name] = gold.error_rates(model, made)
    output = tmp_path / "out"
    evaluate.main(
        ["--run", f"de-en={tmp_path / 'de-en'}", "--reverse", f"en-de={tmp_path / 'en-de'}",
         "--corpus", str(tmp_path / "pack"), "--gold", *files, "--work", str(tmp_path / "models"),
         "--output", str(output), "--gradients", "--eflomal", "--eflomal-pairs", "100"]
    )  # fmt: skip
    results = json.loads((output / "results.json").read_text())
    for name, dense in tables.items():
        for map_name in evaluate.MAPS:
            rows = results["models"][name]["tables"][map_name]
            assert len(rows) == 2 * 3 * 2  # layers, heads and their sum, readings
            for row in rows:
                table: Any = dense[f"{map_name}_{row['reading']}"]
                assert row["aer"] == pytest.approx(
                    table[row["layer"] - 1][row["head"] - 1], abs=0.02
                )
        assert results["models"][name]["training"]["bleu"] is not None
    assert results["eflomal"]["forward"] < 50
    assert results["eflomal"]["pairs"] == 100
    capsys.readouterr()
    report.main([str(output)])
    text_of = capsys.readouterr().out
    assert "published, released code | AWI | norms | 32.5 | 25.0 |" in text_of
    best = results["models"]["de-en"]["norms"]["awi"]["best_layer"]
    assert f"| de-en | AWI | {best[1]} (layer {best[0]}) |" in text_of
    assert {path.suffix for path in output.iterdir()} == {".json", ".csv", ".md", ".png"}


@pytest.mark.slow
def test_one_command_does_it_all_and_goes_on_where_it_was(tmp_path: Path, capsys: Any) -> None:
    german, english = _sentences(2500, 5)
    links = [" ".join(f"{n + 1}-{n + 1}" for n in range(len(s.split()))) for s in german[:6]]
    texts = {"t.de": german, "t.en": english, "v.de": german[:20], "v.en": english[:20]}
    texts |= {"de": german[:6], "en": english[:6], "gold.talp": links}
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    at = {name: tmp_path / name for name in texts}
    given: dict[str, Any] = {
        "train_files": [at["t.de"], at["t.en"]],
        "valid_files": [at["v.de"], at["v.en"]],
        "gold": [at["de"], at["en"], at["gold.talp"]],
        "output": tmp_path / "out",
        "recipe": "tiny",
        "steps": 4,
        "device": "cpu",
        "vocabulary": 60,
    }
    tables = reproduce.run(**given)
    assert "published, released code | AWI | norms" in tables.read_text(encoding="utf-8")
    results = json.loads((tables.parent / "results.json").read_text())
    assert set(results["models"]) == {"de-en", "en-de"}
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/weights*")}
    assert reproduce.run(**given) == tables  # nothing is trained again
    assert {path: path.stat().st_mtime_ns for path in times} == times
    capsys.readouterr()


def test_correlations_are_scipys() -> None:
    from scipy import stats

    draw = np.random.default_rng(0)
    one, other = draw.integers(0, 9, 30).tolist(), draw.normal(size=30).tolist()
    found = evaluate.correlations(one, other)
    assert found["spearman"] == pytest.approx(stats.spearmanr(one, other)[0], abs=6e-4)
    assert found["pearson"] == pytest.approx(stats.pearsonr(one, other)[0], abs=6e-4)
    assert evaluate.correlations([1, 1], [1, 2])["pearson"] is None
