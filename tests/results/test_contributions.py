"""Contributions: reading, merging words, converting, saving and loading bit for bit."""

from __future__ import annotations

import copy
import errno
import json
import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from normscope.errors import InputError, MissingExtraError
from normscope.results.arrays import LabelledArray
from normscope.results.contributions import Contributions, load
from normscope.results.saved import CONTRIBUTIONS
from normscope.text.tokens import Tokens

PIECES, TEXTS, SPECIAL = ("[CLS]", "cat", "##s"), ("[CLS]", "cat", "s"), (True, False, False)
CATS = Tokens(PIECES, (101, 4937, 2015), SPECIAL, TEXTS, (0, 1, 1), ("[CLS]", "cats"))
ENDED = ("Tiere", "</s>")
TIERE = Tokens(("▁Tiere", "</s>"), (7, 0), (False, True), ENDED, (0, 1), ENDED)
NAMED, WORDS = (*TEXTS, "residual"), ("[CLS]", "cats", "residual")
WITH_RESIDUAL = Tokens((*PIECES, "residual"), None, (*SPECIAL, True), NAMED, (0, 1, 1, 2), WORDS)


class Source:
    """A signature that counts how often it is worked out, and cannot be pickled."""

    calls = 0

    def text(self) -> str:
        self.calls += 1
        return "model:tiny|weights:abc"

    def __reduce__(self) -> Any:
        raise AssertionError("the source of a signature must stay out of pickles")


def array(name: str, axes: str, query: Tokens, key: Tokens, dtype: str = "f4") -> LabelledArray:
    """Two layers, three heads; values that no rounding keeps, different for every name."""
    sizes = {"layer": 2, "head": 3, "query": len(query), "key": len(key)}
    names = tuple(axes.split())
    values = np.random.default_rng(list(name.encode())).random([sizes[axis] for axis in names]) / 3
    tokens = {axis: given for axis, given in (("query", query), ("key", key)) if axis in names}
    reduce = "mean" if name == "transformed_norm" else "sum"
    return LabelledArray(values.astype(dtype), names, tokens, name=name, key_reduce=reduce)


def single(query: Tokens = CATS, key: Tokens = CATS, signature: Any = "tiny") -> Contributions:
    maps = {n: array(n, "layer query key", query, key) for n in ("attn_w", "norms")}
    norm = array("transformed_norm", "layer head key", query, key)
    return Contributions(maps, norm, query, key, {"attn_w": 0.1, "norms": 1e-7 / 3}, signature)


def whole_layer(dtype: str = "f4") -> Contributions:
    """Cross-attention with the residual as a key of its own, ratios and bias shares."""
    keys = {"attn_n": CATS, "attn_res_n": WITH_RESIDUAL}
    maps = {n: array(n, "layer query key", TIERE, key, dtype) for n, key in keys.items()}
    ratios = {n: array(n + "_ratio", "layer query", TIERE, CATS, dtype) for n in keys}
    extras = {"mixing_ratio": ratios, "bias_share": {"attn_n": ratios["attn_n"]}}
    return Contributions(maps, None, TIERE, CATS, {"attn_n": 0.5}, "s", extras=extras)


def translation(signature: Any = "tiny") -> Contributions:
    parts = {"encoder": single(), "decoder": single(TIERE, TIERE), "cross": whole_layer()}
    return Contributions(signature=signature, parts=parts)


def test_reading_a_result_with_one_part() -> None:
    result = single(TIERE, CATS)
    assert result["norms"].name == "norms"
    assert list(result) == result.keys() == ["attn_w", "norms"]
    assert ("norms" in result, "attn_n" in result) == (True, False)
    assert dict(result)["attn_w"] is result["attn_w"]
    assert (result.tokens, result.key_tokens) == (TIERE, CATS)
    assert (len(result), result.layers, result.heads) == (2, 2, 3)
    assert result.error == {"attn_w": 0.1, "norms": 1e-7 / 3}
    assert result.parts == result.mixing_ratio == result.bias_share == {}
    assert single().key_tokens is CATS
    with pytest.raises(InputError, match="no map 'attn_n' in this result; it has: attn_w, norms"):
        result["attn_n"]
    with pytest.raises(AttributeError, match="no 'encoder'; it has one part, itself"):
        result.encoder  # noqa: B018
    listed = "attn_w, norms: 2 layers, 2 tokens (▁Tiere </s>), error 1.0e-01"
    assert repr(result) == f"Contributions {listed}"


