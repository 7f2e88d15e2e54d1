"""Dumped maps are those of `analyze`, and every library reads them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.testing import assert_allclose

import normscope
from normscope.models.architectures import tiny_model
from tests.helpers.corpora import full_run as run
from tests.helpers.tiny import tokenizer


def test_dumped_maps_are_those_of_analyze_and_everybody_reads_them(
    folder: Path, tmp_path: Path
) -> None:
    datasets: Any = importlib.import_module("datasets")
    pd: Any = importlib.import_module("pandas")
    pl: Any = importlib.import_module("polars")

    run(folder, tmp_path / "out", dump=True, data=folder / "a.txt")
    maps = tmp_path / "out" / "maps"
    frame = pd.read_parquet(maps)
    assert list(frame.columns) == ["key", "layer", "tokens", "ids", "attn_w", "attn_n"]
    texts = (folder / "a.txt").read_text().splitlines()
    model, reader = tiny_model("bert", dtype=torch.float32), tokenizer()
    layers = len(frame) // len(texts)
    for key in (0, 7, 39):
        result = normscope.analyze(model, reader, texts[key])
        mine = frame[frame.key == key].sort_values("layer")
        assert list(mine.layer) == list(range(layers))
        assert list(mine.tokens.iloc[0]) == list(result.tokens.strings)
        for name in ("attn_w", "attn_n"):
            values = np.stack([np.stack(list(one)) for one in mine[name]])
            assert_allclose(values, result[name].values, rtol=1e-5, atol=1e-7)
    assert pl.read_parquet(maps / "*.parquet").height == len(frame)
    data = datasets.Dataset.from_parquet(
        [str(one) for one in sorted(maps.glob("*.parquet"))], cache_dir=str(tmp_path / "cache")
    )
    assert data.num_rows == len(frame)
    assert np.shape(data[0]["attn_n"]) == np.stack(list(frame.attn_n[0])).shape
