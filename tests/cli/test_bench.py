"""`normscope bench`: what it measures and writes, whatever time that takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import normscope
from normscope import InputError
from normscope.capture import capture
from normscope.cli import benchmark as bench
from normscope.cli.benchmark import Settings
from normscope.models.architectures import tiny_model
from tests.cli.test_commands import fail, run, succeed

ROOT = Path(__file__).parents[2]
PEAK_OF_CHILD = bench._peak_of_child  # before it is replaced
OURS = ["2020", "2021", "matmul", "2024", "reduce"]
WORKS = ["forward", "eager", *OURS, "dense float64", "dense float32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny encoder without a tokenizer: ids are random."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    tiny_model("bert").save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small square, and no process of its own for the memory; one test has it."""
    monkeypatch.setattr(bench, "SQUARE", {"cpu": 16})
    monkeypatch.setattr(bench, "_peak_of_child", lambda *_: 1.5)


def measured(model: str | None, **settings: Any) -> dict[str, dict[str, Any]]:
    """The rows of one length, by work."""
    told = bench.run(Settings(model, lengths=[8], repeats=1, **settings))
    assert {row["tokens"] for row in told["rows"]} == {8}
    return {row["work"]: row for row in told["rows"]}


def test_the_file_has_every_work(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = ("--lengths", "8,6", "--batch", "2", "--repeats", "3", "--json", str(file))
    done = succeed("bench", "--model", folder, *arguments)
    told = json.loads(file.read_text(encoding="utf-8"))
    assert [file.name] == [path.name for path in tmp_path.iterdir()]
    assert told["machine"]["torch"] == torch.__version__
    assert told["machine"]["normscope"] == normscope.__version__
    sizes = {"layers": 3, "heads": 4, "hidden": 32}
    assert told["model"] == {"name": "tiny-bert", **sizes, "dtype": "float32"}
    assert [(row["tokens"], row["work"]) for row in told["rows"]] == [
        (tokens, work) for tokens in (8, 6) for work in WORKS
    ]
    forward = {row["tokens"]: row["ms"] for row in told["rows"] if row["work"] == "forward"}
    for row in told["rows"]:
        assert row["batch"] == 2
        assert len(row["all_ms"]) == 3
        assert row["ms"] == sorted(row["all_ms"])[1] > 0
        assert row["ratio"] == row["ms"] / forward[row["tokens"]]
        asked = row["tokens"] == 8 and row["work"] in ("eager", "2020")
        assert row["peak_mb"] == (1.5 if asked else None)
    assert "tiny-bert, 2 × 8 tokens, float32" in done.stdout
    assert f"torch: {torch.__version__}" in done.stdout
    assert done.stderr == ""
    picture = tmp_path / "picture.png"
    command = [sys.executable, str(ROOT / "benchmarks" / "plot.py"), str(file), str(file)]
    subprocess.run([*command, "-o", str(picture)], check=True, capture_output=True)
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


def test_groups_ask_for_the_maps_that_there_are(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    original = bench.ours

    def noting(model: Any, inputs: Any, maps: Any, *, reduce: bool) -> Any:
        asked.append((*maps, *(["reduced"] if reduce else [])))
        assert list(inputs) == ["input_ids"]
        assert torch.backends.cuda.matmul.allow_tf32 == tf32
        return original(model, inputs, maps, reduce=reduce)

    monkeypatch.setattr(bench, "ours", noting)
    tf32 = True
    measured(folder, tf32=True)
    assert not torch.backends.cuda.matmul.allow_tf32
    through = ("atb_ff", "atb_ff_res", "atb_ff_res_ln")
    reduced = (*bench.GROUPS["reduce"], "reduced")
    assert asked == [bench.GROUPS["2020"], bench.GROUPS["2021"], through, reduced]
    tf32 = False
    monkeypatch.setattr(bench, "FF_LENGTH", 7)
    rows = measured(folder, dense=False)
    assert [*rows] == ["forward", "eager", "2020", "2021", "2024", "reduce"]
    assert rows["2024"]["ms"] is None
    assert "--maps 2024" in rows["2024"]["note"]
    rows = measured(folder, dense=False, groups=["2024"])  # asked for by name
    assert [*rows] == ["forward", "eager", "matmul", "2024"]
    # Three layers, 8 × 8 pairs; hidden 32, four heads; multiply and add.
    inner = tiny_model("bert").config.intermediate_size
    operations = 2 * 3 * 64 * (inner * 32 + 4 * inner + 4 * 32)
    assert rows["2024"]["gflops"] == pytest.approx(operations / rows["2024"]["ms"] / 1e6)
    speed = 2 * 16**3 / rows["matmul"]["ms"] / 1e6
    assert rows["2024"]["of_matmul"] == pytest.approx(rows["2024"]["gflops"] / speed)


def test_what_a_model_lacks_is_left_out() -> None:
    settings = Settings(dense=False)
    works = {work.name: work for work in bench.plan(settings, tiny_model("mixtral"), 8)}
    assert [*works] == ["forward", "eager", "2020", "2021", "2024", "reduce"]
    assert works["2024"].call is None  # experts are not taken apart
    assert works["2024"].note == "the model has none of these maps"
    assert works["forward"].attention == works["2020"].attention == "sdpa"
    assert next(bench.plan(settings, tiny_model("deberta-v2"), 8)).attention == "eager"


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_dense_form_gives_the_same(family: str) -> None:
    model = tiny_model(family)  # llama: value heads are shared
    inputs = bench.inputs_of(model, 2, 8)
    with torch.no_grad(), capture(model) as calls:
        model(**inputs)
    made = [bench.dense(one, torch.float64) for one in calls]
    assert max(float(one["gap"].max()) for one in made) < 1e-12
    for row, result in enumerate(normscope.analyze_inputs(model, inputs)):
        for name, array in {
            "attn_w": result["attn_w"],
            "attn_n": result["attn_n"],
            "transformed_norm": result.transformed_norm,
            "mixing_ratio": result.mixing_ratio["attn_n"],
        }.items():
            dense = np.stack([one[name][row] for one in made])
            np.testing.assert_allclose(dense, array.values, rtol=1e-12, atol=1e-14)


def test_a_large_dense_form_is_one_layer_or_none(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = 4 * 8 * 8 * 32
    monkeypatch.setattr(bench, "ONE_LAYER", 8 * cells - 1)
    monkeypatch.setattr(bench, "DENSE_MOST", 8 * cells - 1)
    rows = measured(folder, groups=["2020"])
    assert rows["dense float64"]["ms"] is None
    assert "GB" in rows["dense float64"]["note"]
    assert rows["dense float32"]["ms"] > 0
    assert rows["dense float32"]["note"].startswith("one layer, times 3; ")


def test_the_dense_form_is_compared_with_the_maps_alone_and_with_the_pass() -> None:
    rows: dict[str, Any] = {
        "forward": {"ms": 20.0, "note": ""},
        "2020": {"ms": 50.0, "note": ""},
        "dense float64": {"ms": 1180.0, "note": ""},
        "dense float32": {"ms": None, "note": "a tensor of 9 GB for each layer"},
    }
    bench._compare_with_dense(rows)
    assert rows["dense float64"]["to_2020"] == 24
    assert rows["dense float64"]["to_2020_maps"] == pytest.approx(39.3, abs=0.1)
    assert rows["dense float64"]["note"] == "39× the 2020 maps, 24× with the pass"
    assert rows["dense float32"]["note"] == "a tensor of 9 GB for each layer"


def test_what_breaks_hides_no_other(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("no room. More")

    monkeypatch.setattr(bench, "dense", full)
    rows = measured(folder, groups=["2020"])
    assert rows["dense float64"]["ms"] is None
    assert rows["dense float64"]["note"] == "OutOfMemoryError: no room"
    assert rows["2020"]["ms"] > 0


def test_the_memory_of_a_fresh_process(folder: str) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak is read where Linux keeps it")
    found = PEAK_OF_CHILD(Settings(folder), "2020", 32)
    assert found is not None
    assert 0 <= found < 1000


def test_shapes_have_random_weights_and_need_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
    monkeypatch.setitem(bench.SHAPES, "bert-base", ("Bert", {**tiny, "intermediate_size": 48}))
    assert measured("bert-base", dtype="bfloat16")["2024"]["ms"] > 0
    one, two = (bench.model_of(Settings("bert-base")).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_mistakes_are_refused_before_the_work(folder: str, tmp_path: Path) -> None:
    def told(*arguments: str) -> str:
        return fail("bench", "--model", folder, *arguments)

    assert "'2022'; valid here: 2020, 2021, 2024" in told("--maps", "2020,2022")
    assert "'int8'; valid here: float64, float32" in told("--dtype", "int8")
    assert "'tpu'; valid here: cpu" in told("--device", "tpu")
    assert "'8,x'; valid: whole numbers" in told("--lengths", "8,x")
    assert "unknown length: 1; valid for this model: 2 to " in told("--lengths", "8,1")
    assert "unknown length: 9999; valid for this model: 2 to " in told("--lengths", "9999")
    assert "there is no folder" in told("--json", str(tmp_path / "none" / "out.json"))
    assert "must end in one of: .json" in told("--json", str(tmp_path / "out.txt"))
    assert "--repeats" in told("--repeats", "0")
    assert run("bench", "--model", "./nowhere").exit_code == 2
    with pytest.raises(InputError, match="unknown dtype"):
        Settings(dtype="half")