def test_heads_and_extras() -> None:
    each = array("attn_n", "layer head query key", CATS, CATS)
    assert Contributions({"attn_n": each}, tokens=CATS).heads == 3
    with pytest.raises(InputError, match='heads="each"'):
        whole_layer().heads  # noqa: B018
    assert whole_layer().mixing_ratio["attn_res_n"].axes == ("layer", "query")
    assert list(whole_layer().bias_share) == ["attn_n"]
    assert whole_layer()["attn_res_n"].sel(key="residual").shape == (2, 2)


def test_reading_a_result_with_several_parts() -> None:
    result = translation()
    assert result.encoder is result.parts["encoder"]
    assert result.cross.key_tokens == result.encoder.tokens
    assert {"encoder", "decoder", "cross"} <= set(dir(result))
    # the worst over the parts, per map: attn_n is only in cross
    assert result.error == {"attn_w": 0.1, "norms": 1e-7 / 3, "attn_n": 0.5}
    assert list(result) == ["attn_w", "norms", "attn_n", "attn_res_n"]
    worse = Contributions({"norms": single()["norms"]}, tokens=CATS, error={"norms": 0.2})
    for parts in ({"text": worse, "vision": single()}, {"text": single(), "vision": worse}):
        assert Contributions(parts=parts).error == {"attn_w": 0.1, "norms": 0.2}
    with pytest.raises(InputError, match=r"map 'attn_w' .*: result.encoder, result.decoder, resu"):
        result["attn_w"]
    for name in ("tokens", "key_tokens", "transformed_norm", "mixing_ratio", "layers", "heads"):
        with pytest.raises(InputError, match=f"{name} .* choose a part: result.encoder"):
            getattr(result, name)
    with pytest.raises(AttributeError, match="no 'vision'; its parts are: encoder, decoder, cross"):
        result.vision  # noqa: B018
    assert repr(result).startswith("Contributions in 3 parts\n  encoder: Contributions attn_w")


def test_what_does_not_belong_together_is_refused() -> None:
    good, ours = single(), {"tokens": CATS}
    flat = LabelledArray(np.zeros((3, 3)), ("query", "key"), {"query": CATS, "key": CATS})
    fewer = {"maps": {"a": good["attn_w"], "b": good["norms"].sel(layer=[0])}, **ours}
    not_residual = replace(WITH_RESIDUAL, special=(True, False, False, False))
    shifted = array("a", "layer query key", CATS, not_residual)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("needs maps and tokens", {"maps": {"attn_w": good["attn_w"]}}),
        ("not both", {"parts": {"encoder": good}, **ours}),
        ("not both", {"parts": {"encoder": good}, "transformed_norm": good.transformed_norm}),
        ("free name", {"parts": {"tokens": good}}),
        ("free name", {"parts": {"a/b": good}}),
        ("no parts of its own", {"parts": {"encoder": translation()}}),
        ("cannot be called 'a/b'", {"maps": {"a/b": good["attn_w"]}, **ours}),
        ("cannot be called 'trans", {"maps": {"transformed_norm": good["attn_w"]}, **ours}),
        ("error given for", {"maps": {"a": good["attn_w"]}, "error": {"b": 0.0}, **ours}),
        ("b does not have the same layers", fewer),
        ("a does not have the same layers", {"maps": {"a": flat}, **ours}),
        ("query tokens of a", {"maps": {"a": good["attn_w"]}, "tokens": TIERE, "key_tokens": CATS}),
        ("key tokens of a", {"maps": {"a": good["attn_w"]}, "key_tokens": TIERE, **ours}),
        ("key tokens of a", {"maps": {"a": shifted}, **ours}),
        ("mean", {"maps": {"a": good["attn_w"]}, "transformed_norm": good["attn_w"], **ours}),
    ]
    for message, arguments in cases:
        with pytest.raises(InputError, match=message):
            Contributions(**arguments)


def test_the_signature_is_made_once_and_only_when_read() -> None:
    source = Source()
    result = single(signature=source)
    repr(result), result.error, result["norms"], result.words(), result.to_pandas()
    assert result != single(TIERE, TIERE)  # differs before the signature matters
    assert source.calls == 0
    assert result.signature == result.signature == "model:tiny|weights:abc"
    assert source.calls == 1
    assert source not in vars(result).values()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))])
