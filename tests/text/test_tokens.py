"""Text to tokens: every kind of tokenizer, the words it makes, its limits, and its refusals."""

from __future__ import annotations

import inspect
import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    ByT5Tokenizer,
    EncoderDecoderConfig,
    EsmTokenizer,
    NllbTokenizer,
    PreTrainedTokenizerFast,
    PythonBackend,
    T5Config,
)

from normscope.errors import InputError
from normscope.models.default import default_model_path
from normscope.text.limits import check_fits, max_length_of
from normscope.text.tokens import Encoded, Tokens, encode, pad

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def read(tokenizer: Any, text: str, pair: str | None = None, **options: Any) -> Encoded:
    """`encode` without a limit, unless one is given."""
    return encode(tokenizer, text, pair, **{"max_length": None, "truncate": False, **options})


def reloaded(tokenizer: Any, folder: Path) -> Any:
    """The tokenizer as a user gets it: written to a folder and read back."""
    tokenizer.save_pretrained(folder)
    return type(tokenizer).from_pretrained(folder)


@pytest.fixture(scope="module")
def minilm() -> Any:
    return AutoTokenizer.from_pretrained(default_model_path())


@pytest.fixture
def bert_like(tmp_path: Path) -> Any:
    pieces = [*SPECIALS, "the", "cat", "##s", "sat", "mat", "un", "##like", "##ly", ".", "!"]
    backend = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="[UNK]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    return reloaded(tokenizer, tmp_path / "bert")


def byte_level(folder: Path, *, trim_offsets: bool) -> Any:
    """GPT-2's scheme with few merges; RoBERTa's offsets leave the space out, GPT-2's keep it."""
    pieces = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "c"), ("a", "t"), ("Ġc", "at")]
    pieces += ["".join(pair) for pair in merges]
    backend = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        unk_token="<|endoftext|>",
    )
    return reloaded(tokenizer, folder)