def test_pickles_carry_the_signature_as_text(duplicate: Any) -> None:
    result = translation(Source())
    again = duplicate(result)
    assert again == result
    assert vars(again)["_signature"] == "model:tiny|weights:abc"
    assert not again.encoder["norms"].values.flags.writeable


def test_equality_covers_everything() -> None:
    whole = single()
    maps, norm = {name: whole[name] for name in whole}, whole.transformed_norm
    same = (maps, norm, CATS, CATS, whole.error, "tiny")
    assert whole == Contributions(*same, extras={"mixing_ratio": {}})  # as in a loaded one
    other = replace(whole["norms"], values=np.nextafter(whole["norms"].values, np.float32(9)))
    assert whole != Contributions({**maps, "norms": other}, *same[1:])
    assert whole != Contributions(maps, None, *same[2:])
    assert whole != Contributions(*same[:4], {"attn_w": 0.1}, "tiny")
    assert whole != Contributions(*same[:5], "tiny2")
    ratio = array("r", "layer query", CATS, CATS)
    assert whole != Contributions(*same, extras={"mixing_ratio": {"norms": ratio}})
    assert translation() == translation()
    assert translation() != translation("other")
    assert translation() != Contributions(signature="tiny", parts={"encoder": whole})


def test_words_merge_every_array() -> None:
    result = whole_layer()
    merged = result.words()
    assert merged.key_tokens.strings == ("[CLS]", "cats")
    assert merged["attn_res_n"].tokens["key"].strings == ("[CLS]", "cats", "residual")
    before, after = result["attn_res_n"].values, merged["attn_res_n"].values
    pieces = before[..., 1].astype(np.float64) + before[..., 2]
    expected = np.stack([before[..., 0], pieces.astype(np.float32), before[..., 3]], axis=-1)
    assert np.array_equal(after, expected)
    assert merged.mixing_ratio == {n: r.words() for n, r in result.mixing_ratio.items()}
    assert (merged.error, merged.signature) == (result.error, result.signature)

    both = translation().words()
    assert both.encoder.tokens.strings == ("[CLS]", "cats")
    norm = np.asarray(single().transformed_norm, dtype=np.float64)
    means = np.stack([norm[..., 0], (norm[..., 1] + norm[..., 2]) / 2], axis=-1)
    assert np.array_equal(np.asarray(both.encoder.transformed_norm), means.astype(np.float32))
    assert both.encoder["norms"].shape == (2, 2, 2)
    assert both.cross == merged


def test_dict_is_plain_json_and_loses_nothing() -> None:
    result = single(TIERE, CATS)
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert set(plain) == {"signature", "tokens", "key_tokens", "maps", "transformed_norm", "error"}
    assert (plain["signature"], plain["tokens"]) == ("tiny", ["▁Tiere", "</s>"])
    assert plain["key_tokens"] == ["[CLS]", "cat", "##s"]
    assert np.float32(plain["maps"]["norms"]).tobytes() == result["norms"].values.tobytes()
    assert np.shape(plain["transformed_norm"]) == (2, 3, 3)
    assert plain["error"] == result.error
    assert "key_tokens" not in single().to_dict()
    assert set(whole_layer().to_dict()) >= {"mixing_ratio", "bias_share"}

    several = json.loads(json.dumps(translation().to_dict()))
    assert set(several) == {"signature", "error", "parts"}
    assert set(several["parts"]["encoder"]) == {"tokens", "maps", "transformed_norm", "error"}
    assert several["parts"]["decoder"]["tokens"] == ["▁Tiere", "</s>"]
    assert several["error"]["attn_n"] == 0.5


def test_pandas_puts_all_maps_in_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    result = single(TIERE, CATS)
    table = result.to_pandas()
    columns = ["map", "layer", "query", "query_token", "key", "key_token", "value"]
    assert list(table.columns) == columns
    assert table.index.tolist() == list(range(2 * 2 * 2 * 3))
    # attn_w fills rows 0 to 11; in norms, layer 1, query 1, key 1 is cell 6 + 3 + 1
    cell = ["norms", 1, 1, "</s>", 1, "cat", result["norms"].values[1, 1, 1]]
    assert table.iloc[12 + 10].tolist() == cell
    several = translation().to_pandas()
    assert list(several.columns) == ["part", *columns]
    # encoder 2 x 3 x 3, decoder 2 x 2 x 2, cross 2 x 2 x 3 and, with the residual, 2 x 2 x 4
    counts = several.groupby(["part", "map"], sort=False).size()
    assert counts.index[-1] == ("cross", "attn_res_n")
    assert counts.tolist() == [18, 18, 8, 8, 12, 16]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"normscope\[tables\]"):
        result.to_pandas()


@pytest.mark.parametrize("make", [single, whole_layer, lambda: whole_layer("f8"), translation])
def test_saved_and_loaded_is_the_same_bit_for_bit(make: Any, tmp_path: Path) -> None:
    result: Contributions = make()
    result.save(tmp_path / "result.safetensors")
    again = load(str(tmp_path / "result.safetensors"))
    assert again == result
    assert again.keys() == result.keys()
    tensors = load_file(tmp_path / "result.safetensors")
    for name, part in (result.parts or {"": result}).items():
        other = again.parts[name] if name else again
        assert other.signature == part.signature
        assert [gap.hex() for gap in other.error.values()] == [g.hex() for g in part.error.values()]
        for map_name in part:
            stored = tensors[f"{name}/{map_name}" if name else map_name]
            for same in (other[map_name], stored):
                assert same.dtype == part[map_name].dtype
                assert np.asarray(same).tobytes() == part[map_name].values.tobytes()
    result.save(tmp_path / "again.safetensors")
    files = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert files == [files[0]] * 2


def test_every_bit_pattern_and_memory_order_survives(tmp_path: Path) -> None:
    # Not what an analysis gives, but a file must not be the place where it changes.
    odd = np.array([[np.inf, -0.0, 5e-324, np.nan], [1 / 3, -1.5, 1e308, 0.1]])
    pieces = ("\ud800", '"', "</script>", "猫")
    tokens = Tokens(pieces, None, (False,) * 4, tuple("abcd"), None, None)
    keys = Tokens.positions(2)
    for dtype in ("float16", "float32", "float64"):
        with np.errstate(over="ignore", under="ignore"):
            values = np.stack([odd, odd]).astype(dtype).swapaxes(1, 2)
        assert not values.flags.c_contiguous
        both, labels = {"query": tokens, "key": keys}, {"layer": (7, 3)}
        odd_map = LabelledArray(values, ("layer", "query", "key"), both, labels)
        result = Contributions({"attn_n": odd_map}, None, tokens, keys, {"attn_n": 5e-324})
        result.save(tmp_path / "odd.safetensors")
        again = load(tmp_path / "odd.safetensors")
        assert again == result
        assert again["attn_n"].values.tobytes() == values.tobytes()
        assert again["attn_n"].labels["layer"] == (7, 3)
        assert again.tokens.strings[0] == "\ud800"