@pytest.fixture(params=[True, False], ids=["trimmed", "untrimmed"])
def gpt2_like(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return byte_level(tmp_path / "gpt2", trim_offsets=request.param)


@pytest.fixture(params=["normalizer", "pre_tokenizer"])
def llama_like(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Byte fallback and no splitting, so that the whole text has one word id. Both spellings."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "t"), ("▁", "c"), ("▁c", "at")]
    pieces += ["".join(pair) for pair in merges]
    backend = Tokenizer(
        models.BPE(
            {p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True
        )
    )
    if request.param == "normalizer":
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    return reloaded(tokenizer, tmp_path / "llama")


@pytest.fixture
def t5_like(tmp_path: Path) -> Any:
    scores = {"<pad>": 0, "</s>": 0, "<unk>": 0, "▁": -2, "▁the": -3, "▁cat": -3, "s": -4, "x": -5}
    backend = Tokenizer(models.Unigram([*scores.items()], unk_id=2))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
    return reloaded(tokenizer, tmp_path / "t5")


@pytest.fixture
def nllb() -> Any:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *LETTERS]
    return NllbTokenizer(
        vocab={p: i for i, p in enumerate(pieces)},
        merges=[],
        src_lang="eng_Latn",
        tgt_lang="fra_Latn",
    )


@pytest.fixture
def slow_esm(tmp_path: Path) -> Any:
    """A tokenizer written in Python: no offsets, no word ids."""
    pieces = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERT", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    return EsmTokenizer(str(tmp_path / "vocab.txt"))


class SlowWordPiece(PythonBackend):
    """A WordPiece tokenizer in Python, with BERT's frame."""

    vocab_files_names: dict[str, str] = {}  # noqa: RUF012 (as transformers declares it)

    def __init__(self, **options: Any) -> None:
        pieces = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
        self.vocab = {piece: index for index, piece in enumerate(pieces)}
        super().__init__(
            unk_token="[UNK]",
            sep_token="[SEP]",
            pad_token="[PAD]",
            cls_token="[CLS]",
            special_tokens_pattern="cls_sep",
            token_type_ids_pattern="bert_style",
            token_type_ids_include_special_tokens=True,
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
            **options,
        )

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.vocab)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return [c if i == 0 else f"##{c}" for word in text.split() for i, c in enumerate(word)]

    def _convert_token_to_id(self, token: str) -> int:
        return self.vocab.get(token, 1)

    def _convert_id_to_token(self, index: int) -> str:
        return list(self.vocab)[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return " ".join(tokens).replace(" ##", "")


class TwoVocabularies(PythonBackend):
    """What FSMT's tokenizer does: ids by the source's vocabulary, pieces by the target's."""

    vocab_files_names: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        frame = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
        self.encoder = {**frame, "cat": 4, "dog": 5}
        self.decoder = {i: p for p, i in {**frame, "chien": 4, "chat": 5, "l'": 6}.items()}
        self.src_lang, self.tgt_lang = "en", "fr"
        self.tgt_vocab_file = "vocab-tgt.json"
        super().__init__(
            bos_token="<s>",
            pad_token="<pad>",
            eos_token="</s>",
            unk_token="<unk>",
            special_tokens_pattern="eos",
            **options,
        )

    @property
    def vocab_size(self) -> int:
        return len(self.encoder)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.encoder)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return (text.replace("'", "' ") if self.src_lang == "fr" else text).split()

    def _convert_token_to_id(self, token: str) -> int:
        return self.encoder.get(token, 3)

    def _convert_id_to_token(self, index: int) -> str:
        return self.decoder.get(index, "<unk>")


class SeparateMarian(TwoVocabularies):
    """What Marian does with separate_vocabs: a mode for the ids, none for the pieces."""

    def __init__(self, **options: Any) -> None:
        self.separate_vocabs = True
        super().__init__(**options)
        del self.tgt_vocab_file

    def _convert_token_to_id(self, token: str) -> int:
        current: dict[str, int] = vars(self).get("current", self.encoder)
        return current.get(token, 3)

    def _switch_to_input_mode(self) -> None:
        self.current = self.encoder

    def _switch_to_target_mode(self) -> None:
        self.current = {piece: index for index, piece in self.decoder.items()}


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """What transformers logs, which does not reach the root logger."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger, listener = logging.getLogger("transformers"), Listener()
    logger.addHandler(listener)
    yield found
    logger.removeHandler(listener)


# ---- Tokens


def test_tokens_survive_json() -> None:
    tokens = Tokens(
        strings=("[CLS]", "un", "##do"),
        ids=(2, 8, 9),
        special=(True, False, False),
        texts=("[CLS]", "un", "do"),
        word_of=(0, 1, 1),
        words=("[CLS]", "undo"),
    )
    assert len(tokens) == 3
    assert Tokens.from_dict(json.loads(json.dumps(tokens.to_dict()))) == tokens


def test_positions_label_what_has_no_tokenizer() -> None:
    tokens = Tokens.positions(3)
    assert tokens.strings == tokens.texts == ("position 0", "position 1", "position 2")
    assert [tokens.ids, tokens.word_of, tokens.words] == [None] * 3
    assert not any(tokens.special)
    assert Tokens.from_dict(json.loads(json.dumps(tokens.to_dict()))) == tokens


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"texts": ("a",)}, "one entry a position"), ({"word_of": (0, 0)}, "word_of and words")],
)
def test_tokens_refuse_fields_that_disagree(fields: dict[str, Any], message: str) -> None:
    good = {"strings": ("a", "b"), "ids": None, "special": (False, False), "texts": ("a", "b")}
    with pytest.raises(InputError, match=message):
        Tokens(**{**good, **fields})


# ---- pieces, words, special tokens


def test_minilm_pieces_and_words(minilm: Any) -> None:
    tokens = read(minilm, "The cats sat unbelievably.").tokens
    assert tokens.strings == (
        *("[CLS]", "the", "cats", "sat"),
        *("un", "##bel", "##ie", "##va", "##bly", ".", "[SEP]"),
    )
    assert tokens.texts[1] == "The"  # as written, where the piece is lower-cased
    assert tokens.texts[4:9] == ("un", "bel", "ie", "va", "bly")
    assert tokens.words == ("[CLS]", "The", "cats", "sat", "unbelievably", ".", "[SEP]")
    assert tokens.word_of == (0, 1, 2, 3, 4, 4, 4, 4, 4, 5, 6)
    assert [*tokens.special] == [True, *[False] * 9, True]
    assert tokens.ids == tuple(read(minilm, "The cats sat unbelievably.").ids)


def test_a_pair_keeps_its_texts_apart(bert_like: Any) -> None:
    encoded = read(bert_like, "Unlikely cat", "cats sat.")
    assert encoded.tokens.strings == (
        *("[CLS]", "un", "##like", "##ly", "cat", "[SEP]"),
        *("cat", "##s", "sat", ".", "[SEP]"),
    )
    assert encoded.tokens.words == (
        *("[CLS]", "Unlikely", "cat", "[SEP]"),
        *("cats", "sat", ".", "[SEP]"),
    )
    assert encoded.tokens.texts[6:10] == ("cat", "s", "sat", ".")
    assert encoded.extra == {"token_type_ids": [0] * 6 + [1] * 5}


def test_a_pair_without_a_separator_is_still_two_words(gpt2_like: Any) -> None:
    # Both texts are word 0 of their own, and nothing stands between them.
    tokens = read(gpt2_like, "the", "the").tokens
    assert tokens.strings == ("the", "the")
    assert tokens.words == ("the", "the")


def test_byte_level_words(gpt2_like: Any) -> None:
    tokens = read(gpt2_like, "the cats 🙂\nthe").tokens
    assert tokens.strings[:3] == ("the", "Ġcat", "s")
    assert tokens.texts[:3] == ("the", "cat", "s")
    assert tokens.words == ("the", "cats", "🙂", "\n", "the")
    # The space and the four bytes of one character are five pieces here, and one word.
    assert tokens.word_of == (0, 1, 1, 2, 2, 2, 2, 2, 3, 4)
    assert tokens.texts[4:] == (*("🙂",) * 4, "\n", "the")


def test_whitespace_makes_words_where_one_word_id_covers_the_text(llama_like: Any) -> None:
    encoding = llama_like("the cats")
    assert set(encoding.word_ids()) == {None, 0}, "the fixture must not split words itself"
    tokens = read(llama_like, "the cats 🙂 xs", "the cat").tokens
    assert tokens.strings[:4] == ("<s>", "▁the", "▁cat", "s")
    assert tokens.texts[:4] == ("<s>", "the", "cat", "s")
    assert tokens.words == ("<s>", "the", "cats", "🙂", "xs", "<s>", "the", "cat")


def whole_text(merges: list[tuple[str, str]], *, byte_level: bool) -> Any:
    """A tokenizer that never splits before it merges: one word id for the whole text."""
    letters = {letter: index for index, letter in enumerate([*LETTERS, "Ġ", " "])}
    pieces = {"".join(pair): len(letters) + index for index, pair in enumerate(merges)}
    backend = Tokenizer(models.BPE({**letters, **pieces}, merges))
    if byte_level:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_whitespace_that_no_piece_covers_still_parts_words() -> None:
    tokenizer = whole_text([("Ġ", "c"), ("a", "t")], byte_level=True)
    encoding = tokenizer("a cat", return_offsets_mapping=True)
    assert set(encoding.word_ids()) == {0}
    assert encoding["offset_mapping"] == [(0, 1), (2, 3), (3, 5)]  # nothing covers the space
    assert read(tokenizer, "a cat").tokens.words == ("a", "cat")


def test_whitespace_at_the_end_of_a_piece_parts_words() -> None:
    tokens = read(whole_text([("a", " "), ("a", "t")], byte_level=False), "a cat").tokens
    assert tokens.strings == ("a ", "c", "at")
    assert tokens.texts == ("a", "c", "at")
    assert tokens.words == ("a", "cat")


def test_a_lone_space_mark_belongs_to_the_word_after_it(t5_like: Any) -> None:
    tokens = read(t5_like, "the xs cats").tokens
    assert tokens.strings == ("▁the", "▁", "x", "s", "▁cat", "s", "</s>")
    assert tokens.word_of == (0, 1, 1, 1, 2, 2, 3)
    assert tokens.words == ("the", "xs", "cats", "</s>")


def test_space_around_the_words_changes_nothing(llama_like: Any) -> None:
    assert read(llama_like, "the  cat ").tokens.words == ("<s>", "the", " ", "cat", " ")


def test_unknown_and_masked_pieces_are_text(bert_like: Any, t5_like: Any) -> None:
    tokens = read(bert_like, "the [MASK] zebra [SEP] cat").tokens
    assert tokens.strings == ("[CLS]", "the", "[MASK]", "[UNK]", "[SEP]", "cat", "[SEP]")
    assert tokens.special == (True, False, False, False, True, False, True)
    assert tokens.texts[3] == "zebra"
    assert read(t5_like, "zebra").tokens.texts[-2:] == ("zebra", "</s>")


def test_a_special_token_inside_a_text_is_special(gpt2_like: Any) -> None:
    tokens = read(gpt2_like, "the<|endoftext|>the").tokens
    assert tokens.special == (False, True, False)
    assert tokens.words == ("the", "<|endoftext|>", "the")


def test_special_tokens_side_by_side_stay_apart(t5_like: Any) -> None:
    t5_like.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokens = read(t5_like, "cat", "cats").tokens
    assert tokens.words == ("cat", "</s>", "</s>", "cats", "</s>")


def test_what_a_tokenizer_adds_is_special_also_when_it_has_no_name(t5_like: Any) -> None:
    unnamed = PreTrainedTokenizerFast(tokenizer_object=t5_like.backend_tokenizer)
    assert "</s>" not in unnamed.all_special_tokens
    assert read(unnamed, "cat").tokens.special == (False, True)


def test_slow_tokenizers_have_texts_and_no_words(slow_esm: Any) -> None:
    tokens = read(slow_esm, "LAGL").tokens
    assert tokens.strings == tokens.texts == ("<cls>", "L", "A", "G", "L", "<eos>")
    assert tokens.special == (True, False, False, False, False, True)
    assert [tokens.word_of, tokens.words] == [None] * 2
    assert read(ByT5Tokenizer(), "hi").tokens.texts == ("h", "i", "</s>")


def test_slow_tokenizers_lose_the_marks_of_their_pieces() -> None:
    tokens = read(SlowWordPiece(), "no so").tokens
    assert tokens.strings == ("[CLS]", "n", "##o", "s", "##o", "[SEP]")
    assert tokens.texts == ("[CLS]", "n", "o", "s", "o", "[SEP]")


# ---- targets


def test_a_target_has_its_own_language_code(nllb: Any) -> None:
    source, target = read(nllb, "a cat"), read(nllb, "un chat", as_target=True)
    assert source.tokens.strings[0] == "eng_Latn"
    assert target.tokens.strings[0] == "fra_Latn"
    assert target.tokens.words == ("fra_Latn", "un", "chat", "</s>")
    assert target.tokens.special[0]
    assert target.tokens.special[-1]


def test_a_plain_tokenizer_encodes_a_target_like_a_source(t5_like: Any) -> None:
    assert read(t5_like, "the cats", as_target=True) == read(t5_like, "the cats")
    assert read(t5_like, "the", "cat", as_target=True) == read(t5_like, "the", "cat")


@pytest.mark.parametrize("kind", [TwoVocabularies, SeparateMarian])
def test_two_vocabularies_are_not_mixed(kind: type[TwoVocabularies]) -> None:
    tokenizer = kind()
    before = dict(vars(tokenizer))
    source = read(tokenizer, "cat dog")
    assert source.ids == [4, 5, 2]
    assert source.tokens.strings == ("cat", "dog", "</s>")
    target = read(tokenizer, "chat chien", as_target=True)
    assert target.ids == [5, 4, 2]
    assert target.tokens.strings == ("chat", "chien", "</s>")
    if kind is TwoVocabularies:  # FSMT splits words by the rules of a language
        assert read(tokenizer, "l'chat", as_target=True).tokens.strings == ("l'", "chat", "</s>")
        assert read(tokenizer, "l'chat").tokens.strings == ("<unk>", "</s>")
    cut = read(tokenizer, "chat chien", as_target=True, max_length=2, truncate=True)
    assert cut.tokens.strings == ("chat", "</s>")
    assert vars(tokenizer) == before


# ---- the tokenizer's state


def state(tokenizer: Any) -> tuple[Any, ...]:
    backend = tokenizer.backend_tokenizer
    return backend.to_str(), backend.encode_special_tokens, dict(vars(tokenizer))


@pytest.mark.parametrize("as_target", [False, True])
def test_the_tokenizer_is_left_as_it_was(nllb: Any, as_target: bool) -> None:
    # As a user may have left it: made for a batch, and in the middle of a target.
    nllb.backend_tokenizer.enable_truncation(7, stride=2, strategy="only_second", direction="left")
    nllb.backend_tokenizer.enable_padding(
        length=9, pad_id=1, pad_token="<pad>", direction="left", pad_to_multiple_of=4
    )
    nllb.backend_tokenizer.encode_special_tokens = True
    nllb._switch_to_target_mode()
    before = state(nllb)
    read(nllb, "a cat", as_target=as_target)
    assert state(nllb) == before
    read(nllb, "a longer text", as_target=as_target, max_length=5, truncate=True)
    assert state(nllb) == before
    with pytest.raises(InputError):
        read(nllb, "a longer text", as_target=as_target, max_length=5)
    assert state(nllb) == before
    nllb(text="a", text_target="b")
    assert state(nllb) != before, "a plain call changes all this, or the test proves nothing"


def test_the_length_in_tokenizer_json_is_neither_obeyed_nor_lost(bert_like: Any) -> None:
    # The default model's file says so: cut to 128 tokens, and fill up to 128.
    backend = bert_like.backend_tokenizer
    backend.enable_truncation(128)
    backend.enable_padding(length=128)
    before = backend.to_str()
    assert len(read(bert_like, "cat " * 200)) == 202
    assert len(read(bert_like, "cat")) == 3
    assert backend.to_str() == before


def test_two_threads_do_not_get_each_others_language(nllb: Any) -> None:
    wrong: list[str] = []

    def work(as_target: bool, code: str) -> None:
        for _ in range(100):
            found = read(nllb, "a cat", as_target=as_target).tokens.strings[0]
            if found != code:
                wrong.append(found)

    threads = [
        threading.Thread(target=work, args=arguments)
        for arguments in [(False, "eng_Latn"), (True, "fra_Latn")]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- limits


def test_a_long_text_is_refused_with_the_numbers(minilm: Any, messages: list[str]) -> None:
    with pytest.raises(InputError, match=r"602 tokens.*at most 512.*truncate=True.*--truncate"):
        read(minilm, "cat " * 600, max_length=512)
    with pytest.raises(InputError, match=r"text and text_pair give 603 tokens.*512"):
        read(minilm, "cat " * 300, "dog " * 300, max_length=512)
    assert len(read(minilm, "cat " * 510, max_length=512)) == 512
    assert messages == []


def test_truncation_keeps_the_frame(bert_like: Any) -> None:
    encoded = read(bert_like, "the cats sat", max_length=5, truncate=True)
    assert encoded.tokens.strings == ("[CLS]", "the", "cat", "##s", "[SEP]")
    assert encoded.tokens.words == ("[CLS]", "the", "cats", "[SEP]")
    assert read(bert_like, "the cat", max_length=5, truncate=True) == read(bert_like, "the cat")


@pytest.mark.parametrize("make", [SlowWordPiece, None], ids=["slow", "fast"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("limit", [5, 6, 7, 9, 12])
@pytest.mark.parametrize(
    ("text", "pair"),
    [("abcdefghij", None), ("abcdefgh", "xyz"), ("abc", "tuvwxyz"), ("abc", "xyz")],
)
def test_truncation_drops_what_the_tokenizer_would(
    make: Callable[[], Any] | None,
    side: str,
    limit: int,
    text: str,
    pair: str | None,
    bert_like: Any,
    messages: list[str],
) -> None:
    tokenizer = bert_like if make is None else make()
    if make is None:  # words instead of letters
        text, pair = " ".join(text), None if pair is None else " ".join(pair)
    tokenizer.truncation_side = side
    encoded = read(tokenizer, text, pair, max_length=limit, truncate=True)
    assert messages == []
    own = tokenizer(text, pair, truncation="longest_first", max_length=limit)
    assert encoded.ids == own["input_ids"]
    assert encoded.extra["token_type_ids"] == own["token_type_ids"]


@pytest.mark.parametrize("make", [SlowWordPiece, None], ids=["slow", "fast"])
def test_a_limit_without_room_for_text_is_refused(
    make: Callable[[], Any] | None, bert_like: Any
) -> None:
    tokenizer = bert_like if make is None else make()
    with pytest.raises(InputError, match=r"limit of 2 .* 2 special tokens; .* at least 3"):
        read(tokenizer, "the cat", max_length=2, truncate=True)
    with pytest.raises(InputError, match=r"limit of 4 .* 3 special tokens; .* at least 5"):
        read(tokenizer, "the cat", "cat", max_length=4, truncate=True)


# ---- refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text is empty"),
        (" \n\t ", "only whitespace"),
        (None, "must be a string, not NoneType"),
        (["a", "b"], "must be a string, not list"),
        (b"bytes", "must be a string, not bytes"),
        ("a\ud83d", "not valid Unicode: character 1"),
    ],
)
def test_bad_texts(bert_like: Any, text: Any, message: str) -> None:
    # The tests check annotations at run time; a user's call does not, so neither does this one.
    unchecked = inspect.unwrap(encode)
    with pytest.raises(InputError, match=message):
        unchecked(bert_like, text, max_length=None, truncate=False)
    if text is not None:
        with pytest.raises(InputError, match=message.replace("text is", "text_pair is")):
            unchecked(bert_like, "cat", text, max_length=None, truncate=False)


def test_a_text_of_nothing_but_special_tokens(bert_like: Any, gpt2_like: Any) -> None:
    with pytest.raises(InputError, match=r"only special tokens: \[CLS\] \[SEP\] \[SEP\]"):
        read(bert_like, "[SEP]")
    with pytest.raises(InputError, match=r"only special tokens: \[CLS\] \[SEP\]"):
        read(bert_like, "\u200b\u0000")  # characters that its normalizer removes
    with pytest.raises(InputError, match="only special tokens"):
        read(gpt2_like, "<|endoftext|>")


def test_a_text_without_tokens(tmp_path: Path) -> None:
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.normalizer = normalizers.Replace("x", "")
    with pytest.raises(InputError, match="no tokens at all, for the text 'x'"):
        read(PreTrainedTokenizerFast(tokenizer_object=backend), "x")


def test_what_is_not_a_tokenizer(bert_like: Any) -> None:
    class Processor:
        tokenizer = bert_like

    unchecked = inspect.unwrap(encode)
    with pytest.raises(InputError, match=r"not Processor; give its \.tokenizer"):
        unchecked(Processor(), "cat", max_length=None, truncate=False)
    with pytest.raises(InputError, match=r"must be a transformers tokenizer.*not Tokenizer$"):
        unchecked(bert_like.backend_tokenizer, "cat", max_length=None, truncate=False)


# ---- batches


def test_padding_is_on_the_right(bert_like: Any) -> None:
    bert_like.padding_side = "left"
    batch = pad([read(bert_like, "cat"), read(bert_like, "cat", "cats")], pad_id=7)
    assert batch["input_ids"].tolist() == [[2, 6, 3, 7, 7, 7], [2, 6, 3, 6, 7, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]]
    assert batch["token_type_ids"].tolist() == [[0] * 6, [0, 0, 0, 1, 1, 1]]
    assert batch["input_ids"].dtype == batch["token_type_ids"].dtype == torch.int64


def test_padding_brings_only_what_the_tokenizer_gave(gpt2_like: Any) -> None:
    assert pad([read(gpt2_like, "the")], 0).keys() == {"input_ids", "attention_mask"}


def test_padding_leaves_out_what_only_some_texts_have(bert_like: Any, gpt2_like: Any) -> None:
    mixed = [read(bert_like, "the"), read(gpt2_like, "the")]
    assert pad(mixed, 0).keys() == {"input_ids", "attention_mask"}


def test_nothing_to_pad() -> None:
    with pytest.raises(InputError, match="at least one"):
        pad([], 0)


# ---- what the model takes

TINY: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 10,
    "pad_token_id": 1,
}
SEQ2SEQ = {
    "vocab_size": 20,
    "d_model": 8,
    "max_position_embeddings": 10,
    "pad_token_id": 1,
    **{f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "ffn_dim")},
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "decoder_start_token_id": 1,
}


@pytest.mark.parametrize(
    ("family", "settings", "limit"),
    [
        ("bert", TINY, 10),
        ("electra", {**TINY, "embedding_size": 8}, 10),
        ("albert", {**TINY, "embedding_size": 8}, 10),
        ("distilbert", {**TINY, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8}, 10),
        ("gpt2", {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 10}, 10),
        ("opt", {**TINY, "ffn_dim": 8, "word_embed_proj_dim": 8}, 10),
        ("biogpt", TINY, 10),
        ("bart", SEQ2SEQ, 10),
        ("marian", SEQ2SEQ, 10),
        ("roberta", TINY, 8),
        ("roberta", {**TINY, "pad_token_id": 3}, 6),
        ("roberta-prelayernorm", TINY, 8),
        ("xlm-roberta", TINY, 8),
        ("xlm-roberta-xl", TINY, 8),
        ("camembert", TINY, 8),
        ("data2vec-text", TINY, 8),
        ("ibert", TINY, 8),
        ("xmod", {**TINY, "languages": ["en_XX"], "default_language": "en_XX"}, 8),
        ("luke", {**TINY, "entity_vocab_size": 5, "entity_emb_size": 8}, 8),
        ("esm", {**TINY, "position_embedding_type": "absolute", "mask_token_id": 4}, 8),
        ("mpnet", TINY, 8),
        ("mpnet", {**TINY, "pad_token_id": 0}, 8),
        ("longformer", {**TINY, "attention_window": [4]}, 8),
    ],
)
def test_the_limit_is_where_the_model_ends(
    family: str, settings: dict[str, Any], limit: int
) -> None:
    config = AutoConfig.for_model(family, **settings)
    model = AutoModel.from_config(config).eval()
    found = max_length_of(config)
    assert found == limit

    def run(length: int) -> None:
        ids = torch.full((1, length), 5)
        decoder = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
        with torch.no_grad():
            model(input_ids=ids, **decoder)

    run(found)
    with pytest.raises((IndexError, RuntimeError)):
        run(found + 1)


def test_limits_of_real_configurations(minilm: Any) -> None:
    assert max_length_of(AutoConfig.from_pretrained(default_model_path()), minilm) == 512
    published = {
        "roberta": ({"max_position_embeddings": 514, "pad_token_id": 1}, 512),
        "xlm-roberta": ({"max_position_embeddings": 514, "pad_token_id": 1}, 512),
        "longformer": ({"max_position_embeddings": 4098, "pad_token_id": 1}, 4096),
        "esm": ({"max_position_embeddings": 1026, "pad_token_id": 1, "mask_token_id": 32}, 1024),
        "mpnet": ({"max_position_embeddings": 514}, 512),
        "gpt2": ({}, 1024),
        "llama": ({"max_position_embeddings": 4096}, 4096),  # rotary: what it was trained for
        "mistral": ({}, 131072),
        "clip": ({}, 77),  # in its text part
        "siglip": ({}, 64),
        "t5": ({"n_positions": 512}, None),  # as t5-small's config.json has it
        "umt5": ({}, None),
        "bloom": ({}, None),
        "xlnet": ({}, None),
    }
    for family, (settings, limit) in published.items():
        assert max_length_of(AutoConfig.for_model(family, **settings)) == limit, family


def test_source_and_target_can_have_limits_of_their_own() -> None:
    led = AutoConfig.for_model("led")
    assert (max_length_of(led), max_length_of(led, as_target=True)) == (16384, 1024)
    assert max_length_of(AutoConfig.for_model("whisper"), as_target=True) == 448
    both = EncoderDecoderConfig.from_encoder_decoder_configs(
        BertConfig(max_position_embeddings=30), BertConfig(max_position_embeddings=20)
    )
    assert (max_length_of(both), max_length_of(both, as_target=True)) == (30, 20)


def test_a_tokenizer_may_ask_for_less(bert_like: Any) -> None:
    config = BertConfig(max_position_embeddings=64)
    assert bert_like.model_max_length > 10**9, "none was given, which transformers writes so"
    assert max_length_of(config, bert_like) == 64
    bert_like.model_max_length = 16
    assert max_length_of(config, bert_like) == 16
    bert_like.model_max_length = 128
    assert max_length_of(config, bert_like) == 64
    bert_like.model_max_length = 16
    assert max_length_of(T5Config(), bert_like) is None


def test_a_tokenizer_that_does_not_fit(bert_like: Any) -> None:
    small = BertModel(BertConfig(**{**TINY, "vocab_size": 10}))
    encoded = read(bert_like, "the unlikely cat")
    with pytest.raises(
        InputError, match=r"15 tokens\) does not fit.*10 embedding rows\): .*id 12 for '##ly'"
    ):
        check_fits(bert_like, small, encoded)
    with pytest.raises(InputError, match=r"15 tokens\) does not fit.*10 embedding rows.*up to 14"):
        check_fits(bert_like, small)
    check_fits(bert_like, small, read(bert_like, "the cats"))  # ids 5 to 7: no harm in this text


def test_a_tokenizer_that_fits(bert_like: Any) -> None:
    model = BertModel(BertConfig(**{**TINY, "vocab_size": 15}))
    check_fits(bert_like, model)
    check_fits(bert_like, model, read(bert_like, "the unlikely cat!"))
    bert_like.add_tokens(["zebra"])  # one more than the model has, and the text is without it
    check_fits(bert_like, model)
    check_fits(bert_like, model, read(bert_like, "the cat"))
    with pytest.raises(InputError, match="id 15 for 'zebra'"):
        check_fits(bert_like, model, read(bert_like, "the zebra"))


def test_token_types_the_model_does_not_have(bert_like: Any) -> None:
    model = BertModel(BertConfig(**{**TINY, "type_vocab_size": 1}))
    check_fits(bert_like, model, read(bert_like, "cat"))
    with pytest.raises(InputError, match="token type 1, and the model has 1"):
        check_fits(bert_like, model, read(bert_like, "cat", "cat"))


def test_a_target_is_checked_against_the_decoder() -> None:
    class Halves(torch.nn.Module):
        """An encoder-decoder with a vocabulary for each side."""

        config = T5Config()

        def __init__(self, rows: int, decoder: torch.nn.Module | None = None) -> None:
            super().__init__()
            self.table, self.decoder = torch.nn.Embedding(rows, 2), decoder

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.table

        def get_decoder(self) -> torch.nn.Module | None:
            return self.decoder

    tokenizer = TwoVocabularies()
    model: Any = Halves(6, Halves(5))
    unchecked = inspect.unwrap(check_fits)
    unchecked(tokenizer, model, read(tokenizer, "dog"))
    with pytest.raises(InputError, match=r"5 embedding rows.*id 5 for 'chat'"):
        unchecked(tokenizer, model, read(tokenizer, "chat", as_target=True), as_target=True)


@pytest.mark.parametrize("family", ["vit", "clip_vision_model"])
def test_a_model_without_token_ids_has_nothing_to_fit(bert_like: Any, family: str) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "image_size": 8, "patch_size": 4}
    config = AutoConfig.for_model(family, **sizes, num_hidden_layers=1, num_attention_heads=2)
    check_fits(bert_like, AutoModel.from_config(config), read(bert_like, "the unlikely cat"))