def rewritten(path: Path, change: Any) -> Path:
    """The saved file with `change(header, tensors)` applied."""
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()[CONTRIBUTIONS])
    tensors = load_file(path)
    change(header, tensors)
    save_file(tensors, path, metadata={CONTRIBUTIONS: json.dumps(header)})
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, t: t.pop("norms"), "tensor 'norms' is missing"),
        (lambda h, t: t.update(more=np.zeros(2)), r"does not name: \['more'\]"),
        (lambda h, t: t.update(norms=t["norms"][:, :, :2].copy()), "2 key entries but labels"),
        (lambda h, t: t.update(norms=t["norms"][0].copy()), r"shape \(3, 3\)"),
        (lambda h, t: t.update(norms=t["norms"].astype(np.int32)), "dtype int32"),
        (lambda h, t: h.update(version=3), "newer normscope .format 3.* up to 2.; upgrade"),
        (lambda h, t: h.update(version="x"), "damaged"),
        (lambda h, t: h.pop("parts"), "damaged.*parts"),
        (lambda h, t: (h.update(parts={}), t.clear()), "needs maps and tokens"),
        (lambda h, t: h.update(tokens=[]), "damaged"),
        (lambda h, t: h["tokens"][0]["strings"].pop(), "one entry per position"),
        (lambda h, t: h["tokens"].append({"nonsense": 1}), "damaged"),
        (lambda h, t: h["parts"][""]["error"].update(norms="x"), "damaged"),
        (lambda h, t: h["parts"][""]["arrays"]["norms"].update(axes=["layer"]), "axes"),
        *(
            (lambda h, t, n=name, v=value: h["tokens"][0].update({n: v}), rf"tokens\[0\]\.{match}")
            for name, value, match in (
                ("strings", ["a", 7, "c"], "strings is 7; valid: a text"),
                ("texts", ["a", None, "c"], "texts is None; valid: a text"),
                ("special", [True, 0, False], "special is 0; valid: true or false"),
                ("ids", [1, 2.0, 3], r"ids is 2\.0; valid: an integer from 0"),
                ("ids", [1, True, 3], "ids is True"),
                ("word_of", [0, 1, 9], "word_of is 9; valid: in order, below the number of words"),
                ("word_of", [1, 0, 1], "word_of is 0; valid: in order, .*1 comes before it"),
                ("word_of", [-1, 0, 1], "word_of is -1; valid: an integer from 0"),
                ("words", [1, 2, 3], "words is 1"),
            )
        ),
        *(
            (lambda h, t, v=value: h["parts"][""]["error"].update(norms=v), r"error\.norms is .*")
            for value in ("nan", "inf", "-0x1p-3", 3, None)
        ),
        (lambda h, t: h["parts"][""].update(tokens=-1), r"parts\.\.tokens is -1; valid: .*lists"),
        (lambda h, t: h["parts"][""].update(key_tokens=True), "key_tokens is True"),
        (lambda h, t: h["parts"][""].update(signature=None), "signature is None; valid: a text"),
        (lambda h, t: h["parts"][""]["arrays"]["norms"].update(signed=1), "signed is 1"),
        (lambda h, t: h["parts"][""]["arrays"]["norms"].update(name=1), "name is 1"),
        (
            lambda h, t: h["parts"][""]["arrays"]["norms"]["labels"].update(layer=[0, "1", 2]),
            r"arrays\.norms\.labels\.layer is '1'",
        ),
        (lambda h, t: h["parts"][""]["arrays"]["norms"]["labels"].update(layer=[0]), "labels"),
    ],
)
def test_a_file_at_odds_with_itself_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "result.safetensors"
    single().save(path)
    assert load(rewritten(path, lambda header, tensors: None)) == single()
    with pytest.raises(InputError, match=message) as caught:
        load(rewritten(path, change))
    assert str(caught.value).startswith(f"could not load {path}: ")


def test_truncated_at_any_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.safetensors"
    single().save(path)
    data = path.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, len(data) // 2, len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(InputError, match="truncated"):
            load(path)


def test_what_normscope_did_not_save_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    with pytest.raises(InputError, match="No such file"):
        load(path)
    with pytest.raises(InputError, match="it is a folder"):
        load(tmp_path)
    path.write_bytes(np.random.default_rng(0).bytes(4096))
    with pytest.raises(InputError, match="not a safetensors file"):
        load(path)
    for metadata in (None, {"format": "pt"}):
        save_file({"weight": np.zeros(3)}, path, metadata=metadata)
        with pytest.raises(InputError, match="was not saved by normscope"):
            load(path)
    save_file({"weight": np.zeros(3)}, path, metadata={CONTRIBUTIONS: "{"})
    with pytest.raises(InputError, match="damaged"):
        load(path)


@pytest.mark.parametrize("step", ["replace", "fsync"])
@pytest.mark.parametrize("before", [[], [b"earlier"]])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_failed_save_leaves_everything_as_it_was(
    step: str, before: list[bytes], failure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.safetensors"
    for data in before:
        path.write_bytes(data)

    def fail(*_: object) -> None:
        assert len(list(tmp_path.iterdir())) == len(before) + 1  # the partial file is there
        raise failure

    monkeypatch.setattr(os, step, fail)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        single().save(path)
    if isinstance(failure, OSError):
        assert f"cannot write {str(path)!r}: No space left; nothing was" in str(caught.value)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == before


def test_saving_where_it_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"No such file or directory.*choose a writable folder"):
        single().save(tmp_path / "missing" / "result.safetensors")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*folder"):
        single().save(tmp_path / "folder")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


def test_saving_follows_links_and_obeys_the_umask(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to("real")
    single().save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "real") == single()
    (tmp_path / "plain").touch()
    assert (tmp_path / "real").stat().st_mode == (tmp_path / "plain").stat().st_mode
